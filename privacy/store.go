package privacy

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tidemark/tidemark/internal/tlsfiles"
)

// Store keeps what events said in the control database, whose migrations make
// its tables. Its methods are safe for concurrent use. An error of a question
// is an outage: nothing may be shown then.
type Store struct {
	pool    *pgxpool.Pool
	friends Friends // nil: nobody is a friend
}

// sessionParams hold for every connection. All questions look up keys: as in
// the relation shards, a plan that reads a whole table is not allowed, since
// one made while the table was small stays with its connection.
var sessionParams = map[string]string{
	"application_name":  "tidemark-privacy",
	"enable_seqscan":    "off",
	"enable_hashjoin":   "off",
	"enable_mergejoin":  "off",
	"jit":               "off",
	"statement_timeout": "5s",
}

// Open makes the pool; it connects when it is used.
func Open(ctx context.Context, controlURL string) (*Store, error) {
	config, err := pgxpool.ParseConfig(controlURL)
	if err != nil {
		return nil, fmt.Errorf("privacy: reading the control database's URL: %w", err)
	}
	config.MaxConns = 8
	config.BeforeConnect = tlsfiles.RenewPostgres
	for name, value := range sessionParams {
		config.ConnConfig.RuntimeParams[name] = value
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("privacy: %w", err)
	}
	return &Store{pool: pool}, nil
}

// UseFriends has the store ask f who are friends; call it before any question.
// Without, a video for friends is its author's only.
func (s *Store) UseFriends(f Friends) { s.friends = f }

// Close ends every connection.
func (s *Store) Close() { s.pool.Close() }

// Apply stores an event unless its version is not above the stored one; applied
// tells which. Its error is ErrInvalid, or an outage, after which the same
// event may be applied again.
func (s *Store) Apply(ctx context.Context, e Event) (applied bool, err error) {
	if err := e.check(); err != nil {
		return false, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	sql, args := e.upsert()
	tag, err := s.pool.Exec(ctx, sql, args...)
	if err != nil {
		return false, fmt.Errorf("storing a privacy event: %w", err)
	}
	return tag.RowsAffected() > 0, nil
}

// chosen asks a question whose rows are the places, from 1, of those of ids that
// it holds for. by is its first parameter.
func (s *Store) chosen(ctx context.Context, sql string, by any, ids []string) ([]bool, error) {
	out := make([]bool, len(ids))
	if len(ids) == 0 {
		return out, nil
	}
	rows, err := s.pool.Query(ctx, sql, by, ids)
	if err != nil {
		return nil, fmt.Errorf("asking what may be shown: %w", err)
	}
	var place int64
	_, err = pgx.ForEachRow(rows, []any{&place}, func() error { out[place-1] = true; return nil })
	if err != nil {
		return nil, fmt.Errorf("asking what may be shown: %w", err)
	}
	return out, nil
}
