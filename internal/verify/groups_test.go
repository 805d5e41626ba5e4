package verify

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tidemark/tidemark/internal/kafkaadmin"
	"github.com/tidemark/tidemark/internal/testenv"
	"github.com/tidemark/tidemark/topology"
)

// A deployment without a cache and without privacy rules is compared, too; one
// without those who count or index is waited for.
func TestWaitGroupsWaitsForWhatIsCompared(t *testing.T) {
	brokers := testenv.Kafka(t)
	topo := testenv.Topology(t, nil)
	testenv.CreateTopics(t, brokers, topo)
	client, err := kafkaadmin.Client(brokers, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	write := func(stream, key string) {
		t.Helper()
		r := &kgo.Record{Topic: topo.Topic(stream), Key: []byte(key), Value: []byte("x")}
		if err := client.ProduceSync(ctx, r).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	write(topology.Facts, "0000|like:u1:V1")
	write(topology.PrivacyEvents, "account:u1")
	if err := WaitGroups(ctx, kadm.NewClient(client), topo); err != nil {
		t.Error(err)
	}
	write(topology.LikerChanges, topology.WatermarkKey(0, 0))
	soon, cancelSoon := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancelSoon()
	if err := WaitGroups(soon, kadm.NewClient(client), topo); err == nil || !strings.Contains(err.Error(), topo.Group(topology.LikersGroup).ID) {
		t.Errorf("got %v", err)
	}
}
