package client

import (
	"errors"
	"io"
	"os"
	"path/filepath"
)

// osDisk is a journal file of the operating system, with a lock file beside it
// that keeps a second process out.
type osDisk struct {
	path string
	lock *os.File
}

func newOSDisk(path string) (*osDisk, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	lock, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := lockFile(lock); err != nil {
		_ = lock.Close() // nothing was written
		return nil, err
	}
	return &osDisk{path: path, lock: lock}, nil
}

// Open opens the file for its owner alone: it tells what a user likes.
func (d *osDisk) Open() (file, []byte, error) {
	f, err := os.OpenFile(d.path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, nil, err
	}
	data, err := io.ReadAll(f)
	if err == nil {
		err = syncFolder(d.path)
	}
	if err != nil {
		_ = f.Close() // nothing was written
		return nil, nil, err
	}
	return f, data, nil
}

// Replace writes beside the file and renames.
func (d *osDisk) Replace(data []byte) (file, error) {
	next := d.path + ".next"
	f, err := os.OpenFile(next, os.O_CREATE|os.O_TRUNC|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	_, err = f.WriteAt(data, 0)
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = os.Rename(next, d.path)
	}
	if err == nil {
		err = syncFolder(d.path)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Close lets another process have the journal.
func (d *osDisk) Close() error { return d.lock.Close() }
