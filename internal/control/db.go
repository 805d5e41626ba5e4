package control

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tidemark/tidemark/internal/control/schema"
	"github.com/tidemark/tidemark/internal/tlsfiles"
	"github.com/tidemark/tidemark/topology"
)

//go:embed migrations/*.sql
var migrations embed.FS

func migrationSet() schema.Set {
	dir, err := fs.Sub(migrations, "migrations")
	if err != nil {
		panic(err) // the folder is embedded above
	}
	return schema.Set{FS: dir, Table: "tidemark_control_version"}
}

// Migrate brings the control database at url up to this code's schema. It is
// safe to call from several processes at once.
func Migrate(ctx context.Context, url string) error {
	if err := schema.Apply(ctx, url, migrationSet()); err != nil {
		return fmt.Errorf("control database: %w", err)
	}
	return nil
}

// MigrationStatus lists the migrations of the control database.
func MigrationStatus(ctx context.Context, url string) ([]schema.Migration, error) {
	list, err := schema.Status(ctx, url, migrationSet())
	if err != nil {
		return nil, fmt.Errorf("control database: %w", err)
	}
	return list, nil
}

// ErrNotBootstrapped says that the control database holds no contracts yet.
var ErrNotBootstrapped = errors.New("control database: nothing is activated: run `tidemark schema migrate` first")

// DB is the control database. Its methods are safe for concurrent use; a
// connection that was lost is made again by the next call.
type DB struct{ pool *pgxpool.Pool }

// Open makes the pool and connects once.
func Open(ctx context.Context, url string) (*DB, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("control database: reading its URL: %w", err)
	}
	config.MaxConns = 4
	config.BeforeConnect = tlsfiles.RenewPostgres
	config.ConnConfig.RuntimeParams["application_name"] = "tidemark-control"
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("control database: %w", err)
	}
	if err := pool.Ping(ctx); err != nil {
		pool.Close()
		return nil, fmt.Errorf("control database: connecting: %w", err)
	}
	return &DB{pool: pool}, nil
}

// Close ends every connection.
func (d *DB) Close() { d.pool.Close() }

// Ping tells whether the database answers; for readiness.
func (d *DB) Ping(ctx context.Context) error {
	if err := d.pool.Ping(ctx); err != nil {
		return fmt.Errorf("control database: %w", err)
	}
	return nil
}

// ShardMap reads the active shard map and checks this code against it.
func (d *DB) ShardMap(ctx context.Context) (topology.ShardMap, error) {
	var m topology.ShardMap
	err := d.read(ctx, func(tx pgx.Tx) (err error) {
		m, _, err = loadShardMap(ctx, tx, nil)
		return err
	})
	return m, err
}

// ActiveManifest reads the active generation's route manifest: sealed, whole,
// with the row count and checksum that it was sealed with (D1).
func (d *DB) ActiveManifest(ctx context.Context) (topology.Manifest, error) {
	var m topology.Manifest
	err := d.read(ctx, func(tx pgx.Tx) (err error) {
		m, err = loadActiveManifest(ctx, tx)
		return err
	})
	return m, err
}

// ReverseGeneration reads the active reverse generation and checks this code
// against it.
func (d *DB) ReverseGeneration(ctx context.Context) (topology.ReverseGeneration, error) {
	var g topology.ReverseGeneration
	err := d.read(ctx, func(tx pgx.Tx) (err error) {
		g, err = loadReverse(ctx, tx)
		return err
	})
	return g, err
}

// read runs do on one snapshot, so that a pointer and what it points at agree.
func (d *DB) read(ctx context.Context, do func(pgx.Tx) error) error {
	opts := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	return named(pgx.BeginTxFunc(ctx, d.pool, opts, do))
}

func named(err error) error {
	var pg *pgconn.PgError
	switch {
	case err == nil || errors.Is(err, ErrNotBootstrapped):
		return err
	case errors.As(err, &pg) && pg.Code == "42P01": // undefined table
		return fmt.Errorf("control database: its schema is missing: run `tidemark schema migrate`: %w", err)
	}
	return fmt.Errorf("control database: %w", err)
}
