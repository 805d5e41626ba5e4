package embedded

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// dataDir is a locked data directory.
type dataDir struct {
	path string // absolute
	lock *os.File
}

// openDataDir makes the directory if needed and locks it. The kernel drops
// the lock with the process, so a killed owner never leaves it behind.
func openDataDir(path string) (*dataDir, error) {
	if path == "" {
		return nil, errors.New("data directory is empty: name one")
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("resolving data directory %s: %w", path, err)
	}
	if err := os.MkdirAll(abs, 0o755); err != nil {
		return nil, fmt.Errorf("making data directory: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(abs, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("opening the lock of data directory %s: %w", abs, err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("data directory %s is in use by another process: stop it or choose another directory", abs)
		}
		return nil, fmt.Errorf("locking data directory %s: %w", abs, err)
	}
	return &dataDir{path: abs, lock: f}, nil
}

func (d *dataDir) file(name string) string { return filepath.Join(d.path, name) }

// Close gives the lock back; a second call does nothing.
func (d *dataDir) Close() error {
	if err := d.lock.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("unlocking data directory %s: %w", d.path, err)
	}
	return nil
}

// port chooses the port to listen on: the wanted one, else that of the last
// start if it is free, else any free one.
func (d *dataDir) port(wanted int) (int, error) {
	if wanted != 0 {
		return wanted, nil
	}
	if b, err := os.ReadFile(d.file("port")); err == nil {
		p, err := strconv.Atoi(strings.TrimSpace(string(b)))
		if err == nil && p > 0 && p < 1<<16 && portFree(p) {
			return p, nil
		}
	}
	return FreePort()
}

// keepPort remembers the port for the next start.
func (d *dataDir) keepPort(port int) error {
	return writeFile(d.file("port"), strconv.Itoa(port)+"\n", 0o644)
}

// writeFile replaces a file whole: a kill leaves the old or the new content.
func writeFile(path, content string, mode os.FileMode) error {
	tmp := path + ".new"
	if err := os.WriteFile(tmp, []byte(content), mode); err != nil {
		return fmt.Errorf("writing %s: %w", filepath.Base(path), err)
	}
	if err := os.Rename(tmp, path); err != nil {
		return fmt.Errorf("writing %s: %w", filepath.Base(path), err)
	}
	return nil
}
