//go:build unix

package client

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
)

// lockFile takes the lock of an open file or says that another process has it.
// The kernel drops it with the process.
func lockFile(f *os.File) error {
	err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return errors.New("another client has it open")
	}
	return err
}

// syncFolder makes a file's name durable.
func syncFolder(path string) error {
	d, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
