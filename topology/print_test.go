package topology

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite golden files")

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v; run go test ./topology -update", err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs; run go test ./topology -update and look at the diff\ngot:\n%s", path, got)
	}
}

func TestPrintGolden(t *testing.T) {
	topo, err := New(DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	for output, name := range map[string]string{"text": "topology.txt", "dot": "topology.dot", "json": "topology.json"} {
		t.Run(output, func(t *testing.T) {
			var b bytes.Buffer
			if err := topo.Print(&b, output); err != nil {
				t.Fatal(err)
			}
			golden(t, name, b.Bytes())
		})
	}
}

func TestPrintRefusesUnknownOutput(t *testing.T) {
	topo, _ := New(DefaultConfig())
	err := topo.Print(&bytes.Buffer{}, "yaml")
	if err == nil || !strings.Contains(err.Error(), `"yaml"`) || !strings.Contains(err.Error(), "text, dot, json") {
		t.Errorf("error %v does not name the output and the choices", err)
	}
}

// What the JSON says is what the code uses.
func TestPrintJSONReadsBack(t *testing.T) {
	topo, _ := New(DefaultConfig())
	var b bytes.Buffer
	if err := topo.Print(&b, "json"); err != nil {
		t.Fatal(err)
	}
	var back Topology
	if err := json.Unmarshal(b.Bytes(), &back); err != nil {
		t.Fatal(err)
	}
	for _, s := range topo.Streams {
		got := back.Stream(s.Name)
		if got.Topic != s.Topic || got.Partitions != s.Partitions || got.Settings["cleanup.policy"] != s.Settings["cleanup.policy"] {
			t.Errorf("stream %s reads back as %+v", s.Name, got)
		}
	}
}
