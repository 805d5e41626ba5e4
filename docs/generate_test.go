package docs

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"

	"github.com/tidemark/tidemark/internal/config"
	"github.com/tidemark/tidemark/topology"
)

// generate writes the table of a name: config; streams; message M or enum E of
// records.proto; struct S of topology/event.go; partitions; or of a stream the
// list of what a reader can rely on: reading STREAM.
func generate(name string) (string, error) {
	sort, what, _ := strings.Cut(name, " ")
	switch sort {
	case "config":
		return configTable()
	case "streams":
		return streamsTable()
	case "message":
		return protoTable("message", what)
	case "enum":
		return protoTable("enum", what)
	case "struct":
		return structTable(what)
	case "partitions":
		return partitionsTable(), nil
	case "reading":
		return reading(what)
	}
	return "", fmt.Errorf("nothing generates %q", name)
}

// table writes Markdown.
func table(head []string, rows [][]string) string {
	var b strings.Builder
	line := func(cells []string) {
		for i, c := range cells {
			cells[i] = strings.ReplaceAll(c, "|", `\|`)
		}
		fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | "))
	}
	line(head)
	fmt.Fprintf(&b, "|%s\n", strings.Repeat("---|", len(head)))
	for _, r := range rows {
		line(r)
	}
	return b.String()
}

func code(s string) string {
	if s == "" {
		return ""
	}
	return "`" + s + "`"
}

// sentence is a comment in one line.
func sentence(s string) string { return strings.Join(strings.Fields(s), " ") }

func configTable() (string, error) {
	notes := exampleComments()
	docs, err := fieldComments(filepath.Join(root, "internal/config/config.go"))
	if err != nil {
		return "", err
	}
	var rows [][]string
	var walk func(prefix string, v reflect.Value)
	walk = func(prefix string, v reflect.Value) {
		for i := range v.NumField() {
			f := v.Type().Field(i)
			path := prefix + f.Tag.Get("koanf")
			if f.Type.Kind() == reflect.Struct {
				walk(path+".", v.Field(i))
				continue
			}
			about := notes[path]
			switch {
			case path == "kafka.tls.enabled":
				about = "TLS to the brokers; files are PEM"
			case path == "kafka.tls.key_file":
				about = "with cert_file: its key"
			case about == "" || about == "no default":
				about = docs[v.Type().Name()+"."+f.Name]
			}
			std := fmt.Sprint(v.Field(i))
			if std == "[]" {
				std = ""
			}
			rows = append(rows, []string{code(path), code(std), about})
		}
	}
	walk("", reflect.ValueOf(config.Default()))
	return table([]string{"setting", "default", "meaning"}, rows), nil
}

var exampleLine = regexp.MustCompile(`^( *)([a-z0-9_]+):[^#]*(?:# (.*))?$`)

// exampleComments are the comments of example.yaml, by path.
func exampleComments() map[string]string {
	notes := map[string]string{}
	var parents []string
	for _, line := range strings.Split(config.Example, "\n") {
		m := exampleLine.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		parents = append(parents[:len(m[1])/2], m[2])
		notes[strings.Join(parents, ".")] = m[3]
	}
	return notes
}

// fieldComments are the comments of a file's struct fields, by Type.Field.
func fieldComments(path string) (map[string]string, error) {
	types, err := structs(path)
	if err != nil {
		return nil, err
	}
	all := map[string]string{}
	for name, s := range types {
		for _, f := range s.Fields.List {
			for _, n := range f.Names {
				all[name+"."+n.Name] = comment(f)
			}
		}
	}
	return all, nil
}

func comment(f *ast.Field) string {
	return sentence(f.Doc.Text() + " " + f.Comment.Text())
}

func structs(path string) (map[string]*ast.StructType, error) {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	all := map[string]*ast.StructType{}
	ast.Inspect(file, func(n ast.Node) bool {
		if spec, ok := n.(*ast.TypeSpec); ok {
			if s, ok := spec.Type.(*ast.StructType); ok {
				all[spec.Name.Name] = s
			}
		}
		return true
	})
	return all, nil
}

func structTable(name string) (string, error) {
	types, err := structs(filepath.Join(root, "topology/event.go"))
	if err != nil {
		return "", err
	}
	s, ok := types[name]
	if !ok {
		return "", fmt.Errorf("topology/event.go has no struct %s", name)
	}
	var rows [][]string
	for _, f := range s.Fields.List {
		tag := reflect.StructTag(strings.Trim(f.Tag.Value, "`")).Get("json")
		field, _, _ := strings.Cut(tag, ",")
		rows = append(rows, []string{code(field), typeName(f.Type), meaning(comment(f), field)})
	}
	return table([]string{"field", "type", "meaning"}, rows), nil
}

func typeName(e ast.Expr) string {
	switch x := e.(type) {
	case *ast.StarExpr:
		return typeName(x.X) + " or null"
	case *ast.SelectorExpr:
		return "time, RFC 3339"
	case *ast.Ident:
		switch x.Name {
		case "int", "int32", "int64", "uint64":
			return "whole number"
		}
		return x.Name
	}
	return ""
}

