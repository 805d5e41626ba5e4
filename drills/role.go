package drills

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidemark/tidemark/drills/proc"
	"github.com/tidemark/tidemark/internal/embedded"
)

// role is a process of `tidemark run`.
type role struct {
	name  string   // also the instance
	roles []string // that it runs
	ops   string   // host:port where it says whether it is ready
	file  string   // configuration
	more  []string // arguments
	log   string

	busy sync.Mutex  // held by who does something to it
	away atomic.Bool // something else stands in for it: nobody waits for it

	mu      sync.Mutex
	process *proc.Process
	most    int64
}

func newRole(dir, file, name string, roles ...string) (*role, error) {
	ops, err := freeAddress()
	return &role{name: name, roles: roles, ops: ops, file: file, log: filepath.Join(dir, name+".log")}, err
}

// freeAddress is for a process that keeps it over restarts.
func freeAddress() (string, error) {
	port, err := embedded.FreePort()
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), err
}

func (r *role) start() error {
	p, err := proc.Start(proc.Config{Name: r.name, Log: r.log,
		Args: slices.Concat([]string{"run"}, r.roles, []string{"--config", r.file, "--instance", r.name, "--ops-listen", r.ops}, r.more)})
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.process = p
	return nil
}

func (r *role) now() *proc.Process {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.process
}

// memory is the most that was seen, in bytes.
func (r *role) memory() int64 {
	now, most := r.now().Memory()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.most = max(r.most, now, most)
	return r.most
}

var opsClient = &http.Client{Timeout: 2 * time.Second}

// ready is nil when the process says that it is.
func (r *role) ready(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+r.ops+"/readyz", nil)
	if err != nil {
		return err
	}
	resp, err := opsClient.Do(req)
	if err != nil {
		return fmt.Errorf("%s does not answer: %w", r.name, err)
	}
	defer resp.Body.Close()
	var why [400]byte
	n, _ := resp.Body.Read(why[:])
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s is not ready: %s", r.name, why[:n])
	}
	return nil
}

// command runs one command of this program to its end.
func command(ctx context.Context, log string, args ...string) error {
	p, err := proc.Start(proc.Config{Name: args[0], Args: args, Log: log})
	if err != nil {
		return err
	}
	select {
	case <-p.Done():
		if err := p.Died(); err != nil && !errors.Is(err, proc.ErrClean) {
			return err
		}
		return nil
	case <-ctx.Done():
		p.Kill()
		return ctx.Err()
	}
}
