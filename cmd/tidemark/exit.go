package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kerr"
)

// Exit codes.
const (
	exitOK        = 0
	exitError     = 1
	exitUsage     = 2
	exitDifferent = 3 // checked, and found different
)

// usageError is a wrong call.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usagef(format string, a ...any) error { return usageError{fmt.Errorf(format, a...)} }

// errDifferent ends a check that found a difference and has already said so on
// stdout.
var errDifferent = errors.New("differences were found")

func exitCode(err error) int {
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errDifferent):
		return exitDifferent
	case errors.As(err, new(usageError)):
		return exitUsage
	}
	return exitError
}

// explain writes an error and what to do about it.
func explain(w io.Writer, cmd *cobra.Command, err error) {
	switch {
	case err == nil || errors.Is(err, errDifferent):
		return
	case errors.As(err, new(usageError)):
		fmt.Fprintf(w, "tidemark: %v\nSee `%s --help`.\n", err, cmd.CommandPath())
	case errors.Is(err, context.Canceled) && cmd.Context().Err() != nil:
		fmt.Fprintln(w, "tidemark: interrupted")
	case isAway(err):
		fmt.Fprintf(w, "tidemark: %v\nIs it running? `tidemark dev` starts everything on this machine; `tidemark doctor` looks for what is wrong.\n", err)
	default:
		fmt.Fprintln(w, "tidemark:", err)
	}
}

// SQLSTATEs of a server that is there and does not serve yet, or any more.
const (
	stateCannotConnectNow = "57P03"
	stateAdminShutdown    = "57P01"
	stateCrashShutdown    = "57P02"
)

// isAway tells whether err says that a dependency is not there now and may
// come back, in contrast to one that refuses.
func isAway(err error) bool {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code == stateCannotConnectNow || pg.Code == stateAdminShutdown || pg.Code == stateCrashShutdown
	}
	if kafka := new(kerr.Error); errors.As(err, &kafka) {
		return kafka.Retriable
	}
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "listen" {
		return false
	}
	return op != nil || errors.As(err, new(*net.DNSError)) || errors.As(err, new(*pgconn.ConnectError)) ||
		errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, context.DeadlineExceeded)
}
