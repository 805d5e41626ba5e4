package likers

import (
	"fmt"
	"testing"

	"github.com/tidemark/tidemark/internal/quarantine"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

var generation = topology.NewReverseGeneration(3, 8, 16)

// placed is a change at its place, and the record that carries it.
func placed(c *tidemarkv1.RelationChange) topology.Record {
	rel := topology.Relation{Kind: topology.Kind(c.Kind), User: c.UserId, Target: c.TargetId}
	c.Reverse = generation.Place(rel)
	return topology.Record{Key: topology.LikerKey(c.Reverse, rel.Key()), Partition: int(c.Reverse.Partition)}
}

func changeValue(t testing.TB, c *tidemarkv1.RelationChange) []byte {
	t.Helper()
	value, err := (&tidemarkv1.LikerChange{Body: &tidemarkv1.LikerChange_Relation{Relation: c}}).MarshalVT()
	if err != nil {
		t.Fatal(err)
	}
	return value
}

// A record that does not belong where it was found is set aside by name: no
// code and no generation but its own indexes it (I15, G13).
func TestI15DecodeRefuses(t *testing.T) {
	other := topology.NewReverseGeneration(3, 8, 32)
	for name, test := range map[string]struct {
		spoil func(*tidemarkv1.RelationChange, *topology.Record)
		want  quarantine.Reason
	}{
		"right":               {func(*tidemarkv1.RelationChange, *topology.Record) {}, 0},
		"unknown kind":        {func(c *tidemarkv1.RelationChange, _ *topology.Record) { c.Kind = 9 }, quarantine.UnknownKind},
		"state of other kind": {func(c *tidemarkv1.RelationChange, _ *topology.Record) { c.State = tidemarkv1.State(topology.Following) }, quarantine.UnknownState},
		"no user":             {func(c *tidemarkv1.RelationChange, _ *topology.Record) { c.UserId = "" }, quarantine.InvalidID},
		"NUL in the target":   {func(c *tidemarkv1.RelationChange, _ *topology.Record) { c.TargetId = "a\x00b" }, quarantine.InvalidID},
		"version 0":           {func(c *tidemarkv1.RelationChange, _ *topology.Record) { c.RelationVersion = 0 }, quarantine.InvalidVersion},
		"no time":             {func(c *tidemarkv1.RelationChange, _ *topology.Record) { c.StateChangedAtUs = 0 }, quarantine.InvalidTime},
		"time before 1970":    {func(c *tidemarkv1.RelationChange, _ *topology.Record) { c.StateChangedAtUs = -1 }, quarantine.InvalidTime},
		"no placement":        {func(c *tidemarkv1.RelationChange, _ *topology.Record) { c.Reverse = nil }, quarantine.MalformedRecord},
		"other generation":    {func(c *tidemarkv1.RelationChange, _ *topology.Record) { c.Reverse.Generation = 2 }, quarantine.GenerationMismatch},
		"shard of another R": {func(c *tidemarkv1.RelationChange, r *topology.Record) {
			for i := 0; other.Shard(c.UserId) < 16; i++ {
				c.UserId = fmt.Sprint("u", i)
			}
			rel := topology.Relation{Kind: topology.Like, User: c.UserId, Target: c.TargetId}
			c.Reverse = other.Place(rel)
			*r = topology.Record{Key: topology.LikerKey(c.Reverse, rel.Key()), Partition: int(c.Reverse.Partition)}
		}, quarantine.GenerationMismatch},
		"another partition": {func(c *tidemarkv1.RelationChange, r *topology.Record) {
			c.Reverse.Partition = (c.Reverse.Partition + 1) % 8
			r.Partition = int(c.Reverse.Partition)
		}, quarantine.GenerationMismatch},
		"found elsewhere":     {func(_ *tidemarkv1.RelationChange, r *topology.Record) { r.Partition = (r.Partition + 1) % 8 }, quarantine.WrongPartition},
		"key of another user": {func(_ *tidemarkv1.RelationChange, r *topology.Record) { r.Key += "x" }, quarantine.KeyMismatch},
		"key of Java's hash":  {func(_ *tidemarkv1.RelationChange, r *topology.Record) { r.Key = "like:u7:V9001" }, quarantine.KeyMismatch},
	} {
		t.Run(name, func(t *testing.T) {
			c := change(1, topology.Liked)
			r := placed(c)
			test.spoil(c, &r)
			r.Value = changeValue(t, c)
			expectRefusal(t, r, test.want)
		})
	}
	expectRefusal(t, topology.Record{Key: "k"}, quarantine.NullPayload)
	expectRefusal(t, topology.Record{Key: "k", Value: []byte{0xff}}, quarantine.MalformedRecord)
	expectRefusal(t, topology.Record{Key: "k", Value: []byte{}}, quarantine.MalformedRecord)
}

func TestDecodeRefusesWatermarks(t *testing.T) {
	for name, test := range map[string]struct {
		key       string
		partition int
		seal      uint64
		want      quarantine.Reason
	}{
		"right":           {topology.WatermarkKey(5, 2), 5, 9, 0},
		"another shard":   {topology.WatermarkKey(5, 1), 5, 9, quarantine.KeyMismatch},
		"no watermark":    {topology.CheckpointKey(5), 5, 9, quarantine.KeyMismatch},
		"found elsewhere": {topology.WatermarkKey(5, 2), 6, 9, quarantine.WrongPartition},
		"seal 0":          {topology.WatermarkKey(5, 2), 5, 0, quarantine.InvalidVersion},
	} {
		t.Run(name, func(t *testing.T) {
			value, err := (&tidemarkv1.LikerChange{Body: &tidemarkv1.LikerChange_Watermark{Watermark: &tidemarkv1.SourceWatermark{Shard: 2, Seal: test.seal}}}).MarshalVT()
			if err != nil {
				t.Fatal(err)
			}
			expectRefusal(t, topology.Record{Key: test.key, Partition: test.partition, Value: value}, test.want)
		})
	}
}

func expectRefusal(t *testing.T, r topology.Record, want quarantine.Reason) {
	t.Helper()
	no := decode(generation, r, new(tidemarkv1.LikerChange))
	switch {
	case want == 0 && no != nil:
		t.Fatalf("refused: %s", no.Detail)
	case want != 0 && (no == nil || no.Reason != want):
		t.Fatalf("got %+v, want %v", no, want)
	}
}
