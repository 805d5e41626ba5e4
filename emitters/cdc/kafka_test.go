package cdc

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tidemark/tidemark/internal/testenv"
)

const produceKey = 0

// slowKafka makes every produce request take a while.
func (r *rig) slowKafka(by time.Duration) {
	cluster := testenv.Cluster(r.t, r.cfg.Brokers)
	cluster.ControlKey(produceKey, func(kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		time.Sleep(by)
		return nil, nil, false
	})
}

// fault makes Kafka answer produce requests as told while it is switched on.
type fault struct {
	on   atomic.Bool
	hits atomic.Int64
}

func (r *rig) refuseWrites(answer func(kmsg.Request) (kmsg.Response, error)) *fault {
	f := &fault{}
	cluster := testenv.Cluster(r.t, r.cfg.Brokers)
	cluster.ControlKey(produceKey, func(req kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		if !f.on.Load() {
			return nil, nil, false
		}
		f.hits.Add(1)
		resp, err := answer(req)
		return resp, err, true
	})
	return f
}

// disconnect answers by closing the connection.
func disconnect(kmsg.Request) (kmsg.Response, error) { return nil, io.EOF }

// refuse answers every partition with an error of the protocol.
func refuse(e *kerr.Error) func(kmsg.Request) (kmsg.Response, error) {
	return func(req kmsg.Request) (kmsg.Response, error) {
		p := req.(*kmsg.ProduceRequest)
		resp := p.ResponseKind().(*kmsg.ProduceResponse)
		for _, topic := range p.Topics {
			t := kmsg.NewProduceResponseTopic()
			t.Topic, t.TopicID = topic.Topic, topic.TopicID
			for _, partition := range topic.Partitions {
				rp := kmsg.NewProduceResponseTopicPartition()
				rp.Partition, rp.ErrorCode = partition.Partition, e.Code
				t.Partitions = append(t.Partitions, rp)
			}
			resp.Topics = append(resp.Topics, t)
		}
		return resp, nil
	}
}

// TestC01KafkaRefusesWrites: while Kafka takes nothing, PostgreSQL sends
// keepalives and other tables fill the WAL, the confirmed position does not
// pass the first unacked row, the walsender with its timeout of a second stays
// the same, and no more than the window is read. A kill then loses nothing.
func TestC01KafkaRefusesWrites(t *testing.T) {
	for name, answer := range map[string]func(kmsg.Request) (kmsg.Response, error){
		"connection cut": disconnect, "not enough replicas": refuse(kerr.NotEnoughReplicas),
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.exec(`DO $$BEGIN EXECUTE format('ALTER DATABASE %I SET wal_sender_timeout = ''1s''', current_database()); END$$`)
			r.ensureSlot()
			f := r.refuseWrites(answer)
			e := r.start(func(c *Config) { c.StopGrace, c.MaxInFlightRecords, c.StatusInterval = -1, 50, time.Second })
			r.insert(5)
			r.awaitRows(5)
			stopSampling := r.sampleConfirmed()
			f.on.Store(true)
			r.insert(20)
			bound := r.serverLSN() // the commit of the 20 rows ends here
			for range 30 {
				r.insert(20)
			}
			pid := r.walsender()
			end := time.Now().Add(scaled(3500*time.Millisecond, time.Minute)) // the timeout and more
			for time.Now().Before(end) {
				r.exec(`INSERT INTO other SELECT g, repeat('x', 500) FROM generate_series(1, 200) g`)
				if got := r.confirmed(); got >= bound {
					t.Fatalf("position %s was confirmed, unacked rows end at %s (C01)", got, bound)
				}
				if s := e.Status(); s.UnackedRecords > 50 {
					t.Fatalf("%d records on their way, more than 50", s.UnackedRecords)
				}
			}
			s := e.Status()
			if s.Restarts != 0 || s.State != StateStreaming || r.walsender() != pid {
				t.Errorf("the connection did not survive: %d restarts, last error %s", s.Restarts, s.LastError)
			}
			if !s.Blocked || s.Acked != 5 || s.AckedAt.IsZero() || f.hits.Load() == 0 {
				t.Errorf("status %+v after %d refusals", s, f.hits.Load())
			}
			e.stop() // as killed
			f.on.Store(false)
			next := r.start()
			checkOrder(t, r.awaitRows(625))
			stopSampling()
			testenv.Eventually(t, patience, func() error {
				if r.confirmed() < bound {
					return errors.New("the acked rows are not confirmed")
				}
				return next.Ready()
			})
		})
	}
}

