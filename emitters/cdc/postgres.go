package cdc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// Bounds, unless the URL names a connect_timeout. They let a network through
// whose round trip takes seven seconds: a connection needs three and more, a
// query two. An address that nobody answers at is given up sooner.
const (
	dialTimeout    = 10 * time.Second
	connectTimeout = time.Minute      // with the handshake; the server's own is as long
	queryTimeout   = 30 * time.Second // a look at the server's catalogs
	tcpKeepAlive   = 30 * time.Second
)

// connectConfig reads a database URL. Settings of a connection pool, which a
// URL shared with other parts may carry, are dropped.
func connectConfig(url, application string) (*pgx.ConnConfig, error) {
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("reading the PostgreSQL URL: %w", err)
	}
	for name := range cfg.RuntimeParams {
		if strings.HasPrefix(name, "pool_") {
			delete(cfg.RuntimeParams, name)
		}
	}
	if cfg.ConnectTimeout == 0 {
		cfg.ConnectTimeout = connectTimeout
		cfg.DialFunc = (&net.Dialer{Timeout: dialTimeout, KeepAlive: tcpKeepAlive}).DialContext
	}
	cfg.RuntimeParams["application_name"] = application
	return cfg, nil
}

// dialSQL opens an ordinary connection.
func dialSQL(ctx context.Context, url, application string) (*pgx.Conn, error) {
	cfg, err := connectConfig(url, application)
	if err != nil {
		return nil, err
	}
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("connecting to PostgreSQL: %w", err)
	}
	return conn, nil
}

// closeSQL closes conn within a second, also after ctx of its work has ended.
func closeSQL(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = conn.Close(ctx) // nothing is lost: no transaction is open
	select {
	case <-conn.PgConn().CleanupDone():
	case <-ctx.Done():
	}
}

// publication is what the server says about one.
type publication struct {
	viaRoot, insert, others bool
	partitioned             bool // the outbox is
	outbox                  bool // the publication has it
	filtered                bool // but not all of its rows or columns
}

const publicationQuery = `
SELECT p.pubviaroot, p.pubinsert, p.pubupdate OR p.pubdelete OR p.pubtruncate,
       coalesce((SELECT c.relkind = 'p' FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                 WHERE n.nspname = $2 AND c.relname = $3), false),
       EXISTS (SELECT FROM pg_publication_tables t
               WHERE t.pubname = p.pubname AND t.schemaname = $2 AND t.tablename = $3),
       EXISTS (SELECT FROM pg_publication_rel r, pg_class c, pg_namespace n, to_jsonb(r) AS whole
               WHERE r.prpubid = p.oid AND c.oid = r.prrelid AND n.oid = c.relnamespace AND n.nspname = $2 AND c.relname = $3
                 AND (whole->>'prqual' IS NOT NULL OR whole->>'prattrs' IS NOT NULL)) -- columns since PostgreSQL 15
FROM pg_publication p WHERE p.pubname = $1`

// checkPublication refuses a publication from which no row, or rows under
// another table's name, would come: the stream would be silent, not wrong. It
// reports whether other changes than inserts are published, which the emitter
// does not pass on.
func checkPublication(ctx context.Context, conn *pgx.Conn, name, schema, table string) (others bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	var p publication
	err = conn.QueryRow(ctx, publicationQuery, name, schema, table).
		Scan(&p.viaRoot, &p.insert, &p.others, &p.partitioned, &p.outbox, &p.filtered)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return false, fmt.Errorf("%w: publication %s does not exist; `tidemark cdc create-slot` makes it", ErrPublication, name)
	case err != nil:
		return false, fmt.Errorf("reading publication %s: %w", name, err)
	case p.partitioned && !p.viaRoot:
		return false, fmt.Errorf("%w: run ALTER PUBLICATION %s SET (publish_via_partition_root = true), or rows arrive under their partitions' names", ErrPublication, name)
	case !p.outbox:
		return false, fmt.Errorf("%w: run ALTER PUBLICATION %s ADD TABLE %s.%s", ErrPublication, name, schema, table)
	case p.filtered:
		return false, fmt.Errorf("%w: it has a row filter or a column list, so that rows or columns of the outbox are left out: run ALTER PUBLICATION %s SET TABLE %s.%s", ErrPublication, name, schema, table)
	case !p.insert:
		return false, fmt.Errorf("%w: run ALTER PUBLICATION %s SET (publish = 'insert')", ErrPublication, name)
	}
	return p.others, nil
}

// serverFacts are what a session needs to know about the server.
type serverFacts struct {
	database      string
	senderTimeout time.Duration // wal_sender_timeout; 0: off
}

func readServerFacts(ctx context.Context, conn *pgx.Conn) (serverFacts, error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	var f serverFacts
	var ms int64
	err := conn.QueryRow(ctx, `SELECT current_database(), setting::bigint FROM pg_settings WHERE name = 'wal_sender_timeout'`).
		Scan(&f.database, &ms)
	if err != nil {
		return f, fmt.Errorf("reading the server's settings: %w", err)
	}
	f.senderTimeout = time.Duration(ms) * time.Millisecond
	return f, nil
}
