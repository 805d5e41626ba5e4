package gokakit

import (
	"strings"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// sinkFS is the file system under a Pebble store. After the first change that
// fails, the disk is left as it is: what Pebble writes from then on goes to RAM
// and is forgotten with the store, which is told to fail.
//
// Pebble ends the process when it cannot write its manifest, and stalls its
// writers, and its own Close, for as long as a flush fails. Both would be the
// fate of every role in the process when a disk is full. Here a failed change
// of the manifest looks like a success to it, and the flush that it tries
// again succeeds in RAM; on disk stays the state of some earlier moment, which
// is all that a store without a write-ahead log promises.
type sinkFS struct {
	vfs.FS
	sunk    atomic.Bool
	ram     *vfs.MemFS
	trouble func(string)
}

func newSinkFS(fs vfs.FS, dir string, trouble func(string)) *sinkFS {
	s := &sinkFS{FS: fs, ram: vfs.NewMem(), trouble: trouble}
	_ = s.ram.MkdirAll(dir, 0o755) // cannot fail in RAM
	return s
}

// vital says whether Pebble does not survive a failure of a file: only that of
// a table is one that it tries again.
func vital(name string) bool { return !strings.HasSuffix(name, ".sst") }

// sink notes a failed change.
func (s *sinkFS) sink(err error) {
	s.sunk.Store(true)
	s.trouble("writing to disk: " + err.Error())
}

func (s *sinkFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if !s.sunk.Load() {
		f, err := s.FS.Create(name, c)
		if err == nil {
			return &sinkFile{File: f, fs: s, vital: vital(name)}, nil
		}
		s.sink(err)
		if !vital(name) {
			return nil, err
		}
	}
	return s.ram.Create(name, c)
}

func (s *sinkFS) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	if s.sunk.Load() {
		if f, err := s.ram.Open(name, opts...); err == nil {
			return f, nil
		}
	}
	return s.FS.Open(name, opts...)
}

func (s *sinkFS) Stat(name string) (vfs.FileInfo, error) {
	if s.sunk.Load() {
		if i, err := s.ram.Stat(name); err == nil {
			return i, nil
		}
	}
	return s.FS.Stat(name)
}

func (s *sinkFS) OpenDir(name string) (vfs.File, error) {
	f, err := s.FS.OpenDir(name)
	if err != nil {
		return nil, err
	}
	return &sinkFile{File: f, fs: s, vital: true}, nil
}

func (s *sinkFS) Remove(name string) error {
	if s.sunk.Load() {
		_ = s.ram.Remove(name)
		return nil
	}
	return s.FS.Remove(name)
}

func (s *sinkFS) Rename(from, to string) error {
	if !s.sunk.Load() {
		err := s.FS.Rename(from, to)
		if err == nil {
			return nil
		}
		s.sink(err)
	}
	_ = s.ram.Rename(from, to)
	return nil
}

func (s *sinkFS) Unwrap() vfs.FS { return s.FS }

// sinkFile is a file that was made on disk. A vital one takes no more changes
// once the disk is left as it is.
type sinkFile struct {
	vfs.File
	fs    *sinkFS
	vital bool
}

// change makes a change, and hides its failure from Pebble where it must.
func (f *sinkFile) change(do func() error) error {
	if f.vital && f.fs.sunk.Load() {
		return nil
	}
	err := do()
	if err == nil {
		return nil
	}
	f.fs.sink(err)
	if f.vital {
		return nil
	}
	return err
}

func (f *sinkFile) Write(p []byte) (n int, err error) {
	n = len(p)
	err = f.change(func() (err error) {
		n, err = f.File.Write(p)
		return err
	})
	if err == nil {
		n = len(p)
	}
	return n, err
}

func (f *sinkFile) Preallocate(offset, length int64) error {
	return f.change(func() error { return f.File.Preallocate(offset, length) })
}

func (f *sinkFile) Sync() error { return f.change(f.File.Sync) }

func (f *sinkFile) SyncData() error { return f.change(f.File.SyncData) }

func (f *sinkFile) SyncTo(length int64) (full bool, err error) {
	err = f.change(func() (err error) {
		full, err = f.File.SyncTo(length)
		return err
	})
	return full, err
}

func (f *sinkFile) Close() error {
	err := f.File.Close()
	if f.vital {
		return nil
	}
	return err
}
