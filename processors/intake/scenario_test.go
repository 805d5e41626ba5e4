package intake

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// Scenarios apply records and print what they lead to.
//
//	apply [row=relation|seal|proof] [key=KEY] [partition=N] [value=null]
//	set PATH=JSON      a member of the envelope, or of its payload (payload.userId)
//	drop PATH
//	raw TEXT           the whole value instead
//	rawpayload TEXT    the whole column payload instead
//	pad N              as many bytes of white space behind the value
//	----
//
// The row is a good one of shard 2 until it is changed. A later apply of the
// same row must give the same effects.
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata/scenarios", func(t *testing.T, path string) {
		core := testCore(t)
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd != "apply" {
				d.Fatalf(t, "unknown command %s", d.Cmd)
			}
			r := scriptedRecord(t, d)
			first, second := core.Apply(r), core.Apply(r)
			if a, b := show(t, first), show(t, second); a != b {
				t.Errorf("%s: a second look at the record has other effects:\n%s\n%s", d.Pos, a, b)
			}
			return show(t, first)
		})
	})
}

func scriptedRecord(t *testing.T, d *datadriven.TestData) topology.Record {
	row := "relation"
	d.MaybeScanArgs(t, "row", &row)
	env, payload := sampleRow(t, row)
	var raw *string
	pad := 0
	for line := range strings.Lines(d.Input) {
		verb, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		switch verb {
		case "set":
			path, value, _ := strings.Cut(rest, "=")
			set(t, env, payload, path, json.RawMessage(value))
		case "drop":
			set(t, env, payload, rest, nil)
		case "raw":
			raw = &rest
		case "rawpayload":
			payload = nil
			env["after"].(map[string]any)["payload"] = rest
		case "pad":
			if _, err := fmt.Sscan(rest, &pad); err != nil {
				d.Fatalf(t, "%v", err)
			}
		default:
			d.Fatalf(t, "unknown line %q", line)
		}
	}
	return finish(t, d, env, payload, raw, pad)
}

func finish(t *testing.T, d *datadriven.TestData, env, payload map[string]any, raw *string, pad int) topology.Record {
	r := topology.Record{Topic: "tidemark.cdc", Partition: 2, Offset: 1000, Timestamp: sampleTime}
	if after, ok := env["after"].(map[string]any); ok {
		if payload != nil && after["payload"] == "" {
			after["payload"] = jsonb(t, payload)
		}
		r.Key, _ = after["aggregateid"].(string)
	}
	value, err := json.Marshal(env)
	if err != nil {
		t.Fatal(err)
	}
	if raw != nil {
		value = []byte(*raw)
	}
	value = append(value, bytes.Repeat([]byte(" "), pad)...)
	r.Value = value
	if d.HasArg("value") {
		r.Value = nil
	}
	d.MaybeScanArgs(t, "key", &r.Key)
	d.MaybeScanArgs(t, "partition", &r.Partition)
	return r
}

// sampleRow is a good row as nested maps; its payload stands apart until the
// row is finished.
func sampleRow(t *testing.T, row string) (env, payload map[string]any) {
	e := sampleEvent()
	var body any = e
	out := envelopeOf(2, topology.AggregateRelation, e.AggregateKey, topology.TypeRelationChanged, "")
	switch row {
	case "seal":
		out = envelopeOf(2, topology.AggregateSeal, "seal:4711", topology.TypeSealed, "")
		body = topology.Seal{Seal: 4711, SealedAt: sampleTime}
	case "proof":
		out = envelopeOf(2, topology.AggregateProof, "proof:4711", topology.TypeSealProven, "")
		body = topology.SealProof{Seal: 4711, FromID: 70, ToID: 78, Rows: 5, XorSum: 1<<64 - 1}
	}
	asMap(t, out, &env)
	asMap(t, body, &payload)
	return env, payload
}

func asMap(t *testing.T, v any, m *map[string]any) {
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	if err := dec.Decode(m); err != nil {
		t.Fatal(err)
	}
}

// set changes a member, or drops it when value is nil.
func set(t *testing.T, env, payload map[string]any, path string, value json.RawMessage) {
	m, parts := env, strings.Split(path, ".")
	if parts[0] == "payload" {
		m, parts = payload, parts[1:]
	}
	for ; len(parts) > 1; parts = parts[1:] {
		next, ok := m[parts[0]].(map[string]any)
		if !ok {
			t.Fatalf("%s: %s is not an object", path, parts[0])
		}
		m = next
	}
	if value == nil {
		delete(m, parts[0])
		return
	}
	var v any
	dec := json.NewDecoder(bytes.NewReader(value))
	dec.UseNumber()
	if err := dec.Decode(&v); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	m[parts[0]] = v
}

// show prints effects: the outcome, then each emission as topic, key, value.
func show(t *testing.T, e Effects) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s", e.Outcome)
	if e.Outcome == Sealed {
		fmt.Fprintf(&b, " %d", e.Seal)
	}
	if e.Slow {
		b.WriteString(" (unusual shape)")
	}
	b.WriteByte('\n')
	if e.Outcome == Quarantined {
		q := decodeAs(t, e.Emissions[0].Value, &tidemarkv1.Quarantined{})
		fmt.Fprintf(&b, "%s: %s\n", strings.TrimPrefix(q.Reason.String(), "QUARANTINE_REASON_"), q.Detail)
		return b.String()
	}
	for i, em := range e.Emissions {
		fmt.Fprintf(&b, "%s  %s\n", em.Topic, em.Key)
		if i == 0 || !bytes.Equal(em.Value, e.Emissions[i-1].Value) {
			fmt.Fprintf(&b, "  %s\n", fields(t, em))
		}
	}
	return b.String()
}

func decodeAs[M interface{ UnmarshalVT([]byte) error }](t testing.TB, b []byte, m M) M {
	t.Helper()
	if err := m.UnmarshalVT(b); err != nil {
		t.Fatal(err)
	}
	return m
}

// fields shows a value as JSON with sorted members.
func fields(t *testing.T, em Emission) string {
	var m proto.Message = &tidemarkv1.RelationChange{}
	switch {
	case strings.HasSuffix(em.Topic, topology.BucketChanges):
		m = &tidemarkv1.BucketChange{}
	case strings.HasSuffix(em.Topic, topology.LikerChanges):
		m = &tidemarkv1.LikerChange{}
	}
	if err := proto.Unmarshal(em.Value, m); err != nil {
		t.Fatal(err)
	}
	text, err := protojson.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	var v any
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatal(err)
	}
	if text, err = json.Marshal(v); err != nil {
		t.Fatal(err)
	}
	return string(text)
}
