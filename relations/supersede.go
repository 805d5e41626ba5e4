package relations

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tidemark/tidemark/topology"
)

// Supersede writes a relation as it is, under a version above one that was
// counted although this shard has lost it: a higher version is the only thing
// that puts counts right (I3). The state, and the time of its last change, stay
// (A6). Of a relation that is above that version nothing is changed, so that
// doing it twice does what doing it once does. A hidden relation stays hidden.
//
// operationID names who did it, in the relation; no command has it.
func (o *Outbox) Supersede(ctx context.Context, shard int, r topology.Relation, version uint64, operationID string) error {
	err := o.ask(shard, "a relation to be superseded", func(pool *pgxpool.Pool) error {
		conn, err := pool.Acquire(ctx)
		if err != nil {
			return err
		}
		defer conn.Release() // a transaction that is left open ends with its connection
		l, err := load(ctx, conn.Conn(), []*request{{cmd: Command{OperationID: operationID, Relation: r}}}, rules{})
		if err != nil {
			return err
		}
		current, ok := l.facts[r]
		if !ok {
			current = initialFact(r)
			current.StateChangedAt = after(current.StateChangedAt, l.now)
		}
		if current.Version > version {
			_, err := conn.Exec(ctx, "rollback")
			return err
		}
		next := current
		next.Version = version + 1
		l.apply(current, next, operationID)
		return l.store(ctx, conn.Conn(), shard)
	})
	if err != nil {
		return fmt.Errorf("superseding version %d of a relation: %w", version, err)
	}
	return nil
}
