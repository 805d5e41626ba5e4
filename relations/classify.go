package relations

import (
	"errors"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// A verdict says what to do after a transaction's error. This is the one place
// that decides it.
type verdict int

const (
	permanent   verdict = iota // the same commands would meet it again
	again                      // run again on the same connection
	reconnect                  // run again on a new connection
	noPartition                // make partitions, then run again
	tooLarge                   // run again in parts
)

// classify judges err, met on conn (nil: while connecting). Running again is
// safe after any error, even a lost answer to a commit, because the operation
// ids of the batch are then found.
func classify(err error, conn *pgx.Conn) verdict {
	var pg *pgconn.PgError
	switch {
	case err == nil || conn == nil || conn.IsClosed():
		return reconnect
	case !errors.As(err, &pg):
		return permanent // of this process: an argument or a row that pgx refuses
	case isMissingPartition(err):
		return noPartition
	case pg.Code == uniqueViolation && pg.ConstraintName == "relation_pkey":
		return again // another writer made the relation after it was read
	}
	return classifyCode(pg.Code)
}

const uniqueViolation = "23505"

func classifyCode(code string) verdict {
	switch code {
	case "40001", "40P01", // serialization failure, deadlock
		"55P03", "57014": // lock timeout, statement timeout
		return again
	case "53200": // out of shared memory: no room for so many locks
		return tooLarge
	case "25006", // read only: a standby, or no longer the primary
		"42P01", "42883": // no table, no function: another process migrates
		return reconnect
	}
	switch {
	case strings.HasPrefix(code, "08"), // connection
		strings.HasPrefix(code, "53"), // resources
		strings.HasPrefix(code, "57"), // shutdown, starting up
		strings.HasPrefix(code, "58"): // system, I/O
		return reconnect
	}
	return permanent
}

// reason names an error for the retry metric, from a closed list.
func reason(err error, v verdict) string {
	var pg *pgconn.PgError
	switch {
	case v == permanent:
		return "refused"
	case v == noPartition:
		return "no_partition"
	case v == tooLarge:
		return "too_large"
	case v == again && errors.As(err, &pg):
		switch pg.Code {
		case "40P01":
			return "deadlock"
		case "40001", uniqueViolation:
			return "serialization"
		}
		return "timeout"
	}
	return "connection"
}
