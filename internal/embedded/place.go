package embedded

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// place is where a server's files are and who owns them.
type place struct {
	data    string   // PGDATA
	major   int      // version that made the data; 0: not made yet
	account *account // nil: this process's own user
}

// sharedPlaces holds data that root's DataDir cannot, for want of a way in.
const sharedPlaces = "/var/lib/tidemark"

// findPlace decides where PGDATA is.
func findPlace(dir *dataDir, log *slog.Logger) (place, error) {
	data := dir.file("data")
	if home := elsewhere(dir.path); home != "" {
		data = filepath.Join(home, "data")
	}
	a, err := serverAccount(data)
	if err != nil {
		return place{}, err
	}
	at := place{data: data, major: madeBy(data), account: a}
	if a == nil {
		return at, nil
	}
	if err := os.Chmod(dir.path, 0o755); err != nil {
		return place{}, fmt.Errorf("letting user %s into the data directory: %w", a.name, err)
	}
	blocked := a.mayEnter(filepath.Dir(data))
	if blocked == nil {
		return at, nil
	}
	if at.major != 0 {
		return place{}, fmt.Errorf("%w, where the data is: allow it (chmod o+x) or choose another data directory", blocked)
	}
	at.data, err = placeElsewhere(dir, a)
	if err != nil {
		return place{}, fmt.Errorf("%w, and another place could not be made: %w: choose a data directory that the user can reach", blocked, err)
	}
	log.Warn("PostgreSQL's files are kept outside the data directory", "because", blocked.Error(), "place", at.data)
	return at, nil
}

// placeElsewhere makes a folder that the account can reach. The data directory
// notes the folder and the folder the data directory, in this order: a folder
// without its note is one that is being made.
func placeElsewhere(dir *dataDir, a *account) (string, error) {
	if err := os.MkdirAll(sharedPlaces, 0o755); err != nil {
		return "", err
	}
	home, err := os.MkdirTemp(sharedPlaces, placePrefix)
	if err != nil {
		return "", err
	}
	if err := os.Chmod(home, 0o755); err != nil {
		return "", err
	}
	if err := a.mayEnter(home); err != nil {
		return "", err
	}
	if err := writeFile(dir.file(locationFile), home+"\n", 0o644); err != nil {
		return "", err
	}
	return filepath.Join(home, "data"), writeFile(filepath.Join(home, ownerFile), dir.path+"\n", 0o644)
}

const (
	locationFile = "location" // in a data directory: the folder below sharedPlaces
	ownerFile    = "owner"    // in that folder: the data directory
	placePrefix  = "postgres-"
)

// elsewhere is the folder below sharedPlaces that a data directory notes; ""
// when it notes none.
func elsewhere(dir string) string {
	b, err := os.ReadFile(filepath.Join(dir, locationFile))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// RemovePostgres removes a data directory of StartPostgres with everything
// that the server keeps elsewhere. It refuses one that is in use; one that
// does not exist is fine.
func RemovePostgres(dataDir string) error {
	if _, err := os.Stat(dataDir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	dir, err := openDataDir(dataDir)
	if err != nil {
		return fmt.Errorf("removing PostgreSQL's data: %w", err)
	}
	defer func() { _ = dir.Close() }() // the lock goes with its file
	var errs []error
	if home := elsewhere(dir.path); isPlace(home) {
		errs = append(errs, os.RemoveAll(home))
	}
	if err := errors.Join(append(errs, os.RemoveAll(dir.path))...); err != nil {
		return fmt.Errorf("removing PostgreSQL's data: %w", err)
	}
	return nil
}

func isPlace(home string) bool {
	return filepath.Dir(home) == sharedPlaces && strings.HasPrefix(filepath.Base(home), placePrefix)
}

// Leftover is a folder of PostgreSQL's files whose data directory is gone.
type Leftover struct {
	Place string // the folder
	Owner string // the data directory that it belonged to
}

// Leftovers lists what removed data directories have left elsewhere. A person
// decides what becomes of it: the directory may be on a disk that is not
// mounted now.
func Leftovers() []Leftover {
	homes, _ := filepath.Glob(filepath.Join(sharedPlaces, placePrefix+"*")) // the pattern is well formed
	var all []Leftover
	for _, home := range homes {
		b, err := os.ReadFile(filepath.Join(home, ownerFile))
		owner := strings.TrimSpace(string(b))
		if err == nil && elsewhere(owner) != home {
			all = append(all, Leftover{Place: home, Owner: owner})
		}
	}
	return all
}

// madeBy is the major version in PG_VERSION, 0 when there is no data.
func madeBy(data string) int {
	b, err := os.ReadFile(filepath.Join(data, "PG_VERSION"))
	if err != nil {
		return 0
	}
	major, _, _ := strings.Cut(strings.TrimSpace(string(b)), ".")
	n, _ := strconv.Atoi(major) // not a number: counts as not made
	return n
}
