package embedded

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// PostgresConfig says how to start a PostgreSQL server.
type PostgresConfig struct {
	// DataDir holds everything of the server; see the package comment.
	DataDir string
	// Port to listen on; 0 takes the last start's, or any free one.
	Port int
	// Settings are added to, and win over, the defaults (postgres -c).
	Settings map[string]string
	// BinDir holds initdb and postgres; empty finds them.
	BinDir string
	// Logger; nil discards.
	Logger *slog.Logger
}

// superuser is the role that URL names; it exists only in embedded servers.
const superuser = "tidemark"

// startLimit bounds a start, apart from a download of the programs.
const startLimit = 2 * time.Minute

// defaultSettings fit the change feed: logical decoding and a slot per shard.
func defaultSettings() map[string]string {
	return map[string]string{
		"listen_addresses":        "127.0.0.1",
		"unix_socket_directories": "",
		"wal_level":               "logical",
		"max_replication_slots":   "64",
		"max_wal_senders":         "64",
		"max_connections":         "200",
		"timezone":                "UTC",
		"log_timezone":            "UTC",
	}
}

// Postgres is a running PostgreSQL server, a child of this process that ends
// with it.
type Postgres struct {
	dir      *dataDir
	process  *process
	port     int
	password string
	stop     sync.Once
	stopErr  error
}

// StartPostgres starts a server on cfg.DataDir, making the data on first use,
// and returns when it answers. ctx bounds the start only; Stop ends the
// server.
//
// A root process runs the server as the owner of existing data, else as user
// postgres or nobody. If that user cannot reach DataDir (a folder below
// /root, say), PostgreSQL's own files go below /var/lib/tidemark, and
// DataDir/location names the place.
func StartPostgres(ctx context.Context, cfg PostgresConfig) (*Postgres, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	dir, err := openDataDir(cfg.DataDir)
	if err != nil {
		return nil, fmt.Errorf("starting PostgreSQL: %w", err)
	}
	p, err := startPostgres(ctx, cfg, dir)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("starting PostgreSQL: %w", err), dir.Close())
	}
	return p, nil
}

func startPostgres(ctx context.Context, cfg PostgresConfig, dir *dataDir) (*Postgres, error) {
	place, err := findPlace(dir, cfg.Logger)
	if err != nil {
		return nil, err
	}
	bin, err := chooseBinaries(ctx, cfg.BinDir, place.major, place.account, cfg.Logger)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	password, err := keptPassword(dir)
	if err != nil {
		return nil, err
	}
	clearHalfMade(place)
	if place.major == 0 {
		if err := initData(ctx, bin, place, password, cfg.Settings["fsync"] == "off"); err != nil {
			return nil, err
		}
	}
	p := &Postgres{dir: dir, password: password}
	if err := p.launch(ctx, cfg, bin, place); err != nil {
		return nil, err
	}
	cfg.Logger.Info("PostgreSQL is up", "port", p.port, "version", bin.Major, "data", place.data)
	return p, nil
}

// keptPassword reads the superuser's password or makes one.
func keptPassword(dir *dataDir) (string, error) {
	b, err := os.ReadFile(dir.file("password"))
	if err == nil {
		return strings.TrimSpace(string(b)), nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("reading the superuser's password: %w", err)
	}
	password := rand.Text()
	return password, writeFile(dir.file("password"), password+"\n", 0o600)
}

// clearHalfMade removes what starts that were killed have left. What cannot be
// removed yet is in nobody's way.
func clearHalfMade(at place) {
	halfMade, _ := filepath.Glob(at.data + ".new*") // the pattern is well formed
	for _, path := range halfMade {
		_ = os.RemoveAll(path)
	}
}

// initData makes the data directory beside its final name and renames it, so
// that a kill in between leaves nothing half made. It has a name of its own
// each time: an initdb whose parent was killed may still be clearing up after
// itself.
func initData(ctx context.Context, bin Binaries, at place, password string, unsynced bool) error {
	fresh, err := os.MkdirTemp(filepath.Dir(at.data), filepath.Base(at.data)+".new-")
	if err != nil {
		return fmt.Errorf("making the data directory: %w", err)
	}
	passwordFile := fresh + ".password"
	if err := os.WriteFile(passwordFile, []byte(password+"\n"), 0o600); err != nil {
		return fmt.Errorf("handing the password to initdb: %w", err)
	}
	defer func() { _ = os.Remove(passwordFile) }()
	if err := errors.Join(at.account.own(fresh), at.account.own(passwordFile)); err != nil {
		return err
	}
	args := []string{"--pgdata", fresh, "--username", superuser, "--pwfile", passwordFile,
		"--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C"}
	if unsynced {
		args = append(args, "--no-sync")
	}
	cmd := exec.CommandContext(ctx, bin.program("initdb"), args...)
	cmd.Dir = "/"
	cmd.SysProcAttr = childAttributes(at.account)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("running %s: %w: %s", bin.program("initdb"), err, lastLines(string(out)))
	}
	if err := os.Rename(fresh, at.data); err != nil {
		return fmt.Errorf("putting the data directory in its place: %w", err)
	}
	return nil
}

