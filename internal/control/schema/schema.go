// Package schema applies goose migrations that are embedded in the binary to a
// PostgreSQL database.
//
// Concurrent starts are safe: a session advisory lock of the database lets one
// process migrate while the others wait, and those then find nothing to do.
package schema

import (
	"context"
	"database/sql"
	"fmt"
	"io/fs"
	"path"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
)

// Set is one component's migrations and the table that records which of them
// a database has.
type Set struct {
	FS    fs.FS  // *.sql in its root, as goose names them
	Table string // version table
}

// Migration is one migration and whether the database has it.
type Migration struct {
	Version   int64
	Name      string // file name
	Applied   bool
	AppliedAt time.Time // zero when not applied
}

// Apply brings the database at url up to the newest migration of s. It waits
// for another process that migrates the same database.
func Apply(ctx context.Context, url string, s Set) error {
	return s.with(url, func(p *goose.Provider) error {
		if _, err := p.Up(ctx); err != nil {
			return fmt.Errorf("migrating the schema (version table %s): %w", s.Table, err)
		}
		return nil
	})
}

// Status lists every migration of s, oldest first. It reads without a lock.
func Status(ctx context.Context, url string, s Set) ([]Migration, error) {
	var out []Migration
	err := s.with(url, func(p *goose.Provider) error {
		list, err := p.Status(ctx)
		if err != nil {
			return fmt.Errorf("reading the schema's state (version table %s): %w", s.Table, err)
		}
		for _, m := range list {
			out = append(out, Migration{
				Version: m.Source.Version, Name: path.Base(m.Source.Path),
				Applied: m.State == goose.StateApplied, AppliedAt: m.AppliedAt,
			})
		}
		return nil
	})
	return out, err
}

func (s Set) with(url string, do func(*goose.Provider) error) error {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return fmt.Errorf("reading the PostgreSQL URL: %w", err)
	}
	db := stdlib.OpenDB(*config)
	defer func() { _ = db.Close() }()
	provider, err := goose.NewProvider(goose.DialectPostgres, db, s.FS,
		goose.WithTableName(s.Table), goose.WithSessionLocker(sessionLock{}),
		goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return fmt.Errorf("reading the migrations of %s: %w", s.Table, err)
	}
	return do(provider)
}

// lockKey is the advisory lock of migrations ("tdmkschm" in ASCII).
const lockKey = 0x74646d6b7363686d

// sessionLock waits in PostgreSQL instead of polling as goose's own does.
// Waiting is safe as long as no migration uses CREATE INDEX CONCURRENTLY,
// which waits for the transactions of those who wait for it.
type sessionLock struct{}

func (sessionLock) SessionLock(ctx context.Context, conn *sql.Conn) error {
	_, err := conn.ExecContext(ctx, "SELECT pg_advisory_lock($1)", int64(lockKey))
	return err
}

func (sessionLock) SessionUnlock(ctx context.Context, conn *sql.Conn) error {
	_, err := conn.ExecContext(ctx, "SELECT pg_advisory_unlock($1)", int64(lockKey))
	return err
}
