package relations

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tidemark/tidemark/topology"
)

// MaxTargets is the most targets of one States call.
const MaxTargets = 1000

// States tells the user's relations of one kind to the targets, in their
// order, in one query. A relation that never was has the initial state and
// version 0.
func (s *Store) States(ctx context.Context, user string, kind topology.Kind, targets []string) ([]Fact, error) {
	if len(targets) > MaxTargets {
		return nil, fmt.Errorf("%w: %d targets are more than %d", ErrInvalid, len(targets), MaxTargets)
	}
	facts := make([]Fact, len(targets))
	for i, target := range targets {
		facts[i] = initialFact(topology.Relation{Kind: kind, User: user, Target: target})
		if err := facts[i].Relation.Check(); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
		}
	}
	if len(targets) == 0 {
		return facts, nil
	}
	found, err := s.statesOf(ctx, user, kind, targets)
	if err != nil {
		return nil, err
	}
	for i, target := range targets {
		if f, ok := found[target]; ok {
			facts[i] = f
		}
	}
	return facts, nil
}

func (s *Store) statesOf(ctx context.Context, user string, kind topology.Kind, targets []string) (map[string]Fact, error) {
	var found map[string]Fact
	err := s.of(user).read(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		found = make(map[string]Fact, len(targets))
		rows, err := conn.Query(ctx, `
			SELECT `+factSQL+`
			FROM relation r WHERE user_id = $1 AND kind = $2 AND target_id = ANY($3::text[])`,
			user, int16(kind), targets)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			f, err := scanFact(rows)
			if err != nil {
				return err
			}
			found[f.Relation.Target] = f
		}
		return rows.Err()
	})
	if err != nil {
		return nil, fmt.Errorf("reading relation states: %w", err)
	}
	return found, nil
}

// Operation tells what became of one of the user's commands (A4), or
// ErrOperationNotFound, or ErrOperationExpired. A command that is still waiting is not found.
func (s *Store) Operation(ctx context.Context, user, operationID string) (Operation, error) {
	if err := topology.CheckID(user); err != nil {
		return Operation{}, fmt.Errorf("%w: user id %w", ErrInvalid, err)
	}
	if err := topology.CheckID(operationID); err != nil {
		return Operation{}, fmt.Errorf("%w: operation id %w", ErrInvalid, err)
	}
	var op Operation
	err := s.of(user).read(ctx, func(ctx context.Context, conn *pgx.Conn) (err error) {
		op, err = readOperation(ctx, conn, user, operationID)
		return err
	})
	if errors.Is(err, ErrOperationNotFound) && expired(operationID, s.config.OperationsKept, time.Now()) {
		err = ErrOperationExpired
	}
	if err != nil {
		return Operation{}, fmt.Errorf("reading an operation: %w", err)
	}
	return op, nil
}

// readOperation reads the command and its relation in one snapshot.
func readOperation(ctx context.Context, q querier, user, operationID string) (Operation, error) {
	rows, err := q.Query(ctx, `
		SELECT c.operation_id, c.user_id, c.kind, c.target_id, c.desired_state, c.base_version,
		       c.outcome, c.result_state, c.result_version, c.created_at,
		       r.state, r.version, r.state_changed_at, coalesce(r.hidden, 0), coalesce(r.hidden_reason, '')
		FROM command c
		LEFT JOIN relation r ON r.user_id = c.user_id AND r.kind = c.kind AND r.target_id = c.target_id
		WHERE c.operation_id = $1 AND c.user_id = $2`, operationID, user)
	if err != nil {
		return Operation{}, err
	}
	op, err := pgx.CollectExactlyOneRow(rows, scanOperation)
	if errors.Is(err, pgx.ErrNoRows) {
		return op, ErrOperationNotFound
	}
	return op, err
}

func scanOperation(row pgx.CollectableRow) (Operation, error) {
	var (
		state     *topology.State
		version   *int64
		changedAt *time.Time
		hiding    topology.Hiding
	)
	d, err := scanDecided(row, &state, &version, &changedAt, &hiding.By, &hiding.Reason)
	if err != nil {
		return Operation{}, err
	}
	op := Operation{Command: d.command, Result: d.result, Current: initialFact(d.command.Relation)}
	if state != nil && version != nil && changedAt != nil {
		op.Current.State, op.Current.Version, op.Current.StateChangedAt = *state, uint64(*version), changedAt.UTC()
		op.Current.Hiding = hiding
	}
	return op, nil
}

