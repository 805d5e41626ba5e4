package projection

import (
	"testing"

	"github.com/tidemark/tidemark/internal/quarantine"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// A record that does not belong where it was found is set aside by name, and
// only the partition of a bucket's current route counts it (I12, G13).
func TestDecodeRefuses(t *testing.T) {
	m := topology.NewManifest(7, 2, 1, topology.DefaultBucketSpace(), 8)
	rel := topology.Relation{Kind: topology.Like, User: "u7", Target: "V9001"}
	good := func() (*tidemarkv1.RelationChange, topology.Record) {
		c := change(1, topology.Liked)
		c.UserId, c.TargetId, c.Placement = rel.User, rel.Target, m.Place(rel)
		return c, topology.Record{Key: topology.CountedKey(int(c.Placement.Partition), int(c.Placement.VirtualBucket), rel), Partition: int(c.Placement.Partition)}
	}
	for name, test := range map[string]struct {
		spoil func(*tidemarkv1.RelationChange, *topology.Record)
		want  quarantine.Reason
	}{
		"right":                  {func(*tidemarkv1.RelationChange, *topology.Record) {}, 0},
		"unknown kind":           {func(c *tidemarkv1.RelationChange, _ *topology.Record) { c.Kind = 9 }, quarantine.UnknownKind},
		"state of other kind":    {func(c *tidemarkv1.RelationChange, _ *topology.Record) { c.State = tidemarkv1.State(topology.Following) }, quarantine.UnknownState},
		"hidden by nobody known": {func(c *tidemarkv1.RelationChange, _ *topology.Record) { c.Hidden, c.HiddenReason = 257, "x" }, quarantine.InvalidHiding},
		"hidden without why":     {func(c *tidemarkv1.RelationChange, _ *topology.Record) { c.Hidden = tidemarkv1.Hidden_HIDDEN_RISK }, quarantine.InvalidHiding},
		"hidden though it ended": {func(c *tidemarkv1.RelationChange, _ *topology.Record) {
			c.State, c.Hidden, c.HiddenReason = tidemarkv1.State(topology.Unliked), tidemarkv1.Hidden_HIDDEN_RISK, "x"
		}, quarantine.InvalidHiding},
		"version 0":           {func(c *tidemarkv1.RelationChange, _ *topology.Record) { c.RelationVersion = 0 }, quarantine.InvalidVersion},
		"no placement":        {func(c *tidemarkv1.RelationChange, _ *topology.Record) { c.Placement = nil }, quarantine.MalformedRecord},
		"found elsewhere":     {func(_ *tidemarkv1.RelationChange, r *topology.Record) { r.Partition = (r.Partition + 1) % 8 }, quarantine.WrongPartition},
		"key of another user": {func(_ *tidemarkv1.RelationChange, r *topology.Record) { r.Key += "x" }, quarantine.KeyMismatch},
		"key of Java's hash":  {func(_ *tidemarkv1.RelationChange, r *topology.Record) { r.Key = rel.Key() }, quarantine.KeyMismatch},
		"old route epoch":     {func(c *tidemarkv1.RelationChange, _ *topology.Record) { c.Placement.RouteEpoch = 0 }, quarantine.RouteEpochMismatch},
		"other generation":    {func(c *tidemarkv1.RelationChange, _ *topology.Record) { c.Placement.Generation = 1 }, quarantine.RouteEpochMismatch},
		"other bucket space":  {func(c *tidemarkv1.RelationChange, _ *topology.Record) { c.Placement.BucketSpace = 9 }, quarantine.RouteEpochMismatch},
		"bucket out of range": {func(c *tidemarkv1.RelationChange, r *topology.Record) {
			c.Placement.VirtualBucket = 5000
			r.Key = topology.CountedKey(r.Partition, 5000, rel)
		}, quarantine.RouteEpochMismatch},
	} {
		t.Run(name, func(t *testing.T) {
			c, r := good()
			test.spoil(c, &r)
			value, err := (&tidemarkv1.BucketChange{Body: &tidemarkv1.BucketChange_Relation{Relation: c}}).MarshalVT()
			if err != nil {
				t.Fatal(err)
			}
			r.Value = value
			expectRefusal(t, m, r, test.want)
		})
	}
	expectRefusal(t, m, topology.Record{Key: "k"}, quarantine.NullPayload)
	expectRefusal(t, m, topology.Record{Key: "k", Value: []byte{0xff}}, quarantine.MalformedRecord)
	expectRefusal(t, m, topology.Record{Key: "k", Value: []byte{}}, quarantine.MalformedRecord)
}

func expectRefusal(t *testing.T, m topology.Manifest, r topology.Record, want quarantine.Reason) {
	t.Helper()
	var b tidemarkv1.BucketChange
	no := decode(m, r, &b)
	switch {
	case want == 0 && no != nil:
		t.Fatalf("refused: %s", no.Detail)
	case want != 0 && (no == nil || no.Reason != want):
		t.Fatalf("got %+v, want %v", no, want)
	}
}
