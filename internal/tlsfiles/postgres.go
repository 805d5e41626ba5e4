package tlsfiles

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// RenewPostgres has a connection that is about to be made use what the files
// named in its URL (sslrootcert, sslcert, sslkey) hold now: pgx reads them when it
// reads the URL. Files that cannot be used now leave what was read before. It is
// a pgxpool.Config.BeforeConnect.
func RenewPostgres(_ context.Context, c *pgx.ConnConfig) error {
	if fresh, err := pgx.ParseConfig(c.ConnString()); err == nil {
		c.TLSConfig, c.Fallbacks = fresh.TLSConfig, fresh.Fallbacks
	}
	return nil
}
