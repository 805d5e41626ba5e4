package relations

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tidemark/tidemark/topology"
)

// The transaction of a batch takes two round trips: one that begins it, takes
// the locks and reads, and one that writes and commits.
const (
	// Each statement of a READ COMMITTED transaction sees what was committed
	// when it began, so the reads after this one see everything that an earlier
	// holder of the locks did. The fence's lock is the first.
	lockSQL = `
		SELECT pg_advisory_xact_lock_shared($2)
		UNION ALL
		SELECT pg_advisory_xact_lock(k) FROM unnest($1::bigint[]) AS k`

	clockSQL = `SELECT clock_timestamp()`

	// shardSQL reads the clock and, after the fence's lock, the map's epoch.
	shardSQL = `SELECT clock_timestamp(), map_epoch FROM shard`

	operationsSQL = `
		SELECT operation_id, user_id, kind, target_id, desired_state, base_version,
		       outcome, result_state, result_version, created_at
		FROM unnest($1::text[], $2::text[]) AS k (o, u)
		JOIN command c ON c.operation_id = k.o AND c.user_id = k.u`

	factsSQL = `
		SELECT ` + factSQL + `
		FROM unnest($1::text[], $2::smallint[], $3::text[]) AS k (u, kind, t)
		JOIN relation r ON r.user_id = k.u AND r.kind = k.kind AND r.target_id = k.t`

	// Not ON CONFLICT: it writes a second record to the log for each row. A
	// relation that a writer without our locks made meanwhile is an error that
	// classify has run again.
	insertFactsSQL = `
		INSERT INTO relation (user_id, kind, target_id, state, version, state_changed_at,
		                      last_operation_id, created_at, updated_at, hidden, hidden_reason)
		SELECT u, k, t, s, v, c, o, $8, $8, h, nullif(hr, '')
		FROM unnest($1::text[], $2::smallint[], $3::text[], $4::smallint[], $5::bigint[], $6::timestamptz[], $7::text[],
		            $9::smallint[], $10::text[])
		     AS n (u, k, t, s, v, c, o, h, hr)`

	updateFactsSQL = `
		WITH written AS (
		    UPDATE relation r
		    SET state = n.s, version = n.v, state_changed_at = n.c, last_operation_id = n.o, updated_at = $8,
		        hidden = n.h, hidden_reason = nullif(n.hr, '')
		    FROM unnest($1::text[], $2::smallint[], $3::text[], $4::smallint[], $5::bigint[], $6::timestamptz[], $7::text[],
		                $10::smallint[], $11::text[], $12::bigint[])
		         AS n (u, k, t, s, v, c, o, h, hr, expected)
		    WHERE r.user_id = n.u AND r.kind = n.k AND r.target_id = n.t AND r.version = n.expected
		    RETURNING 1)
		SELECT expect_rows((SELECT count(*) FROM written), $9, 'updated')`

	insertCommandsSQL = `
		INSERT INTO command (operation_id, user_id, kind, target_id, desired_state, base_version,
		                     outcome, result_state, result_version, created_at)
		SELECT o, u, k, t, d, b, oc, rs, rv, $10
		FROM unnest($1::text[], $2::text[], $3::smallint[], $4::text[], $5::smallint[], $6::bigint[],
		            $7::smallint[], $8::smallint[], $9::bigint[]) AS n (o, u, k, t, d, b, oc, rs, rv)`

	insertOutboxSQL = `
		INSERT INTO outbox (aggregatetype, aggregateid, type, payload, source_shard, created_at)
		SELECT '` + topology.AggregateRelation + `', k, '` + topology.TypeRelationChanged + `', p::jsonb, $3, $4
		FROM unnest($1::text[], $2::text[]) AS n (k, p)`
)

// Lock keys of operations and relations: hashes with a seed of their own. Two
// names with one key only wait for each other.
const (
	operationLockSeed = 0x6f706572
	relationLockSeed  = 0x72656c61
)

func lockKey(seed uint64, name []byte) int64 {
	var d xxhash.Digest
	d.ResetWithSeed(seed)
	_, _ = d.Write(name)
	return int64(d.Sum64())
}