// scanDecided reads a row of table command, and what follows it into more.
func scanDecided(row pgx.Row, more ...any) (decided, error) {
	var (
		d       decided
		base    *int64
		version int64
	)
	into := []any{
		&d.command.OperationID, &d.command.Relation.User, &d.command.Relation.Kind, &d.command.Relation.Target,
		&d.command.Desired, &base, &d.result.Outcome, &d.result.State, &version, &d.result.DecidedAt,
	}
	if err := row.Scan(append(into, more...)...); err != nil {
		return d, fmt.Errorf("reading a row of table command: %w", err)
	}
	if base != nil {
		b := uint64(*base)
		d.command.BaseVersion = &b
	}
	d.result.Version, d.result.DecidedAt = uint64(version), d.result.DecidedAt.UTC()
	return d, nil
}

// factSQL are the columns of table relation, as r, that scanFact reads.
const factSQL = "r.user_id, r.kind, r.target_id, r.state, r.version, r.state_changed_at, r.hidden, coalesce(r.hidden_reason, '')"

// scanFact reads a row of table relation.
func scanFact(row pgx.Row) (Fact, error) {
	var f Fact
	var version int64
	if err := row.Scan(&f.Relation.User, &f.Relation.Kind, &f.Relation.Target, &f.State, &version, &f.StateChangedAt, &f.Hiding.By, &f.Hiding.Reason); err != nil {
		return f, fmt.Errorf("reading a row of table relation: %w", err)
	}
	f.Version, f.StateChangedAt = uint64(version), f.StateChangedAt.UTC()
	return f, nil
}

// Facts gives every relation of a shard to do, in no order, all from one
// snapshot, in bounded memory; for verification. What the change feed had told
// before the call is in it, see Outbox.AwaitWriters: nothing that was read from
// the streams by then is above its fact. It stops at do's first error and returns
// it.
func (s *Store) Facts(ctx context.Context, shard int, do func(Fact) error) error {
	if shard < 0 || shard >= len(s.shards) {
		return fmt.Errorf("%w: there is no relation shard %d", ErrInvalid, shard)
	}
	sh := s.shards[shard]
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(sh.life, cancel)()
	conn, err := sh.pool.Acquire(ctx)
	if err != nil {
		return sh.unavailable(ctx, err)
	}
	defer conn.Release()
	if err = awaitWriters(ctx, conn); err == nil {
		opts := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
		err = pgx.BeginTxFunc(ctx, conn, opts, func(tx pgx.Tx) error { return streamFacts(ctx, tx, do, "") })
	}
	if err != nil {
		return fmt.Errorf("reading the facts of relation shard %d: %w", shard, err)
	}
	return nil
}

// session is a connection or a transaction.
type session interface {
	querier
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// streamFacts needs a transaction. It gives every relation, or those that a
// condition with args is true of. After do's error the connection is broken.
func streamFacts(ctx context.Context, tx session, do func(Fact) error, condition string, args ...any) error {
	if _, err := tx.Exec(ctx, "SET LOCAL enable_seqscan = on; SET LOCAL statement_timeout = 0"); err != nil {
		return err
	}
	// Ended before the rows are closed, it leaves the rest of the table unread.
	ctx, cancel := context.WithCancel(ctx)
	rows, err := tx.Query(ctx, "SELECT "+factSQL+" FROM relation r "+condition, args...)
	if err != nil {
		cancel()
		return err
	}
	defer rows.Close()
	defer cancel()
	for rows.Next() {
		f, err := scanFact(rows)
		if err != nil {
			return err
		}
		if err := do(f); err != nil {
			return err
		}
	}
	return rows.Err()
}

// Ping tells whether a shard can take commands: it answers, is that shard, goes
// by this process's map, and has time partitions for another day.
func (s *Store) Ping(ctx context.Context, shard int) error {
	if shard < 0 || shard >= len(s.shards) {
		return fmt.Errorf("%w: there is no relation shard %d", ErrInvalid, shard)
	}
	err := s.shards[shard].read(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		var now time.Time
		var epoch int64
		if err := conn.QueryRow(ctx, shardSQL).Scan(&now, &epoch); err != nil {
			return err
		}
		if mine := s.routing.current.Load().ID; int64(mine) != epoch {
			return fmt.Errorf("it serves writers of shard map %d, and this process has map %d: see `tidemark shards check`", epoch, mine)
		}
		return checkAhead(ctx, conn, now)
	})
	if err != nil {
		return fmt.Errorf("relation shard %d is not ready: %w", shard, err)
	}
	return nil
}