// launch starts the server until it answers. It tries again while a killed
// predecessor's processes still hold the data, and on another port when the
// chosen one was taken meanwhile.
func (p *Postgres) launch(ctx context.Context, cfg PostgresConfig, bin Binaries, at place) error {
	if err := endOrphan(ctx, at.data, cfg.Logger); err != nil {
		return err
	}
	for {
		port, err := p.dir.port(cfg.Port)
		if err != nil {
			return err
		}
		p.port = port
		p.process, err = startProcess(processConfig{
			path: bin.program("postgres"), args: serverArgs(at.data, port, cfg.Settings),
			account: at.account, log: p.dir.file("server.log"),
		})
		if err != nil {
			return err
		}
		err = p.awaitReady(ctx)
		if err == nil {
			return p.dir.keepPort(port)
		}
		said := p.process.said()
		p.process.end(0)
		portTaken := strings.Contains(said, "could not bind") && cfg.Port == 0
		inUse := strings.Contains(said, "shared memory block") || strings.Contains(said, "lock file")
		if ctx.Err() != nil || !portTaken && !inUse {
			return fmt.Errorf("%w: %s", err, lastLines(said))
		}
		if wait(ctx, 100*time.Millisecond) != nil {
			return fmt.Errorf("%w: %s", err, lastLines(said))
		}
	}
}

func serverArgs(data string, port int, settings map[string]string) []string {
	all := defaultSettings()
	maps.Copy(all, settings)
	all["port"] = strconv.Itoa(port)
	args := []string{"-D", data}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		args = append(args, "-c", name+"="+all[name])
	}
	return args
}

// awaitReady returns when the server answers, or with why it will not.
func (p *Postgres) awaitReady(ctx context.Context) error {
	for {
		conn, err := pgx.Connect(ctx, p.URL("postgres"))
		if err == nil {
			return conn.Close(ctx)
		}
		if pgErr := (*pgconn.PgError)(nil); errors.As(err, &pgErr) && strings.HasPrefix(pgErr.Code, "28") {
			return fmt.Errorf("connecting as %s: %w: the password file does not fit the data; choose another data directory", superuser, err)
		}
		select {
		case <-p.process.done:
			return errors.New("the server ended before it was ready")
		case <-ctx.Done():
			return fmt.Errorf("waiting for the server to answer on port %d: %w", p.port, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// URL is the connection URL of a database, with user and password.
func (p *Postgres) URL(database string) string {
	u := url.URL{
		Scheme: "postgres", User: url.UserPassword(superuser, p.password),
		Host: "127.0.0.1:" + strconv.Itoa(p.port), Path: "/" + database, RawQuery: "sslmode=disable",
	}
	return u.String()
}

// Port is the port that the server listens on.
func (p *Postgres) Port() int { return p.port }

// CreateDatabase makes a database; one that exists is left as it is.
func (p *Postgres) CreateDatabase(ctx context.Context, name string) error {
	conn, err := pgx.Connect(ctx, p.URL("postgres"))
	if err != nil {
		return fmt.Errorf("creating database %s: %w", name, err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	_, err = conn.Exec(ctx, "CREATE DATABASE "+pgx.Identifier{name}.Sanitize())
	if pgErr := (*pgconn.PgError)(nil); errors.As(err, &pgErr) && (pgErr.Code == "42P04" || pgErr.Code == "23505") {
		return nil // exists, or someone else just made it
	}
	if err != nil {
		return fmt.Errorf("creating database %s: %w", name, err)
	}
	return nil
}

// Done is closed when the server has ended, by Stop or by itself.
func (p *Postgres) Done() <-chan struct{} { return p.process.done }

// Stop ends the server: connections are closed and all data is written, for
// up to ten seconds; then it is stopped without a checkpoint, which the next
// start repairs from the log. A second call returns the first one's result.
func (p *Postgres) Stop() error {
	p.stop.Do(func() {
		p.process.signal(syscall.SIGINT)
		p.process.end(10 * time.Second)
		p.stopErr = p.dir.Close()
	})
	return p.stopErr
}
