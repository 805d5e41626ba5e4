package likers

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tidemark/tidemark/internal/gokakit"
	"github.com/tidemark/tidemark/internal/testenv"
	"github.com/tidemark/tidemark/topology"
)

// shownOffset is what pages of a partition include.
func shownOffset(t *testing.T, part *gokakit.Partition) (offset int64) {
	t.Helper()
	err := part.Snapshot(func(s *gokakit.Snapshot) (err error) {
		offset, err = s.Offset()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return offset
}

// takenOver has acked rows in RAM that pages do not show yet, as after the log
// was read, then an owner take the partition over, and says up to where pages
// showed it when the owner began to answer, and up to where rows were acked.
func takenOver(t *testing.T, weak gokakit.Weakness) (shown, acked int64) {
	const users = 3000
	brokers := testenv.Kafka(t)
	topo := testTopology(testenv.Prefix(t))
	testenv.CreateTopics(t, brokers, topo)
	cl := producer(t, brokers)
	cfg := testConfig(brokers, topo, t.TempDir(), 0)
	cfg.ShowInterval, cfg.WriteBehind = time.Hour, 64<<20 // nothing is shown by itself
	l, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	stop := start(t, l)
	defer stop()
	var records []*kgo.Record
	partition, n := -1, 0
	for i := 0; n < users; i++ {
		c := like(l.cfg.Reverse, fmt.Sprintf("u%d", i), "V1", 1, topology.Liked, int64(1+i))
		if partition < 0 {
			partition = int(c.Reverse.Partition)
		}
		if int(c.Reverse.Partition) == partition {
			records = append(records, likerRecord(t, topo, c))
			n++
		}
	}
	testenv.Eventually(t, time.Minute, func() error {
		if l.served(partition) == nil {
			return fmt.Errorf("partition %d is not served", partition)
		}
		return nil
	})
	part := l.served(partition)
	produce(t, cl, records...)
	testenv.Eventually(t, time.Minute, func() error {
		if part.AckedOffset() < users-1 {
			return fmt.Errorf("acked up to %d", part.AckedOffset())
		}
		return nil
	})
	if at := shownOffset(t, part); at >= users-1 {
		t.Fatalf("pages show all already, up to %d", at)
	}
	other := &Likers{cfg: l.cfg, owned: map[int]*gokakit.Partition{}, warm: map[int]*gokakit.Partition{}}
	other.cfg.Weakness = weak
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- other.newShower(part).Run(ctx) }()
	for other.served(partition) == nil && ctx.Err() == nil {
		runtime.Gosched() // not a sleep: the moment must not be missed
	}
	shown = shownOffset(t, part)
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if other.served(partition) != nil {
		t.Error("who has let go still answers")
	}
	return shown, users - 1
}

// An owner answers only when pages show all that was acked when it took over.
func TestOwnerCatchesUpBeforeItAnswers(t *testing.T) {
	if shown, acked := takenOver(t, 0); shown < acked {
		t.Errorf("the first answer includes offset %d of %d", shown, acked)
	}
}

// That test sees an owner that answers at once.
func TestCatchUpCanFail(t *testing.T) {
	if shown, acked := takenOver(t, gokakit.WithoutCatchUp); shown >= acked {
		t.Errorf("without catching up the first answer includes offset %d of %d", shown, acked)
	}
}