func streamsTable() (string, error) {
	topo, err := topology.New(topology.DefaultConfig())
	if err != nil {
		return "", err
	}
	var rows [][]string
	for _, s := range topo.Streams {
		keep := "compacted, for ever"
		if !s.Table {
			keep = "retention, default 7 days"
		}
		rows = append(rows, []string{code(s.Topic), fmt.Sprint(s.Partitions), s.Key, s.PlacedBy, keep, s.For})
	}
	return table([]string{"topic", "partitions", "key", "placed by", "kept", "read by"}, rows), nil
}

// partitionsTable says where some keys lie.
func partitionsTable() string {
	const partitions = 8
	var rows [][]string
	for _, key := range []string{
		topology.TargetKey(topology.Like, "V9001"), topology.TargetKey(topology.Like, "a:b"), topology.TargetKey(topology.Follow, "赞"),
		topology.ProgressKey(5, 2), topology.OnPartition(3, "like:u7:V9001"),
	} {
		hash := "not asked"
		if _, _, named := topology.CutPartition(key); !named {
			hash = fmt.Sprintf("%08x", topology.Murmur2(key))
		}
		at, err := topology.PartitionOf(key, partitions)
		if err != nil {
			panic(err) // the keys above name partitions that are there
		}
		rows = append(rows, []string{code(key), hash, fmt.Sprint(at)})
	}
	return table([]string{"key", "murmur2", "partition"}, rows)
}

func reading(stream string) (string, error) {
	topo, err := topology.New(topology.DefaultConfig())
	if err != nil {
		return "", err
	}
	for _, s := range topo.Streams {
		if s.Name == stream {
			return s.Guide(), nil
		}
	}
	return "", fmt.Errorf("topology has no stream %s", stream)
}

var (
	protoField = regexp.MustCompile(`^\s*(repeated |optional )?([A-Za-z0-9_.]+) ([a-z0-9_]+) = (\d+);`)
	protoValue = regexp.MustCompile(`^\s*([A-Z0-9_]+) = (\d+);`)
)

// protoTable lists the fields of a message, or the values of an enum, of
// records.proto with their comments.
func protoTable(sort, name string) (string, error) {
	b, err := os.ReadFile(filepath.Join(root, "topology/proto/tidemark/v1/records.proto"))
	if err != nil {
		return "", err
	}
	_, body, ok := strings.Cut(string(b), "\n"+sort+" "+name+" {\n")
	if !ok {
		return "", fmt.Errorf("records.proto has no %s %s", sort, name)
	}
	body, _, _ = strings.Cut(body, "\n}\n")
	var rows [][]string
	about, either := "", ""
	for _, line := range strings.Split(body, "\n") {
		text := strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(text, "//"):
			about += " " + strings.TrimPrefix(text, "//")
			continue
		case strings.HasPrefix(text, "oneof "):
			either = "one of these"
		case text == "}":
			either = ""
		}
		if m := protoField.FindStringSubmatch(line); m != nil {
			rows = append(rows, []string{m[4], code(m[3]), m[1] + m[2], sentence(unit(m[3]) + " " + meaning(about, m[3]) + " " + either)})
		} else if m := protoValue.FindStringSubmatch(line); m != nil {
			rows = append(rows, []string{m[2], code(m[1]), sentence(about)})
		}
		about = ""
	}
	if sort == "enum" {
		return table([]string{"no.", "value", "meaning"}, rows), nil
	}
	return table([]string{"no.", "field", "type", "meaning"}, rows), nil
}

// meaning is a field's comment, or what its name says.
func meaning(about, field string) string {
	if about != "" {
		return about
	}
	return map[string]string{
		"active": "relations in LIKED, FAVORITED, FOLLOWING", "barrierId": "not empty when other parts wait for this seal",
		"bucket": "its bucket after this event", "bucket_space": "id of the hash contract", "disliked": "relations in DISLIKED",
		"event_id": "UUID of the event", "generated_at_us": "When it was summed.", "generation": "projection generation",
		"kind": "kind of relation", "manifest_id": "route manifest by which it was counted", "offset": "of the original record",
		"partition": "partition, from 0", "position": "source position", "route_epoch": "epoch of the bucket's route",
		"seal": "number of the seal", "sealedAt": "when the seal was made", "shard": "relation shard, from 0",
		"sourceShard": "relation shard, from 0", "state": "after the event", "targetId": "the video, or the user for follow",
		"target_id": "the video, or the user for follow", "topic": "of the original record", "userId": "whose relation it is",
		"user_id": "whose relation it is", "version": "of the relation", "virtual_bucket": "from 0", "watermarks": "one per shard",
		"changelog_offset": "partial counts are out up to this offset", "as_of": "see below", "seq": "see below", "committed_at_us": "Commit of the newest change inside.", "reason": "see below", "key": "the original key", "value": "the original value",
	}[field]
}

// unit is said by a field's name.
func unit(field string) string {
	if strings.HasSuffix(field, "_us") {
		return "µs since 1970 UTC."
	}
	return ""
}
