package embedded

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/jackc/pgx/v5"
)

// ErrNoBackupProgram says that the machine's PostgreSQL comes without
// pg_basebackup, as the one that is downloaded does.
var ErrNoBackupProgram = errors.New("pg_basebackup is not installed with PostgreSQL")

// StartStandby copies a running server into cfg.DataDir, which must be unused,
// and starts the copy as a physical standby of it, with the same password. Its
// replication slots are not copied: a standby has none (of PostgreSQL before
// 17), which is what makes a failover dangerous to a change feed.
//
// Stopped and started again with StartPostgres it is a standby still, of the
// server that Settings' primary_conninfo names, until Promote.
func (p *Postgres) StartStandby(ctx context.Context, cfg PostgresConfig) (*Postgres, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	dir, err := openDataDir(cfg.DataDir)
	if err != nil {
		return nil, fmt.Errorf("making a standby: %w", err)
	}
	if err := p.copyTo(ctx, cfg, dir); err != nil {
		return nil, errors.Join(fmt.Errorf("making a standby: %w", err), dir.Close())
	}
	if err := dir.Close(); err != nil {
		return nil, err
	}
	return StartPostgres(ctx, cfg)
}

// copyTo fills a data directory whole or not at all.
func (p *Postgres) copyTo(ctx context.Context, cfg PostgresConfig, dir *dataDir) error {
	at, err := findPlace(dir, cfg.Logger)
	if err != nil {
		return err
	}
	if at.major != 0 {
		return fmt.Errorf("%s holds a server's data already: choose another folder", dir.path)
	}
	own, err := findPlace(p.dir, cfg.Logger)
	if err != nil {
		return err
	}
	bin, err := chooseBinaries(ctx, cfg.BinDir, own.major, at.account, cfg.Logger)
	if err != nil {
		return err
	}
	program := bin.program("pg_basebackup")
	if _, err := os.Stat(program); err != nil {
		return fmt.Errorf("%w: %w", ErrNoBackupProgram, err)
	}
	if err := writeFile(dir.file("password"), p.password+"\n", 0o600); err != nil {
		return err
	}
	fresh, err := os.MkdirTemp(filepath.Dir(at.data), filepath.Base(at.data)+".new-")
	if err != nil {
		return fmt.Errorf("making the data directory: %w", err)
	}
	if err := at.account.own(fresh); err != nil {
		return err
	}
	args := []string{"--pgdata", fresh, "--dbname", p.URL("postgres"), "--wal-method", "stream", "--checkpoint", "fast", "--write-recovery-conf", "--no-password"}
	if cfg.Settings["fsync"] == "off" {
		args = append(args, "--no-sync")
	}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = "/"
	cmd.SysProcAttr = childAttributes(at.account)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("running %s: %w: %s", program, err, lastLines(string(out)))
	}
	if err := os.Rename(fresh, at.data); err != nil {
		return fmt.Errorf("putting the data directory in its place: %w", err)
	}
	return nil
}

// promotePatience is how long PostgreSQL may take for a promotion, in seconds.
const promotePatience = 60

// Promote makes a standby the primary of a new timeline.
func (p *Postgres) Promote(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, p.URL("postgres"))
	if err != nil {
		return fmt.Errorf("promoting a standby: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	var done bool
	if err := conn.QueryRow(ctx, "SELECT pg_promote(true, $1)", promotePatience).Scan(&done); err != nil {
		return fmt.Errorf("promoting a standby: %w", err)
	}
	if !done {
		return fmt.Errorf("promoting a standby: it is none after %d s", promotePatience)
	}
	return nil
}

// Crash ends the server as a loss of power does, though its files stay whole:
// every process at once, and nothing more is written. A second call, or one of
// Stop, does nothing.
func (p *Postgres) Crash() error {
	p.stop.Do(func() {
		p.process.signal(syscall.SIGQUIT)
		p.process.end(0)
		p.stopErr = p.dir.Close()
	})
	return p.stopErr
}