// walsender is the pid that reads the slot.
func (r *rig) walsender() (pid int64) {
	r.t.Helper()
	s, err := lookUpSlot(r.t.Context(), r.db, r.cfg.Slot)
	if err != nil || s == nil {
		r.t.Fatalf("slot %+v, %v", s, err)
	}
	return s.activePID
}

// TestKafkaComesBack: the same session goes on, without repetition.
func TestKafkaComesBack(t *testing.T) {
	r := newRig(t)
	r.ensureSlot()
	f := r.refuseWrites(disconnect)
	e := r.start()
	f.on.Store(true)
	r.insert(500)
	testenv.Eventually(t, patience, func() error {
		if f.hits.Load() < 2 {
			return fmt.Errorf("%d refusals", f.hits.Load())
		}
		return nil
	})
	f.on.Store(false)
	all := r.awaitRows(500)
	checkOrder(t, all)
	if s := e.Status(); len(all) != 500 || s.Restarts != 0 {
		t.Errorf("%d records for 500 rows, %d restarts", len(all), s.Restarts)
	}
}

// TestG05FinalProduceErrorIsNeverSkipped: Kafka refuses for good. The session
// is thrown away and tried again from the confirmed position; nothing is
// confirmed, and the reason is visible. When the cause is gone all arrives.
func TestG05FinalProduceErrorIsNeverSkipped(t *testing.T) {
	r := newRig(t)
	r.ensureSlot()
	f := r.refuseWrites(refuse(kerr.MessageTooLarge))
	e := r.start()
	r.insert(10)
	r.awaitRows(10)
	f.on.Store(true)
	r.insert(1)
	bound := r.serverLSN()
	r.insert(9)
	testenv.Eventually(t, patience, func() error {
		s := e.Status()
		if s.Restarts < 3 || !strings.Contains(s.LastError, "MESSAGE_TOO_LARGE") || !strings.Contains(s.LastError, "producing the record of the change at ") {
			return fmt.Errorf("%d restarts, last error %q", s.Restarts, s.LastError)
		}
		return nil
	})
	if got := r.confirmed(); got >= bound {
		t.Errorf("position %s was confirmed, the refused row ends at %s", got, bound)
	}
	f.on.Store(false)
	checkOrder(t, r.awaitRows(20))
	e.awaitState(StateStreaming)
}

// TestK10NoTransactions: what Kafka's transactions do to a paused producer
// cannot happen, since the feed uses none.
func TestK10NoTransactions(t *testing.T) {
	r := newRig(t)
	r.ensureSlot()
	cluster := testenv.Cluster(t, r.cfg.Brokers)
	var writes atomic.Int64
	cluster.Control(func(req kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		switch q := req.(type) {
		case *kmsg.ProduceRequest:
			if writes.Add(1); q.TransactionID != nil || q.Acks != -1 {
				t.Errorf("a write with transaction %v and acks %d", q.TransactionID, q.Acks)
			}
		case *kmsg.InitProducerIDRequest:
			if q.TransactionalID != nil {
				t.Errorf("a producer of transactions: %s", *q.TransactionalID)
			}
		case *kmsg.AddPartitionsToTxnRequest, *kmsg.EndTxnRequest, *kmsg.TxnOffsetCommitRequest:
			t.Errorf("a transaction: %T", req)
		}
		return nil, nil, false
	})
	r.start()
	r.insert(10)
	r.awaitRows(10)
	if writes.Load() == 0 {
		t.Error("no write was seen")
	}
}

// TestKafkaIsAwayAtStart: the emitter says so, does not take the slot, and
// begins when Kafka is there.
func TestKafkaIsAwayAtStart(t *testing.T) {
	r := newRig(t)
	r.ensureSlot()
	r.insert(3)
	missing := testenv.Prefix(t) + ".missing"
	e := r.start(func(c *Config) { c.Topic = missing })
	testenv.Eventually(t, patience, func() error {
		err := e.Ready()
		if err == nil || !strings.Contains(err.Error(), missing) {
			return fmt.Errorf("ready says %w", err)
		}
		return nil
	})
	if pid := r.walsender(); pid != 0 {
		t.Errorf("pid %d holds the slot", pid)
	}
	e.stop()
	r.start()
	r.awaitRows(3)
}

