package exports

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// Names in an export's directory.
const (
	ManifestName = "manifest.json"
	journalName  = ".journal.json"
)

// Cut is the barrier's cut through a shard: what committed before the seal is
// in the export, what came after is not.
type Cut struct {
	Shard    int       `json:"shard"`
	Seal     uint64    `json:"seal"`
	OutboxID int64     `json:"outboxId"`
	SealedAt time.Time `json:"sealedAt"`
}

// Moment is what the rows are of.
type Moment struct {
	Barrier string `json:"barrierId"`
	Shards  []Cut  `json:"shards"`
	// RulesRevision of the privacy rules that decided which accounts are shown.
	RulesRevision int64 `json:"rulesRevision"`
	// ReverseGeneration of the index that the list was read from.
	ReverseGeneration uint32 `json:"reverseGeneration"`
}

// Part is a file of rows.
type Part struct {
	Name string `json:"name"`
	Rows int64  `json:"rows"`
	// Checksum is of the part's rows, whatever the format.
	Checksum string `json:"checksum"`
	Bytes    int64  `json:"bytes"`
	SHA256   string `json:"sha256"` // of the file
}

// Counts are what an export has.
type Counts struct {
	// Relations in the counted state at the barrier.
	Relations int64 `json:"relations"`
	// Rows of the files. Accounts that are not shown are the difference.
	Rows int64 `json:"rows"`
}

// manifestVersion is of the layout of manifests and rows.
const manifestVersion = 1

// Manifest is the last file of an export: without it there is none.
type Manifest struct {
	Version int `json:"manifestVersion"`
	Spec
	AsOf Moment `json:"asOf"`
	Counts
	// Withheld relations are of accounts that are not shown.
	Withheld int64 `json:"withheld"`
	// Checksum of all rows in the order of the parts, whatever the format.
	Checksum   string    `json:"checksum"`
	Parts      []Part    `json:"parts"`
	StartedAt  time.Time `json:"startedAt"`
	FinishedAt time.Time `json:"finishedAt"`
	// BegunAnew tells why earlier barriers were given up, if any were.
	BegunAnew []string `json:"begunAnew"`
}

// journal is how far an export is that has no manifest yet.
type journal struct {
	Version int `json:"journalVersion"`
	Spec
	Started   time.Time        `json:"startedAt"`
	AsOf      Moment           `json:"asOf"`
	Gaps      map[string]int64 `json:"gaps"` // revisions of the gaps that were known, and healed, before the barrier
	Counts                     // of Parts
	Parts     []Part           `json:"parts"`
	Last      *place           `json:"last"` // relation behind which to read on; null: none was read
	BegunAnew []string         `json:"begunAnew"`
}

type place struct {
	LikedAtUs int64  `json:"likedAtUs"`
	User      string `json:"userId"`
}

// ErrNoManifest says that a directory holds no finished export.
var ErrNoManifest = errors.New("no finished export")

// ReadManifest reads a finished export's manifest.
func ReadManifest(dir string) (Manifest, error) {
	var m Manifest
	err := readJSON(filepath.Join(dir, ManifestName), &m)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return m, fmt.Errorf("%s has no %s: %w", dir, ManifestName, ErrNoManifest)
	case err != nil:
		return m, err
	case m.Version != manifestVersion:
		return m, fmt.Errorf("%s is of version %d, this program reads version %d", filepath.Join(dir, ManifestName), m.Version, manifestVersion)
	}
	return m, nil
}

func readJSON(path string, into any) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, into); err != nil {
		return fmt.Errorf("reading %s: %w", path, err)
	}
	return nil
}
