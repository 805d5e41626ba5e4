package exports

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
)

// errDiffers says that a file is not what a manifest or journal says.
var errDiffers = errors.New("differs")

// Report is what Verify found.
type Report struct {
	Manifest Manifest `json:"manifest"`
	// Differences between the files and the manifest; none: they are what was
	// written.
	Differences []string `json:"differences"`
}

// Verify reads a finished export and compares its files with its manifest: each
// file, each row's place in the order, and the checksum of all rows. Its error
// says that it could not tell.
func Verify(ctx context.Context, dir string) (Report, error) {
	m, err := ReadManifest(dir)
	if err != nil {
		return Report{}, err
	}
	r := Report{Manifest: m, Differences: []string{}}
	differs := func(format string, a ...any) { r.Differences = append(r.Differences, fmt.Sprintf(format, a...)) }
	if err := m.Spec.Check(); err != nil {
		differs("%s: %v", ManifestName, err)
		return r, nil
	}
	all := newDigest()
	var last *Row
	for i, p := range m.Parts {
		if want := partName(i+1, m.Format); p.Name != want {
			differs("%s: part %d is %q, not %s", ManifestName, i+1, p.Name, want)
		}
		err := readPart(dir, p, m.Format, func(row Row) error {
			if last != nil && compareRows(*last, row) >= 0 {
				return fmt.Errorf("row %d of the export is out of order, or twice", all.rows+1)
			}
			last = &row
			all.add(row)
			return ctx.Err()
		})
		switch {
		case ctx.Err() != nil:
			return r, ctx.Err()
		case errors.Is(err, errDiffers):
			differs("%v", err)
		case err != nil:
			return r, err
		}
	}
	if all.rows != m.Rows || all.sum() != m.Checksum {
		differs("the parts have %d rows with %s, the manifest says %d with %s", all.rows, all.sum(), m.Rows, m.Checksum)
	}
	if m.Relations != m.Rows+m.Withheld || m.Withheld < 0 || m.Accounts == All && m.Withheld != 0 {
		differs("%s: %d relations are not %d rows and %d withheld", ManifestName, m.Relations, m.Rows, m.Withheld)
	}
	return r, r.strangers(dir)
}

// strangers are files that the manifest does not name.
func (r *Report) strangers(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		left := e.Name() == journalName // by a crash behind the manifest; Run removes it
		named := e.Name() == ManifestName || slices.ContainsFunc(r.Manifest.Parts, func(p Part) bool { return p.Name == e.Name() })
		if !named && !left {
			r.Differences = append(r.Differences, fmt.Sprintf("differs: the manifest does not name %s", e.Name()))
		}
	}
	return nil
}
