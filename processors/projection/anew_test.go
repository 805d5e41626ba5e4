package projection

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/tidemark/tidemark/internal/testenv"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// Offsets of bucket-changes begin again when the topic was deleted and made
// anew. A change that comes then is counted, whatever offsets the buckets have
// seen before.
func TestCountsAfterBucketChangesWasMadeAnew(t *testing.T) {
	topo := testTopology(testenv.Prefix(t))
	brokers := testenv.Kafka(t)
	testenv.CreateTopics(t, brokers, topo)
	cl := producer(t, brokers)
	dir := t.TempDir()
	m := testManifest(topo)
	rel := topology.Relation{Kind: topology.Like, User: "u7", Target: "V9001"}
	facts := map[topology.Relation]*tidemarkv1.RelationChange{}
	send := func(version uint64, state topology.State) {
		c := change(version, state)
		c.UserId, c.TargetId, c.Placement = rel.User, rel.Target, m.Place(rel)
		facts[rel] = c
		if err := cl.ProduceSync(t.Context(), bucketRecord(topo, c)).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	during := func(do func()) {
		p, err := New(testConfig(brokers, topo, dir, 0))
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); _ = p.Run(ctx) }()
		do()
		stop()
		<-done
	}
	awaitEqual := func() {
		testenv.Eventually(t, 20*time.Second, func() error {
			if d := difference(t, cl, brokers, topo, facts); d != "" {
				return fmt.Errorf("%s", d)
			}
			return nil
		})
	}
	during(func() {
		for v := range uint64(9) {
			send(v+1, []topology.State{topology.Liked, topology.Unliked}[v%2])
		}
		awaitEqual()
	})
	admin := kadm.NewClient(cl)
	topic := topo.Topic(topology.BucketChanges)
	if _, err := admin.DeleteTopics(t.Context(), topic); err != nil {
		t.Fatal(err)
	}
	testenv.CreateTopics(t, brokers, topo)
	cl = producer(t, brokers) // the old client knows the old topic
	send(10, topology.Unliked)
	during(awaitEqual)
}
