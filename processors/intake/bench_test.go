package intake

import (
	"testing"
)

func BenchmarkApply(b *testing.B) {
	c, r := testCore(b), sampleRecord(b)
	b.SetBytes(int64(len(r.Value)))
	b.ReportAllocs()
	for b.Loop() {
		if e := c.Apply(r); e.Outcome != Changed || e.Slow {
			b.Fatalf("%s, slow %v", e.Outcome, e.Slow)
		}
	}
}

// What encoding/json alone would cost: the envelope and the event in it.
func BenchmarkEncodingJSON(b *testing.B) {
	r := sampleRecord(b)
	var e envelope
	var v event
	b.SetBytes(int64(len(r.Value)))
	b.ReportAllocs()
	for b.Loop() {
		if no := e.unmarshal(r.Value); no != nil {
			b.Fatal(no)
		}
		if no := v.unmarshal(e.payload); no != nil {
			b.Fatal(no)
		}
	}
}

func BenchmarkScan(b *testing.B) {
	r := sampleRecord(b)
	var e envelope
	var v event
	b.SetBytes(int64(len(r.Value)))
	b.ReportAllocs()
	for b.Loop() {
		if slow, no := e.read(r.Value); slow || no != nil {
			b.Fatal(no)
		}
		if slow, no := v.read(e.payload); slow || no != nil {
			b.Fatal(no)
		}
	}
}
