package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// heldError says that another process has a lock.
type heldError struct {
	path string
	pid  int // 0: not known
}

func (e heldError) Error() string { return e.path + " is locked by " + e.holder() }

func (e heldError) holder() string {
	if e.pid == 0 {
		return "another process"
	}
	return "process " + strconv.Itoa(e.pid)
}

// lockFile takes the lock of a file, making it if needed, and writes this
// process's id into it. The kernel drops the lock with the process, so a
// killed owner never leaves it behind. The lock is kept until release. When
// another process has it, the error is a heldError.
func lockFile(path string) (release func(), err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("making the folder of %s: %w", path, err)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("locking %s: %w", path, err)
	}
	release = func() { _ = f.Close() } // unlocks; nothing was written that could be lost
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		defer release()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, heldError{path, readPID(path)}
		}
		return nil, fmt.Errorf("locking %s: %w", path, err)
	}
	if err := errors.Join(f.Truncate(0), writeAt(f, strconv.Itoa(os.Getpid())+"\n")); err != nil {
		release()
		return nil, fmt.Errorf("locking %s: %w", path, err)
	}
	return release, nil
}

func writeAt(f *os.File, text string) error {
	_, err := f.WriteAt([]byte(text), 0)
	return err
}

// readPID reads who has a lock; 0 when it does not say.
func readPID(path string) int {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	pid, _ := strconv.Atoi(strings.TrimSpace(string(b))) // half written: not known
	return pid
}

// isLocked tells whether a process has the lock of a file now.
func isLocked(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	return errors.Is(syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB), syscall.EWOULDBLOCK)
}
