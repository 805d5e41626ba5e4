package intake

import (
	"bytes"
	"reflect"
	"testing"

	"github.com/tidemark/tidemark/topology"
)

// Kafka Connect writes characters beyond U+FFFF as escaped surrogates; that is
// the same record, and the usual shape.
func TestConnectsEscapesAreTheUsualShape(t *testing.T) {
	e := sampleEvent()
	e.UserID = "😀é"
	e.AggregateKey = topology.Relation{Kind: topology.Like, User: e.UserID, Target: e.TargetID}.Key()
	plain := recordOf(t, envelopeOf(e.SourceShard, topology.AggregateRelation, e.AggregateKey, topology.TypeRelationChanged, jsonb(t, e)))
	escaped := plain
	escaped.Value = bytes.ReplaceAll(plain.Value, []byte("😀"), []byte(`\uD83D\uDE00`))
	core := testCore(t)
	a, b := core.Apply(plain), core.Apply(escaped)
	if a.Outcome != Changed || a.Slow || b.Slow || !reflect.DeepEqual(a, b) {
		t.Errorf("effects\n%+v\nof the plain record,\n%+v\nof the escaped one", a, b)
	}
	escaped.Value = bytes.ReplaceAll(plain.Value, []byte("😀"), []byte(`\uD83D`))
	if e := core.Apply(escaped); e.Outcome != Quarantined {
		t.Errorf("half a character: %+v", e)
	}
}
