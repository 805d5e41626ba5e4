package main

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// home is the folder that everything lies in, locked: two commands on one
// folder run one after the other.
type home struct {
	dir   string // absolute
	lock  *os.File
	state state
	say   func(format string, args ...any) // progress, for people
}

// state is what the folder's data was made with, and where it was last
// reached. Zero: there is no data yet.
type state struct {
	ClusterID string `json:"clusterId"`
	// BrokerPorts and ControllerPorts are by broker, from the first; as many as
	// there are brokers.
	BrokerPorts     []int `json:"brokerPorts"`
	ControllerPorts []int `json:"controllerPorts"`
	ConnectPort     int   `json:"connectPort,omitempty"` // 0: no worker was wanted
}

func (s state) brokers() int { return len(s.BrokerPorts) }

// openHome locks dir, by default .real of the repository, and reads its state.
func openHome(dir string) (*home, error) {
	if dir == "" {
		root, err := repository()
		if err != nil {
			return nil, err
		}
		dir = filepath.Join(root, ".real")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("resolving %s: %w", dir, err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("making %s: %w", dir, err)
	}
	h := &home{dir: dir, say: func(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }}
	if h.lock, err = lock(h.path("lock"), h.say); err != nil {
		return nil, err
	}
	if err := h.readState(); err != nil {
		h.Close()
		return nil, err
	}
	return h, nil
}

// repository is the folder above the working directory that holds go.mod.
func repository() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("finding the working directory: %w", err)
	}
	for at := dir; ; at = filepath.Dir(at) {
		if _, err := os.Stat(filepath.Join(at, "go.mod")); err == nil {
			return at, nil
		}
		if at == filepath.Dir(at) {
			return "", fmt.Errorf("no go.mod in %s or above: run inside the repository, or give --dir", dir)
		}
	}
}

// lock waits for the lock; the kernel drops it with the process.
func lock(path string, say func(string, ...any)) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("opening the lock: %w", err)
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		say("waiting for another command on %s", filepath.Dir(path))
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("locking %s: %w", path, err)
	}
	return f, nil
}

// Close gives the lock back.
func (h *home) Close() { _ = h.lock.Close() }

func (h *home) path(parts ...string) string {
	return filepath.Join(append([]string{h.dir}, parts...)...)
}

func (h *home) readState() error {
	b, err := os.ReadFile(h.path("state.json"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading the state: %w", err)
	}
	if err := json.Unmarshal(b, &h.state); err != nil || h.state.ClusterID == "" || len(h.state.ControllerPorts) != h.state.brokers() {
		return fmt.Errorf("reading %s: it is damaged: run `make real-down WIPE=1`", h.path("state.json"))
	}
	return nil
}

func (h *home) writeState() error {
	b, err := json.MarshalIndent(h.state, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding the state: %w", err)
	}
	return h.write("state.json", string(b)+"\n")
}

// write replaces a file of the folder as a whole.
func (h *home) write(name, content string) error {
	path := h.path(name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("writing %s: %w", name, err)
	}
	if err := os.WriteFile(path+".new", []byte(content), 0o644); err != nil {
		return fmt.Errorf("writing %s: %w", name, err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("writing %s: %w", name, err)
	}
	return nil
}

// newClusterID is a Kafka UUID: 16 bytes in URL-safe base64, without a dash
// at its front, which command lines would take for an option.
func newClusterID() string {
	for {
		var b [16]byte
		_, _ = rand.Read(b[:]) // never fails
		if id := base64.RawURLEncoding.EncodeToString(b[:]); id[0] != '-' {
			return id
		}
	}
}