// TestD06D07IdleShard: other tables write, 2 GB (here 48 MB), and the outbox
// does not; the slot does not hold their WAL, neither in one long run nor across
// a restart, in order or by kill.
func TestD06D07IdleShard(t *testing.T) {
	r := newRig(t)
	r.ensureSlot()
	e := r.start()
	r.insert(1)
	r.awaitRows(1)
	for i := range scaled(6, 256) {
		if i%3 == 2 {
			e.stop()
			e = r.start(func(c *Config) { c.StopGrace = []time.Duration{-1, time.Second}[i%2] })
		}
		before := r.serverLSN()
		r.exec(`INSERT INTO other SELECT g, repeat('x', 1000) FROM generate_series(1, 8000) g`)
		written := r.serverLSN()
		if written-before < 8<<20 {
			t.Fatalf("only %d bytes of WAL were written", written-before)
		}
		testenv.Eventually(t, patience, func() error {
			if s := e.Status(); r.confirmed() < written || s.LagBytes > 1<<20 {
				return fmt.Errorf("confirmed %s, written %s, lag %d bytes", r.confirmed(), written, s.LagBytes)
			}
			return nil
		})
	}
	r.insert(1)
	checkOrder(t, r.awaitRows(2))
}

// TestOneRefusedBatchKeepsTheOrder: now and then Kafka refuses one request for
// good and takes the next. What stands behind the refused records must not
// pass them.
func TestOneRefusedBatchKeepsTheOrder(t *testing.T) {
	r := newRig(t)
	r.ensureSlot()
	var requests atomic.Int64
	cluster := testenv.Cluster(r.t, r.cfg.Brokers)
	cluster.ControlKey(produceKey, func(req kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		if requests.Add(1)%9 != 0 {
			return nil, nil, false
		}
		resp, err := refuse(kerr.MessageTooLarge)(req)
		return resp, err, true
	})
	e := r.start(func(c *Config) { c.Linger, c.MaxBackoff = -1, time.Millisecond })
	w := r.write(3, time.Millisecond)
	testenv.Eventually(t, patience, func() error {
		if s := e.Status(); s.Restarts < 10 {
			return fmt.Errorf("%d restarts", s.Restarts)
		}
		return nil
	})
	w.stop()
	all := r.awaitRows(w.rows)
	checkOrder(t, all)
	checkVersions(t, all)
}

// TestD22RowTooLargeForKafka stops the shard at that row, visibly; what stands
// before it gets through.
func TestD22RowTooLargeForKafka(t *testing.T) {
	r := newRig(t)
	r.ensureSlot()
	r.insert(5)
	r.exec(`INSERT INTO outbox (aggregatetype, aggregateid, type, payload, source_shard)
		VALUES ('relation', 'k', 't', jsonb_build_object('x', repeat('x', 1000000)), 2)`)
	bound := r.serverLSN()
	r.insert(1)
	e := r.start()
	testenv.Eventually(t, patience, func() error {
		if s := e.Status(); s.Restarts < 2 || !strings.Contains(s.LastError, "makes a record of 1000") {
			return fmt.Errorf("status %+v", s)
		}
		return nil
	})
	checkOrder(t, r.awaitRows(5))
	if got := r.confirmed(); got >= bound {
		t.Errorf("position %s was confirmed, the large row ends at %s", got, bound)
	}
}

// TestStopWhileKafkaIsAway takes less than five seconds and confirms nothing
// that is not acked.
func TestStopWhileKafkaIsAway(t *testing.T) {
	r := newRig(t)
	r.ensureSlot()
	f := r.refuseWrites(disconnect)
	f.on.Store(true)
	e := r.start()
	r.insert(10)
	bound := r.serverLSN()
	testenv.Eventually(t, patience, func() error {
		if f.hits.Load() == 0 {
			return errors.New("nothing was sent")
		}
		return nil
	})
	began := time.Now()
	e.stop()
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("stopping took %v", took)
	}
	if got := r.confirmed(); got >= bound {
		t.Errorf("position %s was confirmed, the rows end at %s", got, bound)
	}
	f.on.Store(false)
	r.start()
	checkOrder(t, r.awaitRows(10))
}
