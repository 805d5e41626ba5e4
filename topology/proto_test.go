package topology

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

const recordsGolden = "testdata/records.golden"

// Records in topics outlive the code that wrote them: a field keeps its
// number, name and type for ever, and a removed field's number and name stay
// reserved. New lines enter the golden file by -update; a line that was there
// cannot leave it that way.
func TestRecordsKeepTheirFieldNumbers(t *testing.T) {
	got := describe(tidemarkv1.File_tidemark_v1_records_proto)
	data, err := os.ReadFile(recordsGolden)
	if err != nil && !*update {
		t.Fatalf("%v; run go test ./topology -update", err)
	}
	want := strings.Split(strings.TrimSpace(string(data)), "\n")
	if len(data) == 0 {
		want = nil
	}
	for _, line := range want {
		if !slices.Contains(got, line) && !slices.Contains(got, reservedLine(line)) {
			t.Errorf("%q is gone or changed: records of older versions would be misread; give a new field a new number and reserve the old one", line)
		}
	}
	if t.Failed() {
		return
	}
	if *update {
		golden(t, "records.golden", []byte(strings.Join(got, "\n")+"\n"))
		return
	}
	for _, line := range got {
		if !slices.Contains(want, line) {
			t.Errorf("%q is new: run go test ./topology -update", line)
		}
	}
}

// describe gives one line per field and enum value.
func describe(file protoreflect.FileDescriptor) []string {
	var lines []string
	for i := range file.Enums().Len() {
		e := file.Enums().Get(i)
		for j := range e.Values().Len() {
			v := e.Values().Get(j)
			lines = append(lines, fmt.Sprintf("%s %d %s", e.Name(), v.Number(), v.Name()))
		}
		for j := range e.ReservedRanges().Len() {
			r := e.ReservedRanges().Get(j)
			for n := r[0]; n <= r[1]; n++ {
				lines = append(lines, fmt.Sprintf("%s %d reserved", e.Name(), n))
			}
		}
	}
	for i := range file.Messages().Len() {
		lines = append(lines, describeMessage(file.Messages().Get(i))...)
	}
	slices.Sort(lines)
	return lines
}

func describeMessage(m protoreflect.MessageDescriptor) []string {
	var lines []string
	for i := range m.Fields().Len() {
		f := m.Fields().Get(i)
		typ := f.Kind().String()
		switch {
		case f.Message() != nil:
			typ = string(f.Message().Name())
		case f.Enum() != nil:
			typ = string(f.Enum().Name())
		}
		if one := f.ContainingOneof(); one != nil {
			typ += " of " + string(one.Name())
		}
		lines = append(lines, fmt.Sprintf("%s %d %s %s %s", m.Name(), f.Number(), f.Name(), f.Cardinality(), typ))
	}
	for i := range m.ReservedRanges().Len() {
		r := m.ReservedRanges().Get(i)
		for n := r[0]; n < r[1]; n++ {
			lines = append(lines, fmt.Sprintf("%s %d reserved", m.Name(), n))
		}
	}
	return lines
}

// reservedLine is the line that may replace a removed field's.
func reservedLine(line string) string {
	words := strings.SplitN(line, " ", 3)
	if len(words) < 3 {
		return line
	}
	return words[0] + " " + words[1] + " reserved"
}
