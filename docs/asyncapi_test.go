package docs

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/tidemark/tidemark/internal/gaps"
	"github.com/tidemark/tidemark/internal/quarantine/review"
	"github.com/tidemark/tidemark/topology"
)

const asyncAPIFile = "asyncapi.json"

// asyncapi.json is what `tidemark topology print --output asyncapi` prints of
// the default settings.
func TestAsyncAPIIsCurrent(t *testing.T) {
	want := asyncAPI(t, topology.DefaultConfig())
	if *update {
		if err := os.WriteFile(asyncAPIFile, want, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if read(t, asyncAPIFile) != string(want) {
		t.Errorf("%s is not what the code says: run go test ./docs -update and look at the difference", asyncAPIFile)
	}
}

func asyncAPI(t *testing.T, c topology.Config) []byte {
	t.Helper()
	topo, err := topology.New(c)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := topo.Print(&b, "asyncapi"); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// The document is valid by the JSON schema of AsyncAPI 3.0.0, also of a
// deployment that differs from the default in everything.
func TestAsyncAPIIsValid(t *testing.T) {
	schema := asyncAPISchema(t)
	other := topology.DefaultConfig()
	other.Prefix, other.Shards, other.CountPartitions, other.DisplayPartitions, other.ReplicationFactor = "eu.likes", 1, 4096, 3, 3
	for _, c := range []topology.Config{topology.DefaultConfig(), other} {
		if err := schema.Validate(document(t, asyncAPI(t, c))); err != nil {
			t.Errorf("prefix %s: %#v", c.Prefix, err)
		}
	}
}

// The check can fail.
func TestAsyncAPISchemaRefuses(t *testing.T) {
	schema := asyncAPISchema(t)
	whole := string(asyncAPI(t, topology.DefaultConfig()))
	for _, broken := range [][2]string{
		{`"asyncapi": "3.0.0"`, `"asyncapi": "2.6.0"`},
		{`"address": "tidemark.cdc"`, `"topic": "tidemark.cdc"`},
		{`"action": "send"`, `"action": "publish"`},
		{`"partitions": 8`, `"partitions": "eight"`},
		{`"retention.ms": -1`, `"retention.ms": -2`},
		{`"bindingVersion": "0.5.0"`, `"bindingVersion": "0.0.1"`},
	} {
		text := strings.Replace(whole, broken[0], broken[1], 1)
		if text == whole {
			t.Errorf("the document has no %s", broken[0])
		} else if schema.Validate(document(t, []byte(text))) == nil {
			t.Errorf("%s in place of %s is accepted", broken[1], broken[0])
		}
	}
}

func asyncAPISchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	f, err := os.Open("testdata/asyncapi-3.0.0.schema.json.gz")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	unpacked, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	text, err := jsonschema.UnmarshalJSON(unpacked)
	if err != nil {
		t.Fatal(err)
	}
	compiler := jsonschema.NewCompiler()
	compiler.AssertFormat()
	if err := compiler.AddResource("asyncapi-3.0.0.json", text); err != nil {
		t.Fatal(err)
	}
	return compiler.MustCompile("asyncapi-3.0.0.json")
}

func document(t *testing.T, text []byte) any {
	t.Helper()
	d, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// feedRecord is a relation's record, from the type that intake reads and that
// healing records are written from.
func feedRecord(t *testing.T) string {
	t.Helper()
	b, err := json.Marshal(topology.Envelope{
		After: &topology.OutboxRow{
			ID: 42, AggregateType: topology.AggregateRelation, AggregateID: "like:u7:V9001", Type: topology.TypeRelationChanged,
			Payload: `{"kind":"like"}`, CreatedAt: "2026-08-19T10:20:30.123400Z",
		},
		Source: topology.Source{
			Version: "tidemark-1", Connector: "postgresql", Name: "tidemark", TsMs: 1787134830123, Snapshot: "false", DB: "shard0",
			Sequence: `[null,"23024200"]`, Schema: "public", Table: "outbox", TxID: 771, LSN: 23024200,
		},
		Op: "c", TsMs: 1787134831987,
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// A record of the feed, also one that heals a gap, is what the envelope's
// schema says, and one with other values is not.
func TestEnvelopeSchema(t *testing.T) {
	compiler := jsonschema.NewCompiler()
	compiler.DefaultDraft(jsonschema.Draft7)
	compiler.AssertFormat()
	if err := compiler.AddResource("asyncapi.json", document(t, asyncAPI(t, topology.DefaultConfig()))); err != nil {
		t.Fatal(err)
	}
	schema := compiler.MustCompile("asyncapi.json#/components/schemas/Envelope")
	emitted := feedRecord(t)
	healed := strings.NewReplacer(`"op":"c"`, `"op":"r"`, `"snapshot":"false"`, `"snapshot":"`+gaps.HealSnapshot+`"`).Replace(emitted)
	for _, record := range []string{emitted, healed} {
		if err := schema.Validate(document(t, []byte(record))); err != nil {
			t.Errorf("%s\n%#v", record, err)
		}
	}
	for _, broken := range [][2]string{
		{`"op":"c"`, `"op":"d"`}, {`"before":null`, `"before":{}`}, {`"lsn":`, `"LSN":`}, {`"aggregatetype":"relation"`, `"aggregatetype":"like"`},
	} {
		if schema.Validate(document(t, []byte(strings.Replace(emitted, broken[0], broken[1], 1)))) == nil {
			t.Errorf("%s in place of %s is accepted", broken[1], broken[0])
		}
	}
}

// Headers that the document names are those that are written.
func TestAsyncAPINamesTheHeaders(t *testing.T) {
	topo, err := topology.New(topology.DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, h := range topo.Stream(topology.CDC).Reading().Headers {
		names = append(names, h.Name)
	}
	if got, want := strings.Join(names, " "), gaps.HealHeader+" "+review.ReplayHeader; got != want {
		t.Errorf("topology names the headers %s, the code writes %s", got, want)
	}
}
