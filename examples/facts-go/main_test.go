package main

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/tidemark/tidemark/internal/kafkaadmin"
	"github.com/tidemark/tidemark/internal/testenv"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func fact(kind tidemarkv1.Kind, user, target string, version uint64, state tidemarkv1.State) *tidemarkv1.RelationChange {
	return &tidemarkv1.RelationChange{Kind: kind, UserId: user, TargetId: target, RelationVersion: version, State: state, OutboxId: int64(100 * version)}
}

func encode(t *testing.T, change *tidemarkv1.RelationChange) []byte {
	t.Helper()
	b, err := proto.Marshal(change)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Version 12 before 11, and copies of both: 12 stands.
func TestHigherVersionStands(t *testing.T) {
	v11 := encode(t, fact(tidemarkv1.Kind_KIND_LIKE, "u7", "V9001", 11, tidemarkv1.State_STATE_LIKED))
	v12 := encode(t, fact(tidemarkv1.Kind_KIND_LIKE, "u7", "V9001", 12, tidemarkv1.State_STATE_UNLIKED))
	all := relations{}
	for i, step := range []struct {
		value []byte
		want  outcome
	}{{v12, applied}, {v11, old}, {v12, old}, {nil, unusable}, {v11, old}, {[]byte("\xff"), unusable}, {[]byte{}, unusable}} {
		if got := all.apply(step.value); got != step.want {
			t.Errorf("record %d: %s, want %s", i, got, step.want)
		}
	}
	want := current{12, tidemarkv1.State_STATE_UNLIKED}
	if got := all[relation{tidemarkv1.Kind_KIND_LIKE, "V9001", "u7"}]; got != want || len(all) != 1 {
		t.Errorf("%v, want %v alone", all, want)
	}
}

// What facts holds in this test, in order of versions; troubled mixes it up.
const troubledWant = "favorite\tV9001\tu7\t1\tFAVORITED\n" +
	"follow\tü赞\ta:b|c\t2\tUNFOLLOWED\n" +
	"like\tV9001\tu7\t12\tUNLIKED\n" +
	"like\tV9001\tu8\t3\t99\n" +
	"like\tV9002\tu7\t18446744073709\tLIKED\n"

// troubled writes a stream that has all the trouble that a reader must bear:
// copies, lower versions after higher ones and on both sides of a jump,
// tombstones, values that are no facts, fields and states that this version
// does not know, and headers. It gives the topic.
func troubled(t *testing.T, brokers []string) string {
	t.Helper()
	topo := testenv.Topology(t, nil)
	testenv.CreateTopics(t, brokers, topo)
	topic := topo.Topic(topology.Facts)
	client, err := kafkaadmin.Client(brokers, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	const (
		like, favorite, follow = tidemarkv1.Kind_KIND_LIKE, tidemarkv1.Kind_KIND_FAVORITE, tidemarkv1.Kind_KIND_FOLLOW
		liked, unliked         = tidemarkv1.State_STATE_LIKED, tidemarkv1.State_STATE_UNLIKED
	)
	var records []*kgo.Record
	add := func(shard int, change *tidemarkv1.RelationChange) {
		key := topology.OnPartition(shard, topology.Relation{Kind: topology.Kind(change.Kind), User: change.UserId, Target: change.TargetId}.Key())
		records = append(records, &kgo.Record{Topic: topic, Partition: int32(shard), Key: []byte(key), Value: encode(t, change)})
	}
	for v := uint64(1); v <= 11; v++ {
		add(3, fact(like, "u7", "V9001", v, []tidemarkv1.State{unliked, liked}[v%2]))
	}
	add(3, fact(like, "u7", "V9001", 12, unliked))
	add(3, fact(favorite, "u7", "V9001", 1, tidemarkv1.State_STATE_FAVORITED))
	add(0, fact(like, "u8", "V9001", 1, liked))
	add(0, fact(like, "u8", "V9001", 3, 99)) // a state of a later version
	add(3, fact(like, "u7", "V9002", 7, unliked))
	add(3, fact(like, "u7", "V9002", 18446744073709, liked))
	add(1, fact(follow, "a:b|c", "ü赞", 1, tidemarkv1.State_STATE_FOLLOWING))
	add(1, fact(follow, "a:b|c", "ü赞", 2, tidemarkv1.State_STATE_UNFOLLOWED))
	for _, r := range records {
		again := *r // a copy, as of a later version and with headers that nobody has told of
		again.Value = protowire.AppendString(protowire.AppendTag(bytes.Clone(r.Value), 4000, protowire.BytesType), "new")
		again.Headers = []kgo.RecordHeader{{Key: "later", Value: []byte("1")}, {Key: "tidemark-heal", Value: []byte("3:12")}}
		tombstone := kgo.Record{Topic: topic, Partition: r.Partition, Key: r.Key}
		records = append(records, &again, &tombstone)
	}
	for _, junk := range []string{"\xff\xff", "", "{}"} {
		records = append(records, &kgo.Record{Topic: topic, Partition: 2, Key: []byte("0002|junk"), Value: []byte(junk)})
	}
	shuffle := rand.New(rand.NewPCG(1, 2)) // the same each time
	shuffle.Shuffle(len(records), func(i, j int) { records[i], records[j] = records[j], records[i] })
	// The last of all is the lowest version, so that a reader by offset is wrong.
	add(3, fact(like, "u7", "V9001", 11, liked))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := client.ProduceSync(ctx, records...).FirstErr(); err != nil {
		t.Fatal(err)
	}
	return topic
}

func TestTroubledStream(t *testing.T) {
	brokers := testenv.Kafka(t)
	topic := troubled(t, brokers)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var log strings.Builder
	all, err := read(ctx, brokers, topic, &log)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := all.print(&out); err != nil {
		t.Fatal(err)
	}
	if out.String() != troubledWant {
		t.Errorf("got\n%swant\n%s\n%s", out.String(), troubledWant, log.String())
	}
}

// An empty topic and one that is not there end the reading, not hang it.
func TestNothingToRead(t *testing.T) {
	brokers := testenv.Kafka(t)
	topo := testenv.Topology(t, nil)
	testenv.CreateTopics(t, brokers, topo)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if all, err := read(ctx, brokers, topo.Topic(topology.Facts), io.Discard); err != nil || len(all) > 0 {
		t.Errorf("an empty topic gives %v, %v", all, err)
	}
	if _, err := read(ctx, brokers, topo.Topic(topology.Facts)+".none", os.Stderr); err == nil {
		t.Error("a topic that is not there is read without an error")
	}
}
