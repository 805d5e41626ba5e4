package embedded

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// process is a child that ends with this process.
type process struct {
	cmd  *exec.Cmd
	log  string
	from int64 // where this child's output begins in the log
	done chan struct{}
}

type processConfig struct {
	path    string
	args    []string
	account *account
	log     string // appended to
}

// maxLogBytes is the size above which a log is cut at the next start.
const maxLogBytes = 8 << 20

// startProcess starts a child whose output goes to a log file.
func startProcess(cfg processConfig) (*process, error) {
	if info, err := os.Stat(cfg.log); err == nil && info.Size() > maxLogBytes {
		if err := os.Truncate(cfg.log, 0); err != nil {
			return nil, fmt.Errorf("cutting the server's log: %w", err)
		}
	}
	out, err := os.OpenFile(cfg.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the server's log: %w", err)
	}
	defer func() { _ = out.Close() }() // the child has its own
	from, err := out.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, fmt.Errorf("opening the server's log: %w", err)
	}
	p := &process{log: cfg.log, from: from, done: make(chan struct{})}
	p.cmd = exec.Command(cfg.path, cfg.args...)
	p.cmd.Dir = "/"
	p.cmd.Stdout, p.cmd.Stderr = out, out
	p.cmd.SysProcAttr = childAttributes(cfg.account)
	started := make(chan error)
	go p.run(started)
	if err := <-started; err != nil {
		return nil, fmt.Errorf("running %s: %w", cfg.path, err)
	}
	return p, nil
}

// run starts the child and reaps it. The parent-death signal fires when the
// thread that made the child ends, so this goroutine keeps its thread for as
// long as the child lives.
func (p *process) run(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := p.cmd.Start()
	started <- err
	if err == nil {
		_ = p.cmd.Wait() // the log says why it ended
	}
	close(p.done)
}

// signal does nothing when the child has ended.
func (p *process) signal(s os.Signal) { _ = p.cmd.Process.Signal(s) }

// end waits for the child to end by itself, then makes it: first SIGQUIT, on
// which PostgreSQL stops its children and itself at once, then SIGKILL.
func (p *process) end(patience time.Duration) {
	for _, next := range []struct {
		after time.Duration
		send  os.Signal
	}{{patience, syscall.SIGQUIT}, {5 * time.Second, syscall.SIGKILL}} {
		select {
		case <-p.done:
			return
		case <-time.After(next.after):
			p.signal(next.send)
		}
	}
	<-p.done
}

// said is what the child has logged so far, at most the last 16 KiB.
func (p *process) said() string {
	f, err := os.Open(p.log)
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return ""
	}
	from := max(p.from, size-16<<10)
	b, _ := io.ReadAll(io.NewSectionReader(f, from, size-from))
	return string(b)
}

// lastLines keeps the end of a program's output short enough for an error.
func lastLines(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-6):], " / ")
}

// wait sleeps, or returns early with ctx's error.
func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// endOrphan clears the way after a killed owner. The caller holds the data
// directory's lock, so a server that still runs on it has lost its parent:
// it is told to stop. A pid file whose number now belongs to some other
// program is removed, since PostgreSQL would refuse to start over it.
func endOrphan(ctx context.Context, data string, log *slog.Logger) error {
	pidFile := filepath.Join(data, "postmaster.pid")
	b, err := os.ReadFile(pidFile)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading the old server's pid file: %w", err)
	}
	first, _, _ := strings.Cut(string(b), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(first))
	if err != nil || pid <= 1 || !alive(pid) {
		return nil // PostgreSQL replaces it by itself
	}
	if !strings.Contains(commandLine(ctx, pid), data) {
		if err := os.Remove(pidFile); err != nil {
			return fmt.Errorf("removing a stale pid file: %w", err)
		}
		return nil
	}
	log.Warn("stopping a PostgreSQL server whose parent was killed", "pid", pid)
	for ctx.Err() == nil && alive(pid) {
		_ = syscall.Kill(pid, syscall.SIGQUIT)
		_ = wait(ctx, 50*time.Millisecond)
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("stopping an orphaned server (pid %d): %w: stop it by hand", pid, err)
	}
	return nil
}

func alive(pid int) bool {
	err := syscall.Kill(pid, 0)
	return err == nil || errors.Is(err, syscall.EPERM)
}

// commandLine is a process's program and arguments, empty when unknown.
func commandLine(ctx context.Context, pid int) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err == nil {
		return strings.ReplaceAll(string(b), "\x00", " ")
	}
	b, _ = exec.CommandContext(ctx, "ps", "-o", "args=", "-p", strconv.Itoa(pid)).Output()
	return string(b)
}
