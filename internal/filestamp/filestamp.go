// Package filestamp tells one content of a file from another without reading it,
// for files that are read again when they change.
//
// A stamp is taken before the content is read: a change in between has a newer
// stamp, and is read the next time.
package filestamp

import (
	"fmt"
	"io"
	"os"
)

// Of is the stamp of a file as it is now: its size and the time of its last
// change.
func Of(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	return fmt.Sprint(info.Size(), info.ModTime().UnixNano()), nil
}

// ReadAtMost reads a file of at most so many bytes; the error names it.
func ReadAtMost(path string, most int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(b)) > most {
		err = fmt.Errorf("%s has more than %d bytes", path, most)
	}
	return b, err
}

// Seen are files that were read, with their stamps.
type Seen []seenFile

type seenFile struct{ path, stamp string } // stamp empty: it was not there

// Read reads a file as ReadAtMost does, and remembers its stamp, also when it
// cannot be read.
func (s *Seen) Read(path string, most int64) ([]byte, error) {
	stamp, _ := Of(path) // empty then, and reading says what is wrong
	*s = append(*s, seenFile{path, stamp})
	return ReadAtMost(path, most)
}

// Changed tells whether any of the files is another one now.
func (s Seen) Changed() bool {
	for _, f := range s {
		if stamp, _ := Of(f.path); stamp != f.stamp { // a file that is away has changed
			return true
		}
	}
	return false
}
