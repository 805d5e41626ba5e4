package cdc

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"

	"github.com/tidemark/tidemark/internal/testenv"
)

// end is a way in which an emitter's work at the stream ends.
type end string

const (
	stopped end = "stopped" // in order: what is known is told to PostgreSQL
	killed  end = "killed"
	lost    end = "connection lost" // the same emitter goes on by itself
)

var ends = []end{stopped, killed, lost}

// endAt runs an emitter until place holds the stream up, then ends it as told.
func (r *rig) endAt(p *proxy, how end, place func(change) verdict) {
	r.t.Helper()
	var once sync.Once
	reached := make(chan *pipe, 1)
	p.set(func(c change) verdict {
		v := place(c)
		if v != pass {
			once.Do(func() { reached <- c.pipe })
		}
		return v
	}, nil)
	e := r.start(func(c *Config) {
		if c.StopGrace = 200 * time.Millisecond; how == killed {
			c.StopGrace = -1
		}
	})
	var at *pipe
	select {
	case at = <-reached:
	case <-time.After(patience):
		r.t.Fatalf("the stream does not come to the place; status %+v", e.Status())
	}
	p.set(nil, nil)
	if how == lost {
		before := e.Status().Restarts
		at.end()
		testenv.Eventually(r.t, patience, func() error {
			if e.Status().Restarts == before {
				return fmt.Errorf("the session does not end; status %+v", e.Status())
			}
			return nil
		})
	}
	e.stop()
}

// nth gives v to the nth message of a kind, from 1.
func nth(kind byte, n int, v verdict) func(change) verdict {
	var seen atomic.Int64
	return func(c change) verdict {
		if c.kind == kind && seen.Add(1) == int64(n) {
			return v
		}
		return pass
	}
}

// TestD04EndsRightAfterBegin: the first row has the position of its BEGIN, and
// is not taken for one that was seen.
func TestD04EndsRightAfterBegin(t *testing.T) {
	r := newRig(t)
	r.ensureSlot()
	p := r.throughProxy()
	rows := 0
	for n := range 3 {
		for _, how := range ends {
			for range n + 1 { // the transactions before it are whole
				r.insert(3)
				rows += 3
			}
			r.endAt(p, how, nth(msgBegin, n+1, hold))
		}
	}
	r.start()
	checkOrder(t, r.awaitRows(rows))
}

// TestC06EndsAtEachCommit: two large transactions, whose rows alternate in the
// WAL, and the emitter ends right before and right after either's COMMIT. A
// keepalive in the middle of a transaction, far ahead of it, is no position to
// confirm.
func TestC06EndsAtEachCommit(t *testing.T) {
	r := newRig(t)
	r.ensureSlot()
	p := r.throughProxy()
	rows := 0
	for _, v := range []verdict{withhold, hold} {
		for n := 1; n <= 2; n++ {
			for _, how := range ends {
				// What was not confirmed comes again before the new two.
				r.start(killable).caughtUp(r)
				rows += r.insertInterleaved(400)
				r.endAt(p, how, r.withKeepalives(nth(msgCommit, n, v)))
			}
		}
	}
	r.start()
	checkOrder(t, r.awaitRows(rows))
}

// caughtUp stops the emitter when everything committed so far is confirmed.
func (e *running) caughtUp(r *rig) {
	r.t.Helper()
	upTo := r.serverLSN()
	testenv.Eventually(r.t, patience, func() error {
		if at := r.confirmed(); at < upTo {
			return fmt.Errorf("confirmed %s of %s; status %+v", at, upTo, e.Status())
		}
		return nil
	})
	e.stop()
}

// insertInterleaved commits two transactions of n rows each, written in turns.
func (r *rig) insertInterleaved(n int) int {
	r.t.Helper()
	other := r.connect(r.direct)
	for _, conn := range []*pgx.Conn{r.db, other} {
		if _, err := conn.Exec(r.t.Context(), "BEGIN"); err != nil {
			r.t.Fatal(err)
		}
	}
	for range 10 {
		for _, conn := range []*pgx.Conn{r.db, other} {
			if _, err := conn.Exec(r.t.Context(), insertSQL, n/10); err != nil {
				r.t.Fatal(err)
			}
		}
	}
	for _, conn := range []*pgx.Conn{other, r.db} {
		if _, err := conn.Exec(r.t.Context(), "COMMIT"); err != nil {
			r.t.Fatal(err)
		}
	}
	closeSQL(other)
	return 2 * n
}

