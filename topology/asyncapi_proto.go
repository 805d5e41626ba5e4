package topology

import (
	_ "embed"
	"fmt"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// recordsProto is the source of tidemarkv1: its compiled descriptors have no
// comments.
//
//go:embed proto/tidemark/v1/records.proto
var recordsProto string

// protoSource is a protobuf file of a message and what its fields need, in the
// order and with the comments of records.proto. The message is the only one
// that no other uses, by which parsers of AsyncAPI find it.
func protoSource(message string) (string, error) {
	file := tidemarkv1.File_tidemark_v1_records_proto
	root := file.Messages().ByName(protoreflect.FullName(message).Name())
	if root == nil || root.FullName() != protoreflect.FullName(message) {
		return "", fmt.Errorf("records.proto has no message %s", message)
	}
	needed := map[string]bool{}
	need(root, needed)
	var b strings.Builder
	fmt.Fprintf(&b, "syntax = \"proto3\";\n\npackage %s;\n", file.Package())
	for _, d := range declarations(recordsProto) {
		if needed[d.name] {
			b.WriteString("\n" + d.text)
			delete(needed, d.name)
		}
	}
	for name := range needed {
		return "", fmt.Errorf("the source of records.proto has no declaration %s, which %s needs", name, message)
	}
	return b.String(), nil
}

// need adds the declarations, such as "message AsOf", of m and its fields.
func need(m protoreflect.MessageDescriptor, all map[string]bool) {
	if name := "message " + string(m.Name()); !all[name] {
		all[name] = true
		for i := range m.Fields().Len() {
			f := m.Fields().Get(i)
			if f.Message() != nil {
				need(f.Message(), all)
			}
			if f.Enum() != nil {
				all["enum "+string(f.Enum().Name())] = true
			}
		}
	}
}

type declaration struct {
	name string // such as "message AsOf"
	text string // with its comment
}

// declarations are the top-level messages and enums of a protobuf source that
// is formatted as buf does it: they open and close at the margin.
func declarations(source string) []declaration {
	var all []declaration
	var d declaration
	for _, line := range strings.SplitAfter(source, "\n") {
		name, opens := strings.CutSuffix(line, " {\n")
		switch {
		case d.name == "" && opens && (strings.HasPrefix(line, "message ") || strings.HasPrefix(line, "enum ")):
			d.name = name
			d.text += line
		case d.name != "" && line == "}\n":
			all = append(all, declaration{d.name, d.text + line})
			d = declaration{}
		case d.name != "" || strings.HasPrefix(line, "//"):
			d.text += line
		default:
			d = declaration{}
		}
	}
	return all
}
