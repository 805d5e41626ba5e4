package exports

import (
	"bufio"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// ErrDirectory says that a directory cannot take the export.
var ErrDirectory = errors.New("the directory cannot take the export")

// directory is where an export is written. A file has its name only when it is
// whole and on disk, and the journal names a part only after that.
type directory struct {
	path string
	lock *os.File // the directory itself
}

// openDirectory makes the directory if it is not there, and keeps other
// exporters out until close. The kernel drops the lock with the process.
func openDirectory(path string) (*directory, error) {
	if err := os.MkdirAll(path, 0o750); err != nil {
		return nil, fmt.Errorf("making the export's directory: %w", err)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("opening the export's directory: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("%w: another process writes to %s", ErrDirectory, path)
		}
		return nil, fmt.Errorf("locking %s: %w", path, err)
	}
	if err := syncParent(path); err != nil {
		_ = f.Close()
		return nil, err
	}
	return &directory{path, f}, nil
}

// syncParent brings the directory's own name to disk.
func syncParent(path string) error {
	f, err := os.Open(filepath.Dir(filepath.Clean(path)))
	if err == nil {
		err = errors.Join(f.Sync(), f.Close())
	}
	if err != nil {
		return fmt.Errorf("making the export's directory: %w", err)
	}
	return nil
}

func (d *directory) close() { _ = d.lock.Close() }

func (d *directory) file(name string) string { return filepath.Join(d.path, name) }

// write makes a file in one step: it has its name when it is on disk.
func (d *directory) write(name string, fill func(io.Writer) error) (err error) {
	f, err := os.OpenFile(d.file(temporary(name)), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o640)
	if err != nil {
		return fmt.Errorf("writing %s: %w", name, err)
	}
	b := bufio.NewWriterSize(f, 1<<16)
	err = fill(b)
	if err == nil {
		err = b.Flush()
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), d.file(name))
	}
	if err == nil {
		err = d.lock.Sync()
	}
	if err != nil {
		return fmt.Errorf("writing %s: %w", d.file(name), err)
	}
	return nil
}

func temporary(name string) string { return "." + strings.TrimPrefix(name, ".") + ".tmp" }

func (d *directory) writeJSON(name string, v any) error {
	return d.write(name, func(w io.Writer) error {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		e.SetEscapeHTML(false)
		return e.Encode(v)
	})
}

// writePart writes rows as the next part.
func (d *directory) writePart(number int, format Format, rows []Row) (Part, error) {
	p := Part{Name: partName(number, format), Rows: int64(len(rows))}
	file, content := sha256.New(), newDigest()
	err := d.write(p.Name, func(w io.Writer) error {
		out := codecs[format].write(io.MultiWriter(w, file, (*byteCount)(&p.Bytes)))
		for _, r := range rows {
			content.add(r)
			if err := out.Write(r); err != nil {
				return err
			}
		}
		return out.Close()
	})
	p.Checksum, p.SHA256 = content.sum(), sumText(file)
	return p, err
}

func partName(number int, format Format) string { return fmt.Sprintf("part-%06d.%s", number, format) }

type byteCount int64

func (n *byteCount) Write(b []byte) (int, error) {
	*n += byteCount(len(b))
	return len(b), nil
}

func (d *directory) remove(name string) error {
	if err := errors.Join(os.Remove(d.file(name)), d.lock.Sync()); err != nil {
		return fmt.Errorf("removing %s: %w", d.file(name), err)
	}
	return nil
}

// begun reads the journal; nil when no export was begun here. It refuses a
// directory that holds a finished export, another one, or anything else.
func (d *directory) begun(s Spec) (*journal, error) {
	var j journal
	err := readJSON(d.file(journalName), &j)
	_, noManifest := os.Stat(d.file(ManifestName))
	switch {
	case errors.Is(err, fs.ErrNotExist) && noManifest == nil:
		return nil, fmt.Errorf("%w: %s holds a finished export: choose another directory", ErrDirectory, d.path)
	case errors.Is(err, fs.ErrNotExist):
		return nil, d.mustBeEmpty()
	case err != nil:
		return nil, err
	case j.Version != manifestVersion:
		return nil, fmt.Errorf("%w: %s holds an export that another version of this program began", ErrDirectory, d.path)
	}
	if err := j.Check(); err != nil {
		return nil, fmt.Errorf("%s: %w", d.file(journalName), err)
	}
	if j.Spec != s {
		return nil, fmt.Errorf("%w: %s holds an export that is not finished, of %s %q as %s with accounts %s, for %s with purpose %q: give the same, or another directory",
			ErrDirectory, d.path, j.KindName, j.Target, j.Format, j.Accounts, j.By, j.Purpose)
	}
	return &j, nil
}

func (d *directory) mustBeEmpty() error {
	names, err := d.names()
	if err != nil {
		return err
	}
	for _, name := range names {
		if name != temporary(journalName) {
			return fmt.Errorf("%w: %s is not empty: it has %s", ErrDirectory, d.path, name)
		}
	}
	return nil
}

func (d *directory) names() (names []string, err error) {
	entries, err := os.ReadDir(d.path)
	if err != nil {
		return nil, fmt.Errorf("reading the export's directory: %w", err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, nil
}

// removeAllBut removes an unfinished export's files other than the journal and
// the given parts.
func (d *directory) removeAllBut(parts []Part) error {
	keep := map[string]bool{journalName: true}
	for _, p := range parts {
		keep[p.Name] = true
	}
	names, err := d.names()
	if err != nil {
		return err
	}
	for _, name := range names {
		ours := strings.HasPrefix(name, "part-") || strings.HasPrefix(name, ".") && strings.HasSuffix(name, ".tmp")
		if !ours || keep[name] {
			continue
		}
		if err := os.Remove(d.file(name)); err != nil {
			return fmt.Errorf("removing what is not whole: %w", err)
		}
	}
	return nil
}

// readPart gives a part's rows to do and tells whether the file is what p says.
func readPart(dir string, p Part, format Format, do func(Row) error) (err error) {
	if p.Name != filepath.Base(p.Name) {
		return fmt.Errorf("%w: part %q is not a name", errDiffers, p.Name)
	}
	f, err := os.Open(filepath.Join(dir, p.Name))
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %s is missing", errDiffers, p.Name)
	}
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	file := sha256.New()
	n, err := io.Copy(file, f)
	if err != nil {
		return fmt.Errorf("reading %s: %w", p.Name, err)
	}
	if n != p.Bytes || sumText(file) != p.SHA256 {
		return fmt.Errorf("%w: %s is not the file that was written: it has %d bytes with %s, not %d with %s", errDiffers, p.Name, n, sumText(file), p.Bytes, p.SHA256)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	content := newDigest()
	if err := codecs[format].read(f, func(r Row) error { content.add(r); return do(r) }); err != nil {
		return fmt.Errorf("%w: %s: %w", errDiffers, p.Name, err)
	}
	if content.rows != p.Rows || content.sum() != p.Checksum {
		return fmt.Errorf("%w: %s has %d rows with %s, not %d with %s", errDiffers, p.Name, content.rows, content.sum(), p.Rows, p.Checksum)
	}
	return nil
}
