package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/tidemark/tidemark/api"
	"github.com/tidemark/tidemark/internal/config"
	"github.com/tidemark/tidemark/internal/pause"
)

// system is a running `tidemark dev` in a process of its own, in a fresh
// directory.
type system struct {
	dir       string
	cmd       *exec.Cmd
	cfg       config.Config
	endpoints config.Endpoints
	done      chan struct{} // closed when the process has been waited for
}

func benchProgram() string {
	if program := os.Getenv("TIDEMARK_BENCH_PROGRAM"); program != "" {
		return program
	}
	return "./tidemark"
}

// startSystem runs the program at TIDEMARK_BENCH_PROGRAM, default ./tidemark.
func startSystem(args ...string) (*system, error) {
	program := benchProgram()
	dir, err := os.MkdirTemp("", "tidemark-bench-")
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return nil, err
	}
	s := &system{dir: dir, done: make(chan struct{})}
	s.cmd = exec.Command(program, append([]string{"dev", "--data-dir", dir, "--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0", "--log-level", "error"}, args...)...)
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	started, ready := make(chan error, 1), make(chan bool, 1)
	go func() {
		runtime.LockOSThread() // Linux ends the child with the thread that made it
		s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
		started <- s.cmd.Start()
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			if strings.HasPrefix(lines.Text(), "tidemark is ready.") {
				ready <- true
			}
		}
		ready <- false
		_, _ = io.Copy(io.Discard, out)
		_ = s.cmd.Wait()
		close(s.done)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("starting %s: %w (make build makes it)", program, err)
	}
	if !<-ready {
		s.stop()
		return nil, errors.New("`tidemark dev` ended before it was ready")
	}
	if s.cfg, err = config.Load(filepath.Join(dir, config.FileName)); err != nil {
		s.stop()
		return nil, err
	}
	s.endpoints, err = config.ReadEndpoints(dir)
	return s, err
}

func (s *system) stop() {
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	<-s.done
	_ = os.RemoveAll(s.dir)
}

// token mints a token for a user.
func (s *system) token(user string) (string, error) {
	key, err := s.cfg.Auth.HS256Key()
	if err != nil {
		return "", err
	}
	return api.MintToken(key, user, "", time.Hour)
}

// benchIdle measures the CPU of an idle `tidemark dev`, PostgreSQL apart.
func benchIdle(ctx context.Context) error {
	s, err := startSystem()
	if err != nil {
		return err
	}
	defer s.stop()
	const settle, window = 5 * time.Second, 20 * time.Second
	if !pause.For(ctx, settle) {
		return ctx.Err()
	}
	before, err := ticks(s.cmd.Process.Pid)
	if err != nil {
		return err
	}
	if !pause.For(ctx, window) {
		return ctx.Err()
	}
	after, err := ticks(s.cmd.Process.Pid)
	if err != nil {
		return err
	}
	fmt.Printf("  idle tidemark dev     %8.1f %% of a core over %v\n", float64(after-before)/ticksPerSecond/window.Seconds()*100, window)
	return nil
}

const ticksPerSecond = 100 // Linux

// ticks is the CPU time of a process so far, in clock ticks.
func ticks(pid int) (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	var skip string
	var user, system int64
	if _, err := fmt.Sscan(rest, &skip, &skip, &skip, &skip, &skip, &skip, &skip, &skip, &skip, &skip, &skip, &user, &system); err != nil {
		return 0, fmt.Errorf("reading the CPU time of process %d: %w", pid, err)
	}
	return user + system, nil
}
