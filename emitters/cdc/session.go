package cdc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

// session is one life of the pipe, from the slot's confirmed position until
// the first error. It is then thrown away: whatever was not acked is sent
// again by the next one. Two sessions never have records on their way at the
// same time on purpose, but Kafka may still take late ones of the first; since
// each session writes an unbroken run from an acked position on, the first
// copies of all records stand in commit order all the same.
//
//	reader   walStream.Receive ─▶ decode ─▶ window.Reserve ─▶ producer
//	promises                                window.Ack ◀─ Kafka's acks
//	status   walStream.SendStatus(window.Confirmed), every second
type session struct {
	cfg   *Config
	log   *slog.Logger
	board *board
	seen  *latency

	facts    serverFacts
	wal      *walStream
	producer *producer
	window   *window
	reader   *reader

	poison   context.CancelCauseFunc // ends the reader, first cause wins
	replyNow chan struct{}           // one token: the server wants a status
	heard    heard                   // when PostgreSQL was last heard
}

// run streams until ctx ends (nil) or something fails.
func (s *session) run(ctx context.Context) error {
	producer, err := newProducer(s.cfg, s.board.note, s.acked)
	if err != nil {
		return err
	}
	s.producer = producer
	defer producer.Close()

	readCtx, poison := context.WithCancelCause(ctx)
	defer poison(nil)
	s.poison = poison
	s.replyNow = make(chan struct{}, 1)

	if err := s.open(readCtx); err != nil {
		return err
	}
	defer s.wal.Close()
	s.board.stream(s.window, s.wal.pid)
	defer s.board.unstream()
	s.log.Info("streaming", "slot", s.cfg.Slot, "from", s.window.Confirmed().String(), "topic", s.cfg.Topic, "partition", s.cfg.Partition)
	return s.stream(ctx, readCtx)
}

// stream runs reader and status updates, and ends them in order.
func (s *session) stream(ctx, readCtx context.Context) error {
	statusCtx, stopStatus := context.WithCancel(context.Background())
	defer stopStatus()
	var status sync.WaitGroup
	status.Go(func() { s.sendStatuses(statusCtx) })

	interrupted := make(chan struct{})
	stop := context.AfterFunc(readCtx, func() { s.wal.Interrupt(); close(interrupted) })
	err := s.reader.read(readCtx)
	if !stop() {
		<-interrupted // its deadline must not hit the farewell
		err = context.Cause(readCtx)
	}
	asked := ended(ctx) && errors.Is(err, context.Cause(ctx))
	if s.cfg.StopGrace > 0 {
		// Also after an error of the reader: what stands before a row that
		// cannot pass gets through all the same.
		s.drain()
	}
	stopStatus()
	status.Wait()
	if s.cfg.StopGrace > 0 {
		s.farewell()
	}
	if asked {
		return nil
	}
	return err
}

// drain waits until Kafka has what is on its way, up to the grace.
func (s *session) drain() {
	ctx, cancel := context.WithTimeout(context.Background(), s.cfg.StopGrace)
	defer cancel()
	if err := s.producer.Finish(ctx); err != nil {
		s.log.Warn("stopping with records that Kafka has not acked; they are sent again at the next start", "records", s.window.Load().records)
	}
}

// farewell tells PostgreSQL the last position, also after an error: the more
// it knows, the less is sent again.
func (s *session) farewell() {
	if err := s.wal.Finish(s.window.Confirmed(), time.Second); err != nil {
		s.log.Debug("the last position may not have reached PostgreSQL; some records are sent again", "error", err)
	}
}

// acked takes the end of a record: Kafka has it, or this session is over. An
// error is never skipped, since the record behind it would then be confirmed.
func (s *session) acked(o *outgoing, err error) {
	if err != nil {
		s.poison(fmt.Errorf("producing the record of the change at %s (%d bytes) to %s partition %d: %w",
			o.lsn, o.size, s.cfg.Topic, s.cfg.Partition, err))
		return
	}
	now := time.Now()
	s.seen.observe(now.Sub(time.UnixMicro(o.commitUS)))
	s.board.acked.Add(1)
	s.board.ackedBytes.Add(uint64(o.size))
	s.board.lastCommitUS.Store(o.commitUS)
	s.window.Ack(o.number, o.size, now)
	s.producer.Recycle(o)
}

// sendStatuses keeps the server informed, and the connection alive while the
// reader is blocked, until ctx ends.
func (s *session) sendStatuses(ctx context.Context) {
	interval := s.cfg.StatusInterval
	if t := s.facts.senderTimeout; t > 0 {
		interval = min(interval, t/4)
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-s.replyNow:
		}
		now := time.Now()
		// A blocked reader hears nothing, so asking and judging must wait.
		listening := !s.window.Load().waiting
		if quiet := s.heard.quiet(now, listening); quiet > s.cfg.Silence {
			s.poison(fmt.Errorf("PostgreSQL has sent nothing for %s", quiet.Round(time.Second)))
			return
		}
		if err := s.wal.SendStatus(s.window.Confirmed(), listening, now); err != nil {
			s.poison(err)
			return
		}
	}
}

// heard keeps when the server was last heard, in ns since 1970.
type heard struct{ at atomic.Int64 }

