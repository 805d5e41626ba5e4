package testenv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tidemark/tidemark/internal/embedded"
)

// shared is the test binary's PostgreSQL server.
var shared struct {
	once   sync.Once
	dir    string
	server *embedded.Postgres
	err    error
	names  atomic.Int64
}

// Postgres makes an empty database for the test and returns its URL. The
// server has wal_level=logical and does not sync to disk. The database goes
// when the test ends, with the connections and replication slots that are
// still on it.
func Postgres(t testing.TB) string {
	t.Helper()
	if !mainCalled.Load() {
		t.Fatal("testenv.Postgres needs a TestMain that calls testenv.Main, which stops the server")
	}
	shared.once.Do(func() { shared.server, shared.err = startShared() })
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	name := fmt.Sprintf("test%d", shared.names.Add(1))
	if err := shared.server.CreateDatabase(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dropDatabase(t, name) })
	return shared.server.URL(name)
}

// ServerDir is a folder for a PostgreSQL server of the test's own
// (embedded.StartPostgres), removed when the test ends. t.TempDir will not do
// for root: the server runs as another user, who may not enter it.
func ServerDir(t testing.TB) string {
	t.Helper()
	dir, err := newServerDir()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func newServerDir() (string, error) {
	dir, err := os.MkdirTemp("", dirPrefix+strconv.Itoa(os.Getpid())+"-")
	if err != nil {
		return "", fmt.Errorf("making a folder for PostgreSQL: %w", err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return "", fmt.Errorf("opening the folder for PostgreSQL: %w", err)
	}
	return dir, nil
}

// dirPrefix is followed by the test process's id.
const dirPrefix = "tidemark-test-"

func startShared() (*embedded.Postgres, error) {
	removeLeftovers()
	dir, err := newServerDir()
	if err != nil {
		return nil, err
	}
	shared.dir = dir
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute) // may download
	defer cancel()
	return embedded.StartPostgres(ctx, embedded.PostgresConfig{
		DataDir: dir,
		Settings: map[string]string{
			"fsync": "off", "full_page_writes": "off",
			"shared_buffers": "64MB", "max_wal_size": "256MB",
		},
	})
}

func stopShared() error {
	var err error
	if shared.server != nil {
		err = shared.server.Stop()
	}
	if shared.dir != "" {
		err = errors.Join(err, os.RemoveAll(shared.dir))
	}
	return err
}

// removeLeftovers removes the folders of test processes that were killed.
func removeLeftovers() {
	dirs, _ := filepath.Glob(filepath.Join(os.TempDir(), dirPrefix+"*")) // the pattern is well formed
	for _, dir := range dirs {
		id, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(dir), dirPrefix), "-")
		pid, err := strconv.Atoi(id)
		if err == nil && errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			_ = os.RemoveAll(dir) // best effort; the system clears its temporary folder anyway
		}
	}
}

// dropDatabase ends what still uses the database and drops it; what a test
// forgot to close is not its failure.
func dropDatabase(t testing.TB, name string) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, shared.server.URL("postgres"))
	if err != nil {
		t.Logf("dropping database %s: %v", name, err)
		return
	}
	defer func() { _ = conn.Close(ctx) }()
	for ctx.Err() == nil {
		_, err := conn.Exec(ctx, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)")
		if err == nil {
			return
		}
		// A replication slot holds the database, and its reader the slot.
		_, _ = conn.Exec(ctx, `SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE database = $1 AND active`, name)
		_, _ = conn.Exec(ctx, `SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = $1 AND NOT active`, name)
		time.Sleep(10 * time.Millisecond)
	}
	t.Logf("dropping database %s: %v", name, ctx.Err())
}
