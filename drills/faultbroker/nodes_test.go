package faultbroker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tidemark/tidemark/internal/testenv"
)

// A killed broker of three is reached by nobody, the others lead what it led
// and coordinate its groups, nothing that was acked is gone, and it comes back
// on its port.
func TestBrokerOfThree(t *testing.T) {
	b := serve(t, 0, 0, 0)
	ctx := t.Context()
	if len(slices.Compact(slices.Sorted(slices.Values(b.Addresses())))) != 3 {
		t.Fatalf("brokers at %v", b.Addresses())
	}
	cl := kafka(t, b, "member-1", kgo.SeedBrokers(b.Addresses()...), kgo.RecordPartitioner(kgo.RoundRobinPartitioner()), kgo.MetadataMinAge(100*time.Millisecond))
	admin := kadm.NewClient(cl)
	if _, err := admin.CreateTopic(ctx, 12, 3, nil, "t"); err != nil {
		t.Fatal(err)
	}
	leaders := func(others int, without int32) error { // what a client knows of them is some time old
		topics, err := admin.ListTopics(ctx, "t")
		by := map[int32]int{}
		for _, p := range topics["t"].Partitions {
			by[p.Leader]++
		}
		if len(by) != others || by[without] > 0 {
			err = errors.Join(err, fmt.Errorf("without broker %d partitions are led by %v", without, by))
		}
		return err
	}
	sent := 0
	send := func() {
		t.Helper()
		limited, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		for range 24 {
			if err := cl.ProduceSync(limited, kgo.StringRecord("x")).FirstErr(); err != nil {
				t.Fatal(err)
			}
			sent++
		}
		var offsets kadm.Offsets
		offsets.AddOffset("t", 0, int64(sent), -1)
		if err := admin.CommitAllOffsets(limited, "g", offsets); err != nil {
			t.Fatal(err)
		}
	}
	send()
	for node := range int32(3) {
		if err := b.tellNode(ctx, node, killNode); err != nil {
			t.Fatal(err)
		}
		alone := kafka(t, b, "nobody", kgo.SeedBrokers(b.Addresses()[node]))
		testenv.Eventually(t, 10*time.Second, func() error {
			limited, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			if alone.Ping(limited) == nil {
				return errors.New("a killed broker answers")
			}
			return nil
		})
		if err := b.tellNode(ctx, node, elect); err != nil {
			t.Fatal(err)
		}
		testenv.Eventually(t, 10*time.Second, func() error { return leaders(2, node) })
		send()
		if err := b.StartNode(ctx, node); err != nil {
			t.Fatal(err)
		}
		if err := alone.Ping(ctx); err != nil {
			t.Errorf("broker %d is not back: %v", node, err)
		}
		send()
	}
	testenv.Eventually(t, 10*time.Second, func() error {
		ends, err := admin.ListEndOffsets(ctx, "t")
		total := int64(0)
		ends.Each(func(o kadm.ListedOffset) { total += o.Offset })
		if err := errors.Join(err, ends.Error()); err != nil || total != int64(sent) {
			return fmt.Errorf("%d records of %d: %w", total, sent, err)
		}
		return nil
	})
	committed, err := admin.FetchOffsets(ctx, "g")
	if at, _ := committed.Lookup("t", 0); err != nil || at.At != int64(sent) {
		t.Errorf("offset %d committed, want %d: %v", at.At, sent, err)
	}
	for _, wrong := range []string{"/nodes/3/kill", "/nodes/x/kill", "/nodes/1/sing"} {
		if _, err := b.ask(ctx, "POST", wrong, nil); err == nil {
			t.Errorf("%s is accepted", wrong)
		}
	}
}

func TestPorts(t *testing.T) {
	for _, ports := range [][]int{{0}, {0, 0, 0}, {9092, 9093, 65535}} {
		got, err := ParsePorts(formatPorts(ports))
		if err != nil || !slices.Equal(got, ports) {
			t.Errorf("%v became %v, %v", ports, got, err)
		}
	}
	for _, wrong := range []string{"", "x", "1,,2", "65536", "-1"} {
		if _, err := ParsePorts(wrong); err == nil {
			t.Errorf("%q is accepted", wrong)
		}
	}
}
