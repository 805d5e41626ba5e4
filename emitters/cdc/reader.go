package cdc

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"
)

// reader turns the replication stream into records, one per inserted outbox
// row, in commit order.
//
// Position of a record (source.sequence, source.lsn): the end of the commit
// before its transaction, and the change itself. A session that resumes a slot
// has not seen the commit before; it takes the slot's confirmed position,
// which is at or above the end of every acked commit and below the next
// commit. So for transaction k the first number lies in [end k-1, end k) in
// every session: pairs rise from transaction to transaction whatever was sent
// twice, and a row sent again has an equal or higher pair than before. A
// partition without records gets null until the first commit, as Debezium
// writes it; Debezium keeps the previous commit in Connect's offsets instead
// and goes on with it.
type reader struct {
	s      *session
	tables map[uint32]*table
	enc    *encoder
	row    []value
	picked [outboxColumns]value

	open   bool // between BEGIN and COMMIT
	from   origin
	inside ignored // of the open transaction

	warnedShard bool
	shard       string
}

// ignored counts changes of one transaction that are not passed on.
type ignored struct {
	updates, deletes, truncates, foreign int
	first                                pglogrepl.LSN
}

func newReader(s *session, confirmed pglogrepl.LSN, resumed bool) *reader {
	r := &reader{
		s: s, tables: map[uint32]*table{},
		enc:   newEncoder(s.cfg.Version, s.cfg.ServerName, s.facts.database),
		shard: fmt.Sprint(s.cfg.Shard),
	}
	if resumed {
		r.from.previous = confirmed
	}
	return r
}

// read goes on until ctx ends or something fails.
func (r *reader) read(ctx context.Context) error {
	for {
		f, err := r.s.wal.Receive()
		if err != nil {
			return err
		}
		now := time.Now()
		r.s.heard.now(now)
		switch f.kind {
		case frameKeepalive:
			r.keepalive(f)
		case frameChange:
			if err := r.change(ctx, f, now); err != nil {
				return fmt.Errorf("at %s: %w", f.lsn, err)
			}
		}
	}
}

// keepalive: between two transactions everything that committed below its
// position has been sent before it, so an idle shard does not hold WAL.
// Inside a transaction it says nothing.
func (r *reader) keepalive(f frame) {
	if !r.open {
		r.s.window.Mark(f.lsn)
	}
	if f.wantReply {
		select {
		case r.s.replyNow <- struct{}{}:
		default:
		}
	}
}

func (r *reader) change(ctx context.Context, f frame, now time.Time) error {
	if len(f.body) == 0 {
		return fmt.Errorf("%w: empty", ErrProtocol)
	}
	kind, body := f.body[0], f.body[1:]
	var err error
	switch kind {
	case msgInsert:
		return r.insert(ctx, f.lsn, body, now)
	case msgBegin:
		err = r.begin(body)
	case msgCommit:
		err = r.commit(body)
	case msgRelation:
		err = r.relation(body)
	case msgUpdate, msgDelete:
		err = r.skip(kind, f.lsn, body)
	case msgTruncate:
		err = r.truncate(f.lsn, body)
	case msgType, msgOrigin, msgMessage:
	default:
		err = fmt.Errorf("%w: type %q", ErrProtocol, kind)
	}
	if err != nil {
		return fmt.Errorf("reading message %q: %w", kind, err)
	}
	return nil
}

func (r *reader) begin(body []byte) error {
	m, err := parseBegin(body)
	if err != nil {
		return err
	}
	if r.open {
		return fmt.Errorf("%w: a transaction begins inside another", ErrProtocol)
	}
	r.open = true
	r.inside = ignored{}
	r.from.xid = m.xid
	r.from.commitUS = m.commitUS + postgresEpochUS
	return nil
}

func (r *reader) commit(body []byte) error {
	m, err := parseCommit(body)
	if err != nil {
		return err
	}
	if !r.open {
		return fmt.Errorf("%w: a commit without its begin", ErrProtocol)
	}
	r.open = false
	r.from.previous = m.endLSN
	if !r.s.window.Mark(m.endLSN) {
		// Confirming the higher position would have lost this transaction.
		return fmt.Errorf("%w: a commit ends at %s, not above what was complete already", ErrProtocol, m.endLSN)
	}
	r.s.board.transactions.Add(1)
	r.tellIgnored(m)
	return nil
}

