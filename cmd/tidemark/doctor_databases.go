package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/tidemark/tidemark/internal/control"
	"github.com/tidemark/tidemark/internal/control/schema"
	"github.com/tidemark/tidemark/relations"
)

// oldestPostgres is the first major version whose logical decoding streams as
// the change feed needs it.
const oldestPostgres = 14

func (d *doctor) databases(ctx context.Context) {
	if err := d.cfg.Require("control", "postgres"); err != nil {
		d.bad("databases", err.Error(), "give their URLs")
		return
	}
	d.control(ctx)
	for shard, url := range d.cfg.Postgres {
		d.shard(ctx, shard, url)
	}
}

// server connects to a database and checks its server; nil when that failed.
func (d *doctor) server(ctx context.Context, check, url string) (conn *pgx.Conn, version string) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		d.bad(check, err.Error(), d.unlessDev("check that PostgreSQL runs there and that the URL's user may connect"))
		return nil, ""
	}
	var number int
	if err := conn.QueryRow(ctx, "SELECT current_setting('server_version'), current_setting('server_version_num')::int").Scan(&version, &number); err != nil {
		d.bad(check, err.Error(), "")
	} else if number/10000 < oldestPostgres {
		d.bad(check, "PostgreSQL "+version+" is too old", fmt.Sprintf("upgrade it to %d or later", oldestPostgres))
	} else {
		return conn, version
	}
	closeConn(ctx, conn)
	return nil, ""
}

func closeConn(ctx context.Context, conn *pgx.Conn) { _ = conn.Close(context.WithoutCancel(ctx)) }

// unlessDev is what helps when something is away: starting dev if this is a
// data directory of one that does not run.
func (d *doctor) unlessDev(otherwise string) string {
	for _, f := range d.found {
		if f.Check == "tidemark dev" && f.State == "bad" {
			return d.startDev()
		}
	}
	return otherwise
}

func (d *doctor) control(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, doctorTimeout)
	defer cancel()
	const check = "control database"
	conn, version := d.server(ctx, check, d.cfg.Control)
	if conn == nil {
		return
	}
	closeConn(ctx, conn)
	if !d.migrated(check, func() ([]schema.Migration, error) { return control.MigrationStatus(ctx, d.cfg.Control) }) {
		return
	}
	if err := d.contracts(ctx); err != nil {
		d.bad(check, err.Error(), "")
		return
	}
	d.ok(check, "PostgreSQL %s, schema and contracts as they should be", version)
}

func (d *doctor) contracts(ctx context.Context) error {
	db, err := control.Open(ctx, d.cfg.Control)
	if err != nil {
		return err
	}
	defer db.Close()
	shards, err := db.ShardMap(ctx)
	if err != nil {
		return err
	}
	manifest, err := db.ActiveManifest(ctx)
	if err != nil {
		return err
	}
	reverse, err := db.ReverseGeneration(ctx)
	if err != nil {
		return err
	}
	return errors.Join(shards.Check(d.cfg.Shards), manifest.Check(d.cfg.CountPartitions), reverse.Check(d.cfg.LikerPartitions, d.cfg.ReverseShards))
}

// migrated tells whether every migration is applied.
func (d *doctor) migrated(check string, status func() ([]schema.Migration, error)) bool {
	migrations, err := status()
	if err != nil {
		d.bad(check, err.Error(), "")
		return false
	}
	for _, m := range migrations {
		if !m.Applied {
			d.bad(check, "migration "+m.Name+" is not applied", "`tidemark schema migrate`")
			return false
		}
	}
	return true
}

func (d *doctor) shard(ctx context.Context, shard int, url string) {
	ctx, cancel := context.WithTimeout(ctx, doctorTimeout)
	defer cancel()
	check := fmt.Sprintf("relation shard %d", shard)
	conn, version := d.server(ctx, check, url)
	if conn == nil {
		return
	}
	defer closeConn(ctx, conn)
	var level string
	if err := conn.QueryRow(ctx, "SELECT current_setting('wal_level')").Scan(&level); err != nil {
		d.bad(check, err.Error(), "")
		return
	}
	if level != "logical" {
		d.bad(check, "wal_level is "+level, "set wal_level = logical and restart PostgreSQL: the change feed needs it")
		return
	}
	if !d.migrated(check, func() ([]schema.Migration, error) { return relations.MigrationStatus(ctx, url) }) {
		return
	}
	d.slot(ctx, conn, check, version, slotName(d.cfg.Prefix, shard))
}

// slot looks at a shard's change feed.
func (d *doctor) slot(ctx context.Context, conn *pgx.Conn, check, version, slot string) {
	var active bool
	var status string
	var lag int64
	err := conn.QueryRow(ctx, `
		SELECT active, coalesce(wal_status, ''), coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn), 0)::bigint
		FROM pg_replication_slots WHERE slot_name = $1`, slot).Scan(&active, &status, &lag)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		d.bad(check, "replication slot "+slot+" does not exist", "`tidemark cdc create-slot` makes it; what was committed meanwhile becomes a named gap")
	case err != nil:
		d.bad(check, err.Error(), "")
	case status == "lost":
		d.bad(check, "replication slot "+slot+" needs WAL that the server has removed", "facts are missing in the stream: `tidemark cdc drop-slot`, `tidemark cdc create-slot`, then heal the gap; raise max_slot_wal_keep_size")
	case !active:
		d.bad(check, fmt.Sprintf("nobody reads replication slot %s, %d bytes of WAL wait", slot, lag), "start the role: `tidemark run cdc`")
	default:
		d.ok(check, "PostgreSQL %s, schema as it should be, change feed %d bytes behind", version, lag)
	}
}
