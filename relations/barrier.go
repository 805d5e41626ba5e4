package relations

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/tidemark/tidemark/internal/pause"
)

// A Barrier is a cut through every shard: a seal that flows through the stages
// like data, and a snapshot of the shard as it was when the seal was made. What
// the snapshot shows and what stands before the seal in the change feed are
// the same facts. The cuts of different shards are not of one moment.
type Barrier struct {
	ID     string // travels as the watermarks' barrier id
	Shards []ShardBarrier
}

// ShardBarrier is a barrier's cut through one shard.
type ShardBarrier struct {
	Shard    int
	Seal     uint64
	OutboxID int64 // of the seal's row: lower ids are before the cut
	// LSN is the end of the write-ahead log when the seal was written: what
	// committed before the cut ends below it.
	LSN      uint64
	SealedAt time.Time
	// Snapshot can be imported by other sessions of the same database (SET
	// TRANSACTION SNAPSHOT) until Close.
	Snapshot string

	conn *pgx.Conn // holds the snapshot
}

// barrierLockTimeout is how long a barrier may wait for the outbox, and writers
// behind it, before it is tried again.
const barrierLockTimeout = 50 * time.Millisecond

// Barrier takes a barrier. Each shard's writers pause for some milliseconds;
// behind a transaction that takes long, it tries until ctx ends. The snapshots
// hold back vacuum: Close the barrier soon.
func (s *Store) Barrier(ctx context.Context) (*Barrier, error) {
	return s.BarrierNamed(ctx, uuid.NewString())
}

// BarrierNamed takes a barrier whose id others know already, such as those who
// wait for it. No barrier had it before.
func (s *Store) BarrierNamed(ctx context.Context, id string) (*Barrier, error) {
	b := &Barrier{ID: id, Shards: make([]ShardBarrier, len(s.shards))}
	group, limited := errgroup.WithContext(ctx)
	for i, sh := range s.shards {
		group.Go(func() (err error) {
			b.Shards[i], err = sh.barrier(limited, b.ID)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		b.Close()
		return nil, fmt.Errorf("taking a barrier: %w", err)
	}
	return b, nil
}

// Close ends the snapshots. A second call does nothing.
func (b *Barrier) Close() {
	for i := range b.Shards {
		if conn := b.Shards[i].conn; conn != nil {
			discard(conn)
			b.Shards[i].conn = nil
		}
	}
}

// Facts gives every relation of a shard as it was at the barrier, in no order
// and in bounded memory. It stops at do's first error and returns it; the
// snapshot of that shard is over then.
func (b *Barrier) Facts(ctx context.Context, shard int, do func(Fact) error) error {
	if shard < 0 || shard >= len(b.Shards) || b.Shards[shard].conn == nil {
		return fmt.Errorf("%w: the barrier has no open snapshot of relation shard %d", ErrInvalid, shard)
	}
	if err := streamFacts(ctx, b.Shards[shard].conn, do, ""); err != nil {
		return fmt.Errorf("reading the facts of relation shard %d at barrier %s: %w", shard, b.ID, err)
	}
	return nil
}

func (s *shard) barrier(ctx context.Context, id string) (ShardBarrier, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.life, cancel)()
	var out ShardBarrier
	reader, err := connect(ctx, s.writer, s.number)
	if err != nil {
		return out, s.unavailable(ctx, err)
	}
	writer, err := connect(ctx, s.writer, s.number)
	if err != nil {
		discard(reader)
		return out, s.unavailable(ctx, err)
	}
	defer discard(writer)
	for {
		out, err = cut(ctx, writer, reader, s.number, id)
		if err == nil {
			return out, nil
		}
		if !isLockTimeout(err) || !pause.For(ctx, barrierLockTimeout) {
			discard(reader)
			return out, s.unavailable(ctx, err)
		}
		if _, err := writer.Exec(ctx, "rollback"); err != nil {
			discard(reader)
			return out, s.unavailable(ctx, err)
		}
	}
}

// cut writes the seal under the outbox lock, takes the snapshot on the reader's
// connection while the lock is held, and only then lets writers go on.
func cut(ctx context.Context, writer, reader *pgx.Conn, shard int, id string) (ShardBarrier, error) {
	_, err := reader.Exec(ctx, "rollback; begin isolation level repeatable read read only; SET LOCAL idle_in_transaction_session_timeout = 0; SET LOCAL statement_timeout = 0")
	if err != nil {
		return ShardBarrier{}, fmt.Errorf("preparing the snapshot: %w", err)
	}
	var sealed sealing
	var b pgx.Batch
	b.Queue("begin")
	b.Queue(fmt.Sprintf("SET LOCAL lock_timeout = %d", barrierLockTimeout.Milliseconds()))
	b.Queue(sealLockSQL)
	b.Queue(sealSQL, shard, id).QueryRow(sealed.scan)
	if err := writer.SendBatch(ctx, &b).Close(); err != nil {
		return ShardBarrier{}, fmt.Errorf("sealing the outbox: %w", err)
	}
	out := ShardBarrier{
		Shard: shard, Seal: sealed.number, OutboxID: sealed.outboxID, LSN: sealed.lsn, SealedAt: sealed.at.UTC(), conn: reader,
	}
	if err := reader.QueryRow(ctx, "SELECT pg_export_snapshot()").Scan(&out.Snapshot); err != nil {
		return ShardBarrier{}, fmt.Errorf("taking the snapshot: %w", err)
	}
	if _, err := writer.Exec(ctx, "commit"); err != nil {
		return ShardBarrier{}, fmt.Errorf("committing the seal: %w", err)
	}
	return out, nil
}
