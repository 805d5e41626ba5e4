package gokakit

import (
	"fmt"
	"slices"
	"testing"

	"github.com/tidemark/tidemark/internal/testenv"
	"github.com/tidemark/tidemark/topology"
)

// newerTopology is that of a version which reads one topic more in the
// projection's group, and writes one more.
func newerTopology(w *world) *topology.Topology {
	newer := *w.topo
	newer.Streams, newer.Groups = slices.Clone(newer.Streams), slices.Clone(newer.Groups)
	stream := func(name string, partitions int) {
		newer.Streams = append(newer.Streams, topology.Stream{Name: name, Topic: w.topo.Config.Prefix + "." + name, Partitions: partitions})
	}
	stream(newInput, 4)
	stream(newOutput, 2)
	for i, g := range newer.Groups {
		if g.Name == topology.ProjectionGroup {
			newer.Groups[i].Inputs = append(slices.Clone(g.Inputs), newInput)
			newer.Groups[i].Outputs = append(slices.Clone(g.Outputs), newOutput)
		}
	}
	return &newer
}

const newInput, newOutput = "more-changes", "more-counts"

func TestClaimsFit(t *testing.T) {
	inputs := []string{"a", "b"}
	for _, c := range []struct {
		claims map[string][]int32
		want   bool
	}{
		{nil, true}, // more members than partitions
		{map[string][]int32{"a": nil, "b": {}}, true},
		{map[string][]int32{"a": {1, 0}, "b": {0, 1}}, true},
		{map[string][]int32{"a": {0, 1}}, false},
		{map[string][]int32{"b": {0}}, false},
		{map[string][]int32{"a": {0}, "b": {0, 1}}, false},
		{map[string][]int32{"a": {0}, "b": {0}, "c": {0}}, false},
		{map[string][]int32{"a": {0}, "b": {0}, "c": {}}, true},
	} {
		if got := claimsFit(c.claims, inputs); got != c.want {
			t.Errorf("%v: %v", c.claims, got)
		}
	}
}

// A roll-out to a version with one more input and output, and back, in the
// middle of traffic (G18): what both versions read is counted all the time.
// What only the newer one reads waits, on the partitions of older members, and
// is read when they are newer: nothing is lost, nothing counted twice. A
// version whose topics are not there yet says so and does not join.
func TestG18MembersWithDifferentTopics(t *testing.T) {
	t.Parallel()
	w := worldAt(t, testenv.Kafka(t))
	newer := newerTopology(w)
	extra, out := newer.Topic(newInput), newer.Topic(newOutput)
	dirs := map[string]string{"one": t.TempDir(), "two": t.TempDir()}
	start := func(name string, topo *topology.Topology) *member {
		return w.start(func(c *ProcessorConfig) {
			c.Instance, c.StateDir, c.Topology = name, dirs[name], topo
			c.Handle = func(p *Partition, r Record) error {
				if r.Topic == extra {
					if err := p.Emit(out, topology.OnPartition(r.Partition%2, r.Key), r.Value); err != nil {
						return err
					}
				}
				return count(p, r)
			}
		})
	}
	more := 0 // records of each partition of the new input
	send := func() {
		w.send(10)
		for p := range 4 {
			key := fmt.Sprintf("%04x|x:a%d", p, more)
			w.sent[key] = 1
			w.produce(extra, p, key, []byte("1"))
		}
		more++
	}
	taken := func(topic string, want int64) error {
		offsets, err := w.admin.FetchOffsets(t.Context(), w.group)
		for p := range int32(4) {
			if o, _ := offsets.Lookup(topic, p); err == nil && o.At != want {
				err = fmt.Errorf("%s/%d: %d of %d committed", topic, p, o.At, want)
			}
		}
		return err
	}

	one, two := start("one", w.topo), start("two", w.topo)
	w.ready(one)
	w.ready(two)
	w.send(10)
	w.taken()

	two.stop()
	two = start("two", newer)
	eventuallyNamed(t, two.Ready, out, "tidemark topology create")
	w.send(10)
	w.taken()
	for topic, partitions := range map[string]int32{extra: 4, out: 2} {
		if _, err := w.admin.CreateTopic(t.Context(), partitions, 1, nil, topic); err != nil {
			t.Fatal(err)
		}
	}
	w.ready(two)

	send() // an older member beside a newer one
	w.taken()
	one.stop()
	one = start("one", newer)
	w.ready(one)
	send()
	w.taken()
	testenv.Eventually(t, soon, func() error { return taken(extra, int64(more)) })

	two.stop() // and back
	two = start("two", w.topo)
	w.ready(two)
	send()
	w.taken()
	two.stop()
	two = start("two", newer)
	w.ready(two)
	send()
	testenv.Eventually(t, soon, func() error { return taken(extra, int64(more)) })
	if d := w.counted(); d != "" {
		t.Error(d)
	}
	got := map[string]int{}
	for p := range 2 {
		for _, r := range w.log(out, p) {
			got[r.key]++
		}
	}
	if len(got) < 4*more {
		t.Errorf("%d records of the new input were emitted, sent were %d", len(got), 4*more)
	}
}