func (h *heard) now(t time.Time) { h.at.Store(t.UnixNano()) }

// quiet is how long nothing was heard; while nobody listens the count stands
// at zero.
func (h *heard) quiet(now time.Time, listening bool) time.Duration {
	if !listening || h.at.Load() == 0 {
		h.now(now)
	}
	return time.Duration(now.UnixNano() - h.at.Load())
}

// open finds or creates the slot, waits until it is free and starts
// replication.
func (s *session) open(ctx context.Context) error {
	s.board.enter(StateConnecting)
	conn, err := dialSQL(ctx, s.cfg.URL, fmt.Sprintf("tidemark cdc shard %d", s.cfg.Shard))
	if err != nil {
		return err
	}
	defer closeSQL(conn)
	if s.facts, err = readServerFacts(ctx, conn); err != nil {
		return err
	}
	others, err := checkPublication(ctx, conn, s.cfg.Publication, s.cfg.Schema, s.cfg.Table)
	if err != nil {
		return err
	}
	if others {
		s.log.Warn("the publication also publishes updates, deletes or truncates, which are not passed on; set publish = 'insert'", "publication", s.cfg.Publication)
	}
	// Who cannot reach Kafka does not take the slot from one who can.
	if _, err := s.producer.End(ctx); err != nil {
		return err
	}
	if err := s.acquire(ctx, conn); err != nil {
		return err
	}
	if err := s.begin(ctx, conn); err != nil {
		s.wal.Close()
		return err
	}
	return nil
}

// begin reads from where the session goes on. The slot is held, so nobody
// else moves its position any more, and whoever had it before has acked
// records only if the partition is not empty.
func (s *session) begin(ctx context.Context, conn *pgx.Conn) error {
	end, err := s.producer.End(ctx)
	if err != nil {
		return err
	}
	held, err := lookUpSlot(ctx, conn, s.cfg.Slot)
	if err != nil {
		return err
	}
	if held == nil || held.confirmed == nil {
		return fmt.Errorf("%w: slot %s has no confirmed position while it streams", ErrProtocol, s.cfg.Slot)
	}
	s.window = newWindow(*held.confirmed, s.cfg.MaxInFlightRecords, s.cfg.MaxInFlightBytes)
	s.reader = newReader(s, *held.confirmed, end > 0)
	return nil
}

// acquire starts replication on the slot, waiting while another process has it.
func (s *session) acquire(ctx context.Context, conn *pgx.Conn) error {
	for {
		found, err := s.findSlot(ctx, conn)
		if err != nil {
			return err
		}
		if found.activePID == 0 {
			s.wal, err = openWAL(ctx, s.cfg.URL, s.cfg.Slot, s.cfg.Publication, s.cfg.Shard)
			if !hasState(err, stateInUse) {
				return err
			}
		}
		s.standBy(found)
		if err := wait(ctx, s.cfg.StandbyInterval); err != nil {
			return err
		}
	}
}

func (s *session) standBy(found *slot) {
	if s.board.snapshot().State != StateStandby {
		s.log.Info("standing by: another process has the slot", "slot", s.cfg.Slot, "pid", found.activePID)
	}
	s.board.enter(StateStandby)
}

// findSlot returns the slot, creating it when the partition never had a record
// or the configuration says so.
func (s *session) findSlot(ctx context.Context, conn *pgx.Conn) (*slot, error) {
	found, err := lookUpSlot(ctx, conn, s.cfg.Slot)
	if err != nil {
		return nil, err
	}
	if found == nil {
		end, err := s.producer.End(ctx)
		if err != nil {
			return nil, err
		}
		if end > 0 && !s.cfg.AllowNewSlot {
			return nil, fmt.Errorf("shard %d: %w: slot %s does not exist in database %s, but %s partition %d has records up to offset %d; facts committed since the slot was last read may be missing: create the slot anew (`tidemark cdc create-slot`) and heal the gap, or set AllowNewSlot",
				s.cfg.Shard, ErrSlotVanished, s.cfg.Slot, s.facts.database, s.cfg.Topic, s.cfg.Partition, end)
		}
		if err := s.makeSlot(ctx); err != nil {
			return nil, err
		}
		if found, err = lookUpSlot(ctx, conn, s.cfg.Slot); err != nil {
			return nil, err
		}
		if found == nil {
			return nil, fmt.Errorf("slot %s was dropped right after it was created", s.cfg.Slot)
		}
	}
	if err := found.check(s.cfg.Slot, s.facts.database); err != nil {
		return nil, fmt.Errorf("shard %d: %w", s.cfg.Shard, err)
	}
	return found, nil
}

func (s *session) makeSlot(ctx context.Context) error {
	s.board.enter(StateCreatingSlot)
	ctx, cancel := context.WithTimeout(ctx, s.cfg.SlotTimeout)
	defer cancel()
	s.log.Info("creating the replication slot", "slot", s.cfg.Slot)
	return createSlot(ctx, s.cfg.URL, s.cfg.Slot, func(blocker string) {
		s.board.note(fmt.Errorf("creating slot %s: waiting for %s", s.cfg.Slot, blocker))
		s.log.Warn("creating the slot waits for an older transaction", "slot", s.cfg.Slot, "blocker", blocker)
	})
}

func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
