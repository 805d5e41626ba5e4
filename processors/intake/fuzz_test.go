package intake

import (
	"bytes"
	"fmt"
	"reflect"
	"testing"
	"unicode/utf8"

	"github.com/tidemark/tidemark/internal/quarantine"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

func fuzzSeeds(f *testing.F) {
	for _, row := range []topology.Record{sampleRecord(f), sealRecord(f)} {
		f.Add(row.Value)
		f.Add(bytes.ReplaceAll(row.Value, []byte(`,"`), []byte(", \n\t\"")))
		for _, escapes := range []string{`\uD83D\uDe00\u2028`, `\ud83d\u0061`, `\ud83d`, `\udE00`, `\u00g0`} {
			f.Add(bytes.ReplaceAll(row.Value, []byte(`:u7`), []byte(`:`+escapes)))
		}
	}
	for _, s := range []string{``, `{}`, `null`, `{"op":"c"}`, `{"op":"c","op":"d"}`, `{"OP":"c"}`, `{"a":"\u0061\ud800"}`, `{"a":-0}`, `{"a":01}`, `{"a":1e3}`, "{\"a\":\"\xff\"}"} {
		f.Add([]byte(s))
	}
}

// What the scanner accepts, encoding/json reads as the same envelope.
func FuzzEnvelope(f *testing.F) {
	fuzzSeeds(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		if !utf8.Valid(b) {
			return
		}
		var fast, slow envelope
		if !fast.scan(b) {
			return
		}
		if no := slow.unmarshal(b); no != nil && !(no.Reason == quarantine.UnknownOperation && !operation(string(fast.op))) {
			t.Fatalf("scanned, but encoding/json says %v: %s", no.Reason, no.Detail)
		} else if no != nil {
			return
		}
		fast.buf = nil
		if a, b := normal(fast), normal(slow); !reflect.DeepEqual(a, b) {
			t.Fatalf("scanned %+v\nencoding/json %+v", a, b)
		}
	})
}

// What the scanner accepts, encoding/json reads as the same event.
func FuzzEvent(f *testing.F) {
	f.Add([]byte(jsonb(f, sampleEvent())))
	fuzzSeeds(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		if !utf8.Valid(b) {
			return
		}
		var fast, slow event
		if !fast.scan(b) {
			return
		}
		if no := slow.unmarshal(b); no != nil {
			t.Fatalf("scanned, but encoding/json says %v: %s", no.Reason, no.Detail)
		}
		if a, b := normal(fast), normal(slow); !reflect.DeepEqual(a, b) {
			t.Fatalf("scanned %+v\nencoding/json %+v", a, b)
		}
	})
}

// normal gives every field as text, so that nil and empty are the same.
func normal(v any) map[string]string {
	out := map[string]string{}
	r := reflect.ValueOf(v)
	for i := range r.NumField() {
		if f := r.Field(i); f.Kind() == reflect.Slice {
			out[r.Type().Field(i).Name] = string(f.Bytes())
		} else {
			out[r.Type().Field(i).Name] = fmt.Sprint(f)
		}
	}
	return out
}

// Whatever comes in, Apply neither panics nor emits what cannot be written:
// every key has a place on its topic, every value can be read again, and a
// second look gives the same.
func FuzzApply(f *testing.F) {
	r := sampleRecord(f)
	f.Add(r.Key, r.Value, r.Partition, r.Offset)
	s := sealRecord(f)
	f.Add(s.Key, s.Value, s.Partition, s.Offset)
	f.Add("003f|like:u7:V9001", []byte(nil), 0, int64(0))
	core := testCore(f)
	topo, _ := topology.New(topology.DefaultConfig())
	f.Fuzz(func(t *testing.T, key string, value []byte, partition int, offset int64) {
		if partition < 0 || partition >= topo.Config.Shards {
			return
		}
		r := topology.Record{Topic: "tidemark.cdc", Key: key, Value: value, Partition: partition, Offset: offset, Timestamp: sampleTime}
		e := core.Apply(r)
		if again := core.Apply(r); !reflect.DeepEqual(e, again) {
			t.Fatalf("two looks differ:\n%+v\n%+v", e, again)
		}
		for _, em := range e.Emissions {
			checkEmission(t, topo, e, em)
		}
		if (e.Outcome == Quarantined) != (e.Reason != 0) {
			t.Fatalf("outcome %s with reason %v", e.Outcome, e.Reason)
		}
	})
}

func checkEmission(t *testing.T, topo *topology.Topology, e Effects, em Emission) {
	t.Helper()
	partitions := 0
	for _, s := range topo.Streams {
		if s.Topic == em.Topic {
			partitions = s.Partitions
		}
	}
	if partitions == 0 {
		t.Fatalf("topic %q is not in the topology", em.Topic)
	}
	at, err := topology.PartitionOf(em.Key, partitions)
	if err != nil {
		t.Fatalf("key has no place: %v", err)
	}
	if e.Outcome == Quarantined {
		q := decodeAs(t, em.Value, &tidemarkv1.Quarantined{})
		if !utf8.ValidString(q.Detail) || q.Reason != e.Reason {
			t.Fatalf("quarantined as %v: %q", q.Reason, q.Detail)
		}
		return
	}
	if em.Topic != topo.Topic(topology.BucketChanges) {
		return
	}
	if c := decodeAs(t, em.Value, &tidemarkv1.BucketChange{}).GetRelation(); c != nil {
		p, v, r, err := topology.ParseCountedKey(em.Key)
		if err != nil || p != at || p != int(c.Placement.Partition) || v != int(c.Placement.VirtualBucket) || r.User != c.UserId || r.Target != c.TargetId {
			t.Fatalf("key %q of %v: %v", em.Key, c, err)
		}
	}
}

func sealRecord(t testing.TB) topology.Record {
	t.Helper()
	return recordOf(t, envelopeOf(2, topology.AggregateSeal, "seal:4711", topology.TypeSealed, jsonb(t, topology.Seal{Seal: 4711, SealedAt: sampleTime})))
}
