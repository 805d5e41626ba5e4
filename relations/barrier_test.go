package relations

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/tidemark/tidemark/internal/testenv"
	"github.com/tidemark/tidemark/topology"
)

// busy sets relations until stop is called.
func busy(t *testing.T, s *Store, writers int) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	for w := range writers {
		done.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				state := topology.Liked
				if n%3 == 2 {
					state = topology.Unliked
				}
				r := relation(topology.Like, fmt.Sprintf("u%d-%d", w, n%40), fmt.Sprintf("V%d", n%7))
				if _, err := s.Set(ctx, command(fmt.Sprintf("op-%d-%d", w, n), r, state)); err != nil && ctx.Err() == nil {
					t.Error(err)
					return
				}
			}
		})
	}
	return func() { cancel(); done.Wait() }
}

// The snapshot of a barrier and what stands before its seal in the outbox are
// the same facts, to the last version, while others write.
func TestABarriersSnapshotIsWhatStandsBeforeItsSeal(t *testing.T) {
	urls := migrated(t, 2)
	s := openAt(t, urls, nil)
	for _, url := range urls {
		startSealer(t, url, nil)
	}
	stop := busy(t, s, 4)
	defer stop()
	for range 5 {
		b, err := s.Barrier(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for shard, url := range urls {
			cut := b.Shards[shard]
			have := map[topology.Relation]Fact{}
			if err := b.Facts(t.Context(), shard, func(f Fact) error { have[f.Relation] = f; return nil }); err != nil {
				t.Fatal(err)
			}
			want := map[topology.Relation]uint64{}
			for _, row := range outbox(t, url) {
				r, _ := topology.ParseRelationKey(row.key)
				if row.id < cut.OutboxID {
					want[r] = row.event.RelationVersion
				}
			}
			if len(have) != len(want) {
				t.Fatalf("shard %d: the snapshot has %d facts, the outbox before the seal %d", shard, len(have), len(want))
			}
			for r, f := range have {
				if f.Version != want[r] {
					t.Fatalf("shard %d: %s is v%d in the snapshot, v%d before the seal", shard, r.Key(), f.Version, want[r])
				}
			}
			checkSealOf(t, url, b.ID, cut)
		}
		b.Close()
		b.Close()
	}
}

func checkSealOf(t *testing.T, url, id string, cut ShardBarrier) {
	t.Helper()
	rows, _ := seals(t, url)
	for _, r := range rows {
		if r.id == cut.OutboxID {
			if r.seal.BarrierID != id || r.seal.Seal != cut.Seal || !r.seal.SealedAt.Equal(cut.SealedAt) || cut.LSN == 0 || cut.Snapshot == "" {
				t.Errorf("the seal's row has %+v, the barrier %+v", r.seal, cut)
			}
			return
		}
	}
	t.Errorf("the outbox has no row %d", cut.OutboxID)
}

// Other sessions can look at the snapshot while the barrier is open.
func TestABarriersSnapshotCanBeImported(t *testing.T) {
	urls := migrated(t, 1)
	s := openAt(t, urls, nil)
	mustSet(t, s, command("a", relation(topology.Like, "u", "V1"), topology.Liked))
	b, err := s.Barrier(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	mustSet(t, s, command("b", relation(topology.Like, "u", "V2"), topology.Liked))
	other := dial(t, urls[0])
	tx, err := other.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	var n int
	if _, err := tx.Exec(t.Context(), "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SET TRANSACTION SNAPSHOT '"+b.Shards[0].Snapshot+"'"); err != nil {
		t.Fatal(err)
	}
	if err := tx.QueryRow(t.Context(), "SELECT count(*) FROM relation").Scan(&n); err != nil || n != 1 {
		t.Errorf("the imported snapshot has %d facts, %v", n, err)
	}
}

// A transaction that takes long delays a barrier and no writer.
func TestABarrierWaitsForALongTransaction(t *testing.T) {
	urls := migrated(t, 1)
	s := openAt(t, urls, nil)
	long := dial(t, urls[0])
	exec := func(sql string) {
		if _, err := long.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	exec("begin; LOCK TABLE outbox IN ROW EXCLUSIVE MODE")
	limited, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if b, err := s.Barrier(limited); err == nil {
		b.Close()
		t.Fatal("took a barrier through a transaction that writes")
	}
	got := make(chan error, 1)
	go func() {
		b, err := s.Barrier(context.Background())
		if err == nil {
			b.Close()
		}
		got <- err
	}()
	for n := range 20 {
		mustSet(t, s, command(fmt.Sprint("op", n), relation(topology.Like, "u", fmt.Sprint("V", n)), topology.Liked))
	}
	exec("commit")
	testenv.Eventually(t, 20*time.Second, func() error {
		select {
		case err := <-got:
			got <- err
			return err
		default:
			return errors.New("no barrier yet")
		}
	})
}

func TestBarrierNamesWhatIsWrong(t *testing.T) {
	s := open(t, 1, nil)
	b, err := s.Barrier(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b.Close()
	for _, shard := range []int{-1, 0, 1} {
		if err := b.Facts(t.Context(), shard, nil); !errors.Is(err, ErrInvalid) {
			t.Errorf("shard %d of a closed barrier: %v", shard, err)
		}
	}
	s.Close()
	if _, err := s.Barrier(t.Context()); err == nil {
		t.Error("a closed store takes barriers")
	}
}