// lockKeys are the locks of a batch in the order in which every transaction
// takes them, so that none waits in a circle.
func lockKeys(batch []*request) []int64 {
	keys := make([]int64, 0, 2*len(batch))
	var name []byte
	for _, r := range batch {
		// An id has no control character, so no two pairs have one name.
		name = append(append(append(name[:0], r.cmd.Relation.User...), 0), r.cmd.OperationID...)
		keys = append(keys, lockKey(operationLockSeed, name))
		name = r.cmd.Relation.AppendKey(name[:0])
		keys = append(keys, lockKey(relationLockSeed, name))
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// load begins the transaction, takes the locks and reads what the batch needs.
func load(ctx context.Context, conn *pgx.Conn, batch []*request, rules rules) (*ledger, error) {
	l := &ledger{
		rules:      rules,
		operations: make(map[operationKey]decided, len(batch)),
		facts:      make(map[topology.Relation]Fact, len(batch)),
		changes:    make(map[topology.Relation]change, len(batch)),
	}
	ids, owners := make([]string, len(batch)), make([]string, len(batch))
	users, kinds, targets := relationColumns(batch)
	for i, r := range batch {
		ids[i], owners[i] = r.cmd.OperationID, r.cmd.Relation.User
	}
	var b pgx.Batch
	b.Queue("begin")
	b.Queue(lockSQL, lockKeys(batch), int64(fenceKey))
	b.Queue(shardSQL).QueryRow(func(row pgx.Row) error { return row.Scan(&l.now, &l.epoch) })
	b.Queue(operationsSQL, ids, owners).Query(l.readOperations)
	b.Queue(factsSQL, users, kinds, targets).Query(l.readFacts)
	l.queueKnownHidings(&b, batch)
	return l, conn.SendBatch(ctx, &b).Close()
}

// relationColumns are the batch's relations, each once.
func relationColumns(batch []*request) (users []string, kinds []int16, targets []string) {
	seen := make(map[topology.Relation]bool, len(batch))
	for _, r := range batch {
		if rel := r.cmd.Relation; !seen[rel] {
			seen[rel] = true
			users, kinds, targets = append(users, rel.User), append(kinds, int16(rel.Kind)), append(targets, rel.Target)
		}
	}
	return users, kinds, targets
}

func (l *ledger) readOperations(rows pgx.Rows) error {
	for rows.Next() {
		d, err := scanDecided(rows)
		if err != nil {
			return err
		}
		l.operations[d.command.operation()] = d
	}
	return rows.Err()
}

func (l *ledger) readFacts(rows pgx.Rows) error {
	for rows.Next() {
		f, err := scanFact(rows)
		if err != nil {
			return err
		}
		l.facts[f.Relation] = f
	}
	return rows.Err()
}

// store writes what the ledger decided and commits.
func (l *ledger) store(ctx context.Context, conn *pgx.Conn, shard int) error {
	var b pgx.Batch
	l.queueFacts(&b)
	l.queueCommands(&b)
	l.queueHidings(&b)
	if err := l.queueOutbox(&b, shard); err != nil {
		return err
	}
	b.Queue("commit")
	return conn.SendBatch(ctx, &b).Close()
}

// factColumns are rows of table relation as columns.
type factColumns struct {
	users, targets, operations, reasons []string
	kinds, states, hidden               []int16
	versions, from                      []int64
	changedAt                           []time.Time
}

func (c *factColumns) add(ch change) {
	f := ch.fact
	c.users, c.targets = append(c.users, f.Relation.User), append(c.targets, f.Relation.Target)
	c.operations = append(c.operations, ch.operationID)
	c.kinds, c.states = append(c.kinds, int16(f.Relation.Kind)), append(c.states, int16(f.State))
	c.versions, c.from = append(c.versions, int64(f.Version)), append(c.from, int64(ch.from))
	c.changedAt = append(c.changedAt, f.StateChangedAt)
	c.hidden, c.reasons = append(c.hidden, int16(f.Hiding.By)), append(c.reasons, f.Hiding.Reason)
}

func (l *ledger) queueFacts(b *pgx.Batch) {
	var inserts, updates factColumns
	for _, ch := range l.changes {
		if ch.from == 0 {
			inserts.add(ch)
		} else {
			updates.add(ch)
		}
	}
	if c := inserts; len(c.users) > 0 {
		b.Queue(insertFactsSQL, c.users, c.kinds, c.targets, c.states, c.versions, c.changedAt, c.operations, l.now, c.hidden, c.reasons)
	}
	if c := updates; len(c.users) > 0 {
		b.Queue(updateFactsSQL, c.users, c.kinds, c.targets, c.states, c.versions, c.changedAt, c.operations, l.now, len(c.users), c.hidden, c.reasons, c.from)
	}
}

func (l *ledger) queueCommands(b *pgx.Batch) {
	n := len(l.decided)
	if n == 0 {
		return
	}
	ids, users, targets := make([]string, n), make([]string, n), make([]string, n)
	kinds, desired, outcomes, states := make([]int16, n), make([]int16, n), make([]int16, n), make([]int16, n)
	bases, versions := make([]*int64, n), make([]int64, n)
	for i, d := range l.decided {
		c := d.command
		ids[i], users[i], targets[i] = c.OperationID, c.Relation.User, c.Relation.Target
		kinds[i], desired[i] = int16(c.Relation.Kind), int16(c.Desired)
		if c.BaseVersion != nil {
			base := int64(*c.BaseVersion)
			bases[i] = &base
		}
		outcomes[i], states[i], versions[i] = int16(d.result.Outcome), int16(d.result.State), int64(d.result.Version)
	}
	b.Queue(insertCommandsSQL, ids, users, kinds, targets, desired, bases, outcomes, states, versions, l.now)
}

func (l *ledger) queueOutbox(b *pgx.Batch, shard int) error {
	if len(l.transitions) == 0 {
		return nil
	}
	keys, payloads := make([]string, len(l.transitions)), make([]string, len(l.transitions))
	for i, t := range l.transitions {
		keys[i] = t.fact.Relation.Key()
		payload, err := eventPayload(t, keys[i], shard)
		if err != nil {
			return fmt.Errorf("writing the event of a relation: %w", err)
		}
		payloads[i] = string(payload)
	}
	b.Queue(insertOutboxSQL, keys, payloads, shard, l.now)
	return nil
}

// eventPayload is the event B1 of a transition.
func eventPayload(t transition, key string, shard int) ([]byte, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return nil, err
	}
	r := t.fact.Relation
	return json.Marshal(topology.Event{
		EventID: id.String(), AggregateKey: key,
		Kind: r.Kind.String(), UserID: r.User, TargetID: r.Target,
		RelationVersion: t.fact.Version,
		AbsoluteState:   t.fact.State.String(), PreviousState: t.previous.String(),
		SourceShard: shard, StateChangedAt: t.fact.StateChangedAt,
		Hidden: t.fact.Hiding.By.String(), HiddenReason: t.fact.Hiding.Reason,
	})
}
