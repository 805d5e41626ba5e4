package intake

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/cespare/xxhash/v2"

	"github.com/tidemark/tidemark/internal/gokakit"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// Gaps is where suspicions become named gaps; see package internal/gaps.
type Gaps interface {
	// Suspect looks up what a proof raised and records what is missing. It may
	// be told the same more than once.
	Suspect(ctx context.Context, s *tidemarkv1.Suspicion) error
	// Verified says that a shard's feed was compared up to a seal, whose row
	// has an outbox id, in the change feed up to an offset.
	Verified(ctx context.Context, shard int, seal uint64, settledID, cdcOffset int64) error
}

// keeper accompanies a shard's partition while it is owned: it keeps the
// ledger, in the handler, and takes suspicions to where they are recorded,
// beside it. A suspicion is a row of the table before the proof's offset is
// committed, and stays one until it is recorded, so that a kill at any point
// loses none and records none twice.
type keeper struct {
	*Intake
	part   *gokakit.Partition
	shard  int
	ledger *ledger // of the handler only; nil until the first record

	mu      sync.Mutex
	pending map[string]*tidemarkv1.Suspicion // acked, not recorded
	newest  verified
	wake    chan struct{}
}

type verified struct {
	seal            uint64
	settled, offset int64
}

func (in *Intake) newKeeper(p *gokakit.Partition) gokakit.Owner {
	return &keeper{Intake: in, part: p, shard: p.Number(), pending: map[string]*tidemarkv1.Suspicion{}, wake: make(chan struct{}, 1)}
}

// rowEvery is how many offsets lie between two rows of a ledger that has no
// proof to write about: as many are read again after a restart.
const rowEvery = 4096

// take includes a record that the handler has dealt with.
func (k *keeper) take(r topology.Record, s sighting) error {
	proven := k.ledger.proven
	for _, one := range k.ledger.take(r.Offset, r.Timestamp.UnixMicro(), s) {
		if err := k.raise(one); err != nil {
			return err
		}
	}
	if k.ledger.proven == proven && r.Offset%rowEvery != rowEvery-1 {
		return nil
	}
	return k.write()
}

// raise writes a suspicion unless the table has it: it may be recorded already.
// One of another interval is of a history that the source has lost.
func (k *keeper) raise(s *tidemarkv1.Suspicion) error {
	key := topology.SuspicionKey(k.shard, s.Seal, int(s.Part))
	value, err := k.part.Get(key)
	if err != nil {
		return err
	}
	if value != nil {
		row, err := readRow(value)
		if err != nil {
			return err
		}
		if have := row.GetSuspicion(); have.GetFromId() == s.FromId && have.GetToId() == s.ToId {
			return nil
		}
	}
	k.metrics.suspicions.Inc()
	k.log.Warn("a seal's proof and what came do not agree; comparing with the outbox",
		"shard", k.shard, "seal", s.Seal, "from_id", s.FromId, "to_id", s.ToId, "proven_rows", s.ProvenRows, "received_rows", s.ReceivedRows)
	return k.part.Put(key, marshal(&tidemarkv1.IntakeRow{Body: &tidemarkv1.IntakeRow_Suspicion{Suspicion: s}}))
}

func (k *keeper) write() error {
	value, ok := k.ledger.row()
	if !ok {
		return nil
	}
	return k.part.Put(topology.LedgerKey(k.shard), value)
}

func (k *keeper) poke() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// Settled hands acked suspicions to Run. A ledger's row that says how far the
// feed is verified is acked behind the suspicions of that proof.
func (k *keeper) Settled(key string, value []byte, _ int64, _ []gokakit.Derived) {
	row, err := readRow(value)
	if err != nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	switch l, s := row.GetLedger(), row.GetSuspicion(); {
	case l != nil && l.ProvenSeal != k.newest.seal:
		k.newest = verified{l.ProvenSeal, l.SettledId, l.CdcOffset}
		k.metrics.proven(k.shard, l.ProvenSeal)
		k.poke()
	case s.GetRecorded():
		delete(k.pending, key)
	case s != nil:
		k.pending[key] = s
		k.poke()
	}
}

// Run records suspicions, those of an earlier owner first, and tells what is
// verified, until ctx ends. What cannot be recorded is tried again.
func (k *keeper) Run(ctx context.Context) error {
	_, err := k.part.ScanAcked(suspicions, func(key string, value []byte) error {
		k.Settled(key, value, 0, nil)
		return nil
	})
	if err != nil {
		return fmt.Errorf("reading the suspicions of shard %d: %w", k.shard, err)
	}
	if k.gaps == nil {
		<-ctx.Done()
		return nil
	}
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = 100*time.Millisecond, 5*time.Second
	for {
		err := k.tell(ctx)
		if ctx.Err() != nil {
			return nil
		}
		var again <-chan time.Time
		if err != nil {
			k.log.Warn("the gaps of a shard cannot be recorded yet", "shard", k.shard, "error", err)
			again = time.After(pause.NextBackOff())
		} else {
			pause.Reset()
			again = time.After(tellEvery) // at most so often
		}
		select {
		case <-ctx.Done():
			return nil
		case <-again:
		}
		select {
		case <-ctx.Done():
			return nil
		case <-k.wake:
		}
	}
}

