package relations

import (
	"context"
	"embed"
	"fmt"
	"io/fs"

	"github.com/jackc/pgx/v5"

	"github.com/tidemark/tidemark/internal/control/schema"
)

// Publication is the name of the publication that the change feed reads.
const Publication = "tidemark_outbox"

//go:embed migrations/*.sql
var migrations embed.FS

func migrationSet() schema.Set {
	dir, err := fs.Sub(migrations, "migrations")
	if err != nil {
		panic(err) // the folder is embedded above
	}
	return schema.Set{FS: dir, Table: "tidemark_relations_version"}
}

// Migrate brings a shard's database at url up to this code's schema, marks it
// as that shard, and makes its time partitions. It refuses the database of
// another shard. It is safe to call from several processes at once.
func Migrate(ctx context.Context, url string, shard int) error {
	if err := schema.Apply(ctx, url, migrationSet()); err != nil {
		return fmt.Errorf("relation shard %d: %w", shard, err)
	}
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return fmt.Errorf("relation shard %d: connecting: %w", shard, err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	if _, err := conn.Exec(ctx, "INSERT INTO shard (number) VALUES ($1) ON CONFLICT DO NOTHING", shard); err != nil {
		return fmt.Errorf("relation shard %d: marking the database: %w", shard, err)
	}
	if err := checkIdentity(ctx, conn, shard); err != nil {
		return err
	}
	return ensurePartitionsNow(ctx, conn, shard)
}

// MigrationStatus lists the migrations of the shard database at url.
func MigrationStatus(ctx context.Context, url string) ([]schema.Migration, error) {
	list, err := schema.Status(ctx, url, migrationSet())
	if err != nil {
		return nil, fmt.Errorf("relation shard: %w", err)
	}
	return list, nil
}

// checkIdentity refuses a connection to another shard's database: facts
// written there would be lost to their users.
func checkIdentity(ctx context.Context, conn *pgx.Conn, shard int) error {
	var number int
	if err := conn.QueryRow(ctx, "SELECT number FROM shard").Scan(&number); err != nil {
		return fmt.Errorf("relation shard %d: reading which shard the database is (run `tidemark schema migrate` if it is new): %w", shard, err)
	}
	if number != shard {
		return fmt.Errorf("relation shard %d: the database says that it is shard %d: check the order of the PostgreSQL URLs", shard, number)
	}
	return nil
}
