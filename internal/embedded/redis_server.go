package embedded

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	"github.com/tidemark/tidemark/internal/child"
)

// RedisServerConfig says how to start a redis-server.
type RedisServerConfig struct {
	// Dir holds what the server writes.
	Dir string
	// Port to listen on; 0 takes a free one.
	Port int
	// TLS has the server speak nothing else, and believe whoever CA signed; nil:
	// none.
	TLS *RedisTLS
	// Args follow the defaults, which persist nothing.
	Args []string
}

// RedisTLS are PEM files by name. Cert and Key are the server's, and redis-cli's.
type RedisTLS struct{ CA, Cert, Key string }

// RedisServer is a redis-server of this machine, in a process that ends with
// this one.
type RedisServer struct {
	// Addr is host:port.
	Addr string

	cfg   RedisServerConfig
	cmd   *exec.Cmd
	out   *bytes.Buffer
	ended <-chan struct{}
}

// ErrNoRedisServer says that no redis-server is in PATH.
var ErrNoRedisServer = errors.New("redis-server is not in PATH (Debian: apt-get install redis-server)")

// StartRedisServer starts a server and waits until it accepts connections.
func StartRedisServer(ctx context.Context, cfg RedisServerConfig) (*RedisServer, error) {
	if _, err := exec.LookPath("redis-server"); err != nil {
		return nil, ErrNoRedisServer
	}
	if cfg.Port == 0 {
		var err error
		if cfg.Port, err = FreePort(); err != nil {
			return nil, fmt.Errorf("starting redis-server: %w", err)
		}
	}
	r := &RedisServer{Addr: net.JoinHostPort("127.0.0.1", strconv.Itoa(cfg.Port)), cfg: cfg}
	return r, r.Start(ctx)
}

// Start starts a server that was stopped or killed again, at the same place.
func (r *RedisServer) Start(ctx context.Context) (err error) {
	args := append(r.listen(), "--bind", "127.0.0.1", "--dir", r.cfg.Dir, "--save", "", "--appendonly", "no", "--loglevel", "warning")
	args = append(args, r.cfg.Args...)
	r.out = new(bytes.Buffer)
	r.cmd = exec.Command("redis-server", args...)
	r.cmd.Stdout, r.cmd.Stderr = r.out, r.out
	if r.ended, err = child.Start(r.cmd, syscall.SIGKILL); err != nil {
		return fmt.Errorf("running redis-server: %w", err)
	}
	for {
		conn, err := net.DialTimeout("tcp", r.Addr, time.Second)
		if err == nil {
			return conn.Close()
		}
		select {
		case <-r.ended:
			return fmt.Errorf("redis-server ended at once: %.400s", r.out.String())
		case <-ctx.Done():
			r.Signal(os.Kill)
			return fmt.Errorf("waiting for redis-server: %w", ctx.Err())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func (r *RedisServer) listen() []string {
	port := strconv.Itoa(r.cfg.Port)
	if r.cfg.TLS == nil {
		return []string{"--port", port}
	}
	return []string{
		"--port", "0", "--tls-port", port, "--tls-replication", "yes", "--tls-cluster", "yes",
		"--tls-ca-cert-file", r.cfg.TLS.CA, "--tls-cert-file", r.cfg.TLS.Cert, "--tls-key-file", r.cfg.TLS.Key,
	}
}

// PID is the server's process id.
func (r *RedisServer) PID() int { return r.cmd.Process.Pid }

// Signal sends a signal, such as SIGSTOP; SIGKILL and SIGTERM are waited for.
func (r *RedisServer) Signal(s os.Signal) {
	_ = r.cmd.Process.Signal(s)
	if s == os.Kill || s == syscall.SIGTERM {
		<-r.ended
	}
}

// Stop ends the server.
func (r *RedisServer) Stop() error {
	_ = r.cmd.Process.Signal(syscall.SIGCONT)
	r.Signal(os.Kill) // it persists nothing that a stop would save
	return nil
}
