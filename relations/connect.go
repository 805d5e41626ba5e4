package relations

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tidemark/tidemark/internal/tlsfiles"
)

// sessionParams hold for every connection to a shard.
//
// All statements look up keys. A plan that was made while a table was small
// stays with its connection, so plans that read a whole table are not allowed
// at all. A lock or statement that hangs gives way, and a process that stops
// in the middle of a transaction frees its locks.
var sessionParams = map[string]string{
	"application_name":                    "tidemark-relations",
	"timezone":                            "UTC",
	"enable_seqscan":                      "off",
	"enable_hashjoin":                     "off",
	"enable_mergejoin":                    "off",
	"jit":                                 "off",
	"lock_timeout":                        "5s",
	"statement_timeout":                   "10s",
	"idle_in_transaction_session_timeout": "10s",
}

func setParams(config *pgx.ConnConfig) {
	for name, value := range sessionParams {
		config.RuntimeParams[name] = value
	}
}

// parseURL reads a shard's URL; its error hides the password.
func parseURL(shard int, url string) (*pgx.ConnConfig, error) {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("relation shard %d: reading its PostgreSQL URL: %w", shard, err)
	}
	setParams(config)
	return config, nil
}

// connect opens a connection to a shard and checks that it is that shard.
func connect(ctx context.Context, config *pgx.ConnConfig, shard int) (*pgx.Conn, error) {
	config = config.Copy()
	if err := tlsfiles.RenewPostgres(ctx, config); err != nil {
		return nil, err
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("connecting: %w", err)
	}
	if err := checkIdentity(ctx, conn, shard); err != nil {
		discard(conn)
		return nil, err
	}
	return conn, nil
}

// newPool makes the pool of a shard's readers. It connects when it is used.
func newPool(url string, shard, conns int) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("relation shard %d: reading its PostgreSQL URL: %w", shard, err)
	}
	setParams(config.ConnConfig)
	config.MaxConns, config.MinConns = int32(conns), 0
	config.BeforeConnect = tlsfiles.RenewPostgres
	config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error { return checkIdentity(ctx, conn, shard) }
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		return nil, fmt.Errorf("relation shard %d: %w", shard, err)
	}
	return pool, nil
}

// discard closes a connection whose state is unknown, without waiting for its
// server.
func discard(conn *pgx.Conn) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = conn.Close(ctx) // the connection is given up either way
}