// tellEvery is the shortest time between two reports.
const tellEvery = 200 * time.Millisecond

// tell records every suspicion, then reports how far the feed is verified: what
// is behind a report is either whole or named.
func (k *keeper) tell(ctx context.Context) (err error) {
	defer func() {
		if err != nil {
			k.poke()
		}
	}()
	k.mu.Lock()
	pending, newest := maps.Clone(k.pending), k.newest
	k.mu.Unlock()
	for _, key := range slices.Sorted(maps.Keys(pending)) {
		s := pending[key]
		if err := k.gaps.Suspect(ctx, s); err != nil {
			return err
		}
		done := &tidemarkv1.Suspicion{Shard: s.Shard, Seal: s.Seal, Part: s.Part, Parts: s.Parts, FromId: s.FromId, ToId: s.ToId, Recorded: true}
		if err := k.part.Put(key, marshal(&tidemarkv1.IntakeRow{Body: &tidemarkv1.IntakeRow_Suspicion{Suspicion: done}})); err != nil {
			return nil // the processor fails, and the next owner goes on
		}
		k.mu.Lock()
		delete(k.pending, key)
		k.mu.Unlock()
	}
	if newest.seal == 0 {
		return nil
	}
	return k.gaps.Verified(ctx, k.shard, newest.seal, newest.settled, newest.offset)
}

// Bounds of reading again.
const (
	rereadTimeout = 5 * time.Minute
	// maxFresh is the longest feed that is read whole when the table has no
	// ledger.
	maxFresh = 2_000_000
	// clockSkew is how much earlier a fact's time may be than that of the
	// record that it was made of.
	clockSkew = 10 * time.Minute
)

// begin makes the ledger ready for the first record that the handler sees: it
// reads the table's row and, again, what the row does not include.
func (k *keeper) begin(first topology.Record) error {
	if k.ledger != nil {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), rereadTimeout, fmt.Errorf("no end within %v", rereadTimeout))
	defer cancel()
	value, err := k.part.Get(topology.LedgerKey(k.shard))
	if err != nil {
		return err
	}
	start, err := k.feed.start(ctx, first.Topic, first.Partition)
	if err != nil {
		return err
	}
	l := newLedger(k.shard)
	switch {
	case value != nil:
		if l, err = readLedger(k.shard, value); err != nil {
			return err
		}
		if err := k.recover(ctx, l, min(start, first.Offset)); err != nil {
			return err
		}
	case start != first.Offset && (start > 0 || first.Offset > maxFresh):
		// Intake worked here before there was a ledger.
		l.anchored, l.offset = false, first.Offset-1
	}
	k.ledger = l
	err = k.feed.read(ctx, first.Topic, first.Partition, max(start, l.offset+1), first.Offset-1, func(r topology.Record) error {
		return k.take(r, k.core.see(r))
	})
	if err != nil {
		k.ledger = nil
		return err
	}
	return k.write()
}

// recover finds what the feed no longer has although intake has read it: the
// records between the ledger's row and start that stand in facts, each with
// its offset in the feed. Without this, what was read and then lost would be
// called missing.
func (k *keeper) recover(ctx context.Context, l *ledger, start int64) error {
	if l.offset+1 >= start {
		return nil
	}
	facts := k.topo.Topic(topology.Facts)
	from, err := k.feed.since(ctx, facts, k.shard, time.UnixMicro(l.timeUs).Add(-clockSkew))
	if err != nil {
		return err
	}
	end, err := k.feed.end(ctx, facts, k.shard)
	if err != nil {
		return err
	}
	k.log.Warn("the change feed has lost records since the ledger was written; reading them from facts", "shard", k.shard, "from_offset", l.offset+1, "to_offset", start-1)
	after := l.offset
	return k.feed.read(ctx, facts, k.shard, from, end-1, func(r topology.Record) error {
		var c tidemarkv1.RelationChange
		if err := c.UnmarshalVT(r.Value); err != nil {
			return fmt.Errorf("reading a record of facts at offset %d: %w", r.Offset, err)
		}
		if c.CdcOffset > after && c.CdcOffset < start {
			l.take(c.CdcOffset, r.Timestamp.UnixMicro(), sighting{kind: sawRelation, id: c.OutboxId, hash: xxhash.Sum64String(c.EventId)})
		}
		return nil
	})
}