// tellIgnored warns once per transaction of changes that consumers do not see.
func (r *reader) tellIgnored(m commit) {
	i := r.inside
	if i.updates+i.deletes+i.truncates == 0 {
		return
	}
	r.s.log.Warn("the outbox was changed other than by inserts; consumers do not see it and the rows are evidence: find who did it, and set the publication to publish = 'insert'",
		"updates", i.updates, "deletes", i.deletes, "truncates", i.truncates,
		"first_lsn", i.first.String(), "commit_lsn", m.endLSN.String(), "xid", r.from.xid,
		"committed", time.UnixMicro(r.from.commitUS).UTC())
}

func (r *reader) relation(body []byte) error {
	m, err := parseRelation(body)
	if err != nil {
		return err
	}
	t, err := newTable(m, r.s.cfg.Schema, r.s.cfg.Table)
	if err != nil {
		return err
	}
	r.tables[m.id] = t
	return nil
}

func (r *reader) table(id uint32) (*table, error) {
	t, ok := r.tables[id]
	if !ok {
		return nil, fmt.Errorf("%w: relation %d was not described", ErrProtocol, id)
	}
	return t, nil
}

func (r *reader) insert(ctx context.Context, lsn pglogrepl.LSN, body []byte, now time.Time) error {
	id, row, err := parseInsert(body, r.row)
	r.row = row
	if err != nil {
		return fmt.Errorf("reading an inserted row: %w", err)
	}
	if !r.open {
		return fmt.Errorf("%w: a row outside a transaction", ErrProtocol)
	}
	t, err := r.table(id)
	if err != nil {
		return err
	}
	if !t.outbox {
		r.count(&r.inside.foreign, lsn)
		return nil
	}
	if err := t.pick(row, &r.picked); err != nil {
		return err
	}
	r.from.lsn, r.from.table = lsn, t
	r.checkShard()
	return r.emit(ctx, now)
}

// checkShard counts rows of another shard. They are emitted all the same: one
// bad row must not stop a shard, and intake judges it; but when every row is
// such, the URLs of two shards are mixed up.
func (r *reader) checkShard() {
	v := r.picked[colSourceShard]
	if !v.null && string(v.text) == r.shard {
		return
	}
	r.s.board.otherShard.Add(1)
	if !r.warnedShard {
		r.warnedShard = true
		r.s.log.Warn("an outbox row names another shard; if all do, check the order of the PostgreSQL URLs",
			"row_shard", string(v.text), "lsn", r.from.lsn.String())
	}
}

// emit encodes the picked row and hands it to the producer once there is room.
func (r *reader) emit(ctx context.Context, now time.Time) error {
	o := r.s.producer.New()
	o.buffer, o.keySize = o.buffer[:0], -1
	if key := r.picked[colAggregateID]; !key.null {
		o.buffer = append(o.buffer, key.text...)
		o.keySize = len(key.text)
	}
	var err error
	if o.buffer, err = r.enc.Append(o.buffer, &r.picked, &r.from, now); err != nil {
		return err
	}
	if o.size = len(o.buffer); o.size > maxRecordBytes {
		return fmt.Errorf("an outbox row makes a record of %d bytes, more than %d, which Kafka would refuse", o.size, maxRecordBytes)
	}
	o.at, o.commitUS, o.lsn = now, r.from.commitUS, r.from.lsn
	if o.number, err = r.s.window.Reserve(ctx, o.size); err != nil {
		return err
	}
	r.s.board.emitted.Add(1)
	r.s.producer.Put(o)
	return nil
}

func (r *reader) skip(kind byte, lsn pglogrepl.LSN, body []byte) error {
	id, err := parseRelationID(body)
	if err != nil {
		return err
	}
	t, err := r.table(id)
	switch {
	case err != nil:
		return err
	case !t.outbox:
		r.count(&r.inside.foreign, lsn)
	case kind == msgUpdate:
		r.count(&r.inside.updates, lsn)
	default:
		r.count(&r.inside.deletes, lsn)
	}
	return nil
}

func (r *reader) truncate(lsn pglogrepl.LSN, body []byte) error {
	ids, err := parseTruncate(body)
	if err != nil {
		return err
	}
	for _, id := range ids {
		t, err := r.table(id)
		if err != nil {
			return err
		}
		if t.outbox {
			r.count(&r.inside.truncates, lsn)
		} else {
			r.count(&r.inside.foreign, lsn)
		}
	}
	return nil
}

func (r *reader) count(of *int, lsn pglogrepl.LSN) {
	if *of++; r.inside.first == 0 {
		r.inside.first = lsn
	}
	r.s.board.ignored.Add(1)
}
