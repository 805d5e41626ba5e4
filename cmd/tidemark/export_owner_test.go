package main

import (
	"errors"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
	"github.com/tidemark/tidemark/views"
)

// barrier has a barrier pass every partition of the reverse index.
func (r *likersRig) barrier(id string, seal uint64) {
	r.t.Helper()
	value, err := (&tidemarkv1.LikerChange{Body: &tidemarkv1.LikerChange_Watermark{Watermark: &tidemarkv1.SourceWatermark{Seal: seal, SealedAtUs: 1, BarrierId: id}}}).MarshalVT()
	if err != nil {
		r.t.Fatal(err)
	}
	var records []*kgo.Record
	for p := range r.topo.Config.LikerPartitions {
		records = append(records, &kgo.Record{Topic: r.topo.Topic(topology.LikerChanges), Key: []byte(topology.WatermarkKey(p, 0)), Value: value})
	}
	if err := r.kafka.ProduceSync(r.t.Context(), records...).FirstErr(); err != nil {
		r.t.Fatal(err)
	}
}

// The owners tell the list at the barrier while others come and go, from its
// beginning or from a place in it; a new owner says that it is gone, never
// another list; and before the barrier has passed nothing is told.
func TestAListAtABarrierGoesWithItsOwner(t *testing.T) {
	r := newLikersRig(t, 0)
	dir := t.TempDir()
	stop := r.process("1", dir)
	r.fill()
	lists, err := views.NewLikersAt(views.LikersConfig{Client: r.client, Topology: r.topo, Reverse: r.reverse, Patience: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer lists.Stop()
	list := views.ListAt{Barrier: "b1", Kind: topology.Like, Target: "V1"}
	walk := func(l *views.LikersAt, list views.ListAt, after *views.Liker) (all []views.Liker, err error) {
		err = l.Walk(t.Context(), list, after, func(some []views.Liker) error { all = append(all, some...); return nil })
		return all, err
	}
	if err := lists.Open(t.Context(), list); err != nil {
		t.Fatal(err)
	}
	impatient, err := views.NewLikersAt(views.LikersConfig{Client: r.client, Topology: r.topo, Reverse: r.reverse, Patience: 300 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer impatient.Stop()
	if all, err := walk(impatient, list, nil); err == nil || errors.Is(err, views.ErrListGone) || len(all) > 0 {
		t.Errorf("before the barrier: %d likers, %v", len(all), err)
	}
	r.barrier("b1", 1)
	endChurn := r.churn()
	all, err := walk(lists, list, nil)
	if err != nil {
		t.Fatal(err)
	}
	again, err := walk(lists, list, &all[700])
	if err != nil {
		t.Fatal(err)
	}
	endChurn()
	if len(all) != stableLikers || len(again) != stableLikers-701 {
		t.Errorf("%d likers, %d behind the 701st, want %d in all", len(all), len(again), stableLikers)
	}
	for i, l := range again {
		if l != all[701+i] {
			t.Fatalf("liker %d is %+v, and %+v when the list is read on", 701+i, all[701+i], l)
		}
	}
	if _, err := walk(lists, views.ListAt{Barrier: "b1", Kind: topology.Like, Target: "V2"}, nil); err == nil {
		t.Error("another target's list is told")
	}
	stop()
	r.process("1", dir)
	if all, err := walk(lists, list, nil); !errors.Is(err, views.ErrListGone) {
		t.Errorf("of a new owner: %d likers, %v", len(all), err)
	}
	if err := lists.Close(t.Context(), list); err != nil {
		t.Errorf("closing what is gone: %v", err)
	}
}
