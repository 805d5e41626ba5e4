package relations

import (
	"fmt"
	"testing"

	"github.com/tidemark/tidemark/topology"
)

// What lies beyond a position is told by the seals around it.
func TestBacklogBeyondAPosition(t *testing.T) {
	urls := migrated(t, 1)
	s, o := openAt(t, urls, nil), openOutbox(t, urls)
	if written, err := o.Written(t.Context(), 0); err != nil || written {
		t.Fatalf("a new outbox was written: %v, %v", written, err)
	}
	ops := 0
	write := func(n int) {
		t.Helper()
		for range n {
			ops++
			mustSet(t, s, command(fmt.Sprint("op", ops), relation(topology.Like, fmt.Sprint("u", ops), "V"), topology.Liked))
		}
	}
	cut := func() ShardBarrier {
		t.Helper()
		b, err := s.Barrier(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		b.Close()
		return b.Shards[0]
	}
	write(3)
	one := cut()
	write(2)
	two := cut()

	below, err := o.Backlog(t.Context(), 0, one.LSN-1)
	if err != nil || below.Covered != 0 || below.FromID != 1 || !below.Rows || below.Oldest <= 0 || below.Behind <= 0 || below.Bytes <= 0 {
		t.Errorf("below the first seal: %+v, %v", below, err)
	}
	if below.Oldest < below.Behind {
		t.Errorf("the oldest row is younger than the seal after it: %+v", below)
	}
	at, err := o.Backlog(t.Context(), 0, one.LSN)
	if err != nil || at.Covered != one.Seal || at.FromID != one.OutboxID || !at.Rows || at.Oldest <= 0 {
		t.Errorf("at the first seal: %+v, %v", at, err)
	}
	end, err := o.Backlog(t.Context(), 0, two.LSN)
	if err != nil || end.Covered != two.Seal || end.FromID != two.OutboxID || !end.Rows || end.Behind != 0 {
		t.Errorf("at the last seal: %+v, %v", end, err)
	}
	if n, err := o.CountFrom(t.Context(), 0, at.FromID, 100); err != nil || n != 4 {
		t.Errorf("%d rows from the first seal on, %v; want 2 and two seals'", n, err)
	}
	if n, err := o.CountFrom(t.Context(), 0, 1, 4); err != nil || n != 4 {
		t.Errorf("%d rows up to 4, %v", n, err)
	}
	if written, err := o.Written(t.Context(), 0); err != nil || !written {
		t.Errorf("written: %v, %v", written, err)
	}
	parts, err := o.Parts(t.Context(), 0)
	var bytes int64
	for _, p := range parts {
		bytes += p.Bytes
	}
	if err != nil || len(parts) < 2 || bytes != end.Bytes {
		t.Errorf("partitions %+v have %d bytes, the outbox %d; %v", parts, bytes, end.Bytes, err)
	}
}