// withKeepalives puts a keepalive that is a gigabyte ahead, and wants an
// answer, before every tenth row.
func (r *rig) withKeepalives(place func(change) verdict) func(change) verdict {
	ahead := append([]byte{frameKeepalive}, make([]byte, 17)...)
	binary.BigEndian.PutUint64(ahead[1:], uint64(r.serverLSN())+1<<30)
	ahead[17] = 1
	var seen atomic.Int64
	return func(c change) verdict {
		if c.kind == msgInsert && seen.Add(1)%10 == 0 {
			c.pipe.inject(ahead)
		}
		return place(c)
	}
}

// TestD02CopyEndsInTheMiddle: COPY writes many rows with one position. Where
// ever the emitter ends, the rest of them is not taken for seen.
func TestD02CopyEndsInTheMiddle(t *testing.T) {
	r := newRig(t)
	r.ensureSlot()
	p := r.throughProxy()
	const rows = 10_000
	source := make([][]any, rows)
	for i := range source {
		source[i] = []any{"relation", fmt.Sprintf("like:u%d:V1", i), "RelationChanged", `{}`, 2}
	}
	n, err := r.db.CopyFrom(t.Context(), pgx.Identifier{"outbox"}, []string{"aggregatetype", "aggregateid", "type", "payload", "source_shard"}, pgx.CopyFromRows(source))
	if err != nil || n != rows {
		t.Fatalf("%d rows copied: %v", n, err)
	}
	for i := range 9 {
		r.endAt(p, ends[i%3], nth(msgInsert, 1+rand.IntN(rows), hold))
	}
	r.start()
	all := r.awaitRows(rows)
	checkOrder(t, all)
	positions := map[int64]bool{}
	for _, rec := range all {
		positions[rec.Source.LSN] = true
	}
	if len(positions) > rows/10 {
		t.Errorf("%d rows have %d positions: COPY shows nothing", rows, len(positions))
	}
}

// TestD03LogicalMessagesEndInTheMiddle of a transaction: neither its rows are
// lost nor do they pass for seen, though messages stand around each.
func TestD03LogicalMessagesEndInTheMiddle(t *testing.T) {
	r := newRig(t)
	r.ensureSlot()
	p := r.throughProxy()
	rows := 0
	for i, how := range append(ends, ends...) {
		r.start(killable).caughtUp(r)
		r.exec("BEGIN")
		for range 3 {
			r.exec("SELECT pg_logical_emit_message(true, 'heartbeat', 'x'), pg_logical_emit_message(false, 'heartbeat', 'x')")
			r.insert(1)
		}
		r.exec("SELECT pg_logical_emit_message(true, 'heartbeat', 'x')")
		r.exec("COMMIT")
		rows += 3
		r.endAt(p, how, nth(msgInsert, 2, []verdict{hold, withhold}[i/len(ends)]))
	}
	r.start()
	checkOrder(t, r.awaitRows(rows))
}

// TestD05C03TheConfirmedPositionNeverGoesBack: not in what a session tells,
// which begins where the slot is, and not in the slot. A killed session may
// have told more than PostgreSQL has read.
func TestD05C03TheConfirmedPositionNeverGoesBack(t *testing.T) {
	r := newRig(t)
	r.ensureSlot()
	p := r.throughProxy()
	stopSampling := r.sampleConfirmed()
	w := r.write(2, time.Millisecond)
	for i := range 12 {
		told := map[*pipe]pglogrepl.LSN{}
		var statuses atomic.Int64
		from := r.confirmed()                        // nobody streams
		p.set(nil, func(c *pipe, at pglogrepl.LSN) { // one connection streams
			statuses.Add(1)
			if least := max(from, told[c]); at < least {
				t.Errorf("the emitter told %s after %s", at, least)
			}
			told[c] = at
		})
		e := r.start(func(c *Config) {
			c.StatusInterval = time.Millisecond
			if i%2 == 0 {
				c.StopGrace = -1
			}
		})
		testenv.Eventually(t, patience, func() error {
			if s := e.Status(); s.Acked < 30 || statuses.Load() < 20 {
				return fmt.Errorf("%d statuses; status %+v", statuses.Load(), s)
			}
			return nil
		})
		e.stop()
		p.each(func(c *pipe) { c.close() }) // all that it told has come or never will
	}
	w.stop()
	stopSampling()
	r.start()
	all := r.awaitRows(w.rows)
	checkOrder(t, all)
	checkVersions(t, all)
}
