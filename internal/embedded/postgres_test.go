package embedded

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

func startForTest(t *testing.T, dir string) *Postgres {
	t.Helper()
	p, err := StartPostgres(t.Context(), PostgresConfig{DataDir: dir, Settings: map[string]string{"fsync": "off"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func ask[T any](t *testing.T, url, query string) (answer T) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	if err := conn.QueryRow(t.Context(), query).Scan(&answer); err != nil {
		t.Fatal(err)
	}
	return answer
}

func TestPostgres(t *testing.T) {
	dir := openDir(t)
	p := startForTest(t, dir)
	for range 2 {
		if err := p.CreateDatabase(t.Context(), `shard "0"`); err != nil {
			t.Fatal(err)
		}
	}
	if got := ask[string](t, p.URL(`shard "0"`), "SELECT current_database()"); got != `shard "0"` {
		t.Errorf("connected to %s", got)
	}
	for setting, want := range map[string]string{
		"wal_level": "logical", "listen_addresses": "127.0.0.1", "fsync": "off",
		"password_encryption": "scram-sha-256", "TimeZone": "UTC", "server_encoding": "UTF8",
	} {
		if got := ask[string](t, p.URL("postgres"), "SHOW "+setting); got != want {
			t.Errorf("%s is %s, want %s", setting, got, want)
		}
	}
	info, err := os.Stat(filepath.Join(dir, "password"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the password file: %v, %v; want mode 0600", info, err)
	}
	wrong := strings.Replace(p.URL("postgres"), p.password, "wrong", 1)
	if conn, err := pgx.Connect(t.Context(), wrong); err == nil {
		_ = conn.Close(t.Context())
		t.Error("a wrong password is accepted")
	}
	if _, err := StartPostgres(t.Context(), PostgresConfig{DataDir: dir}); err == nil || !strings.Contains(err.Error(), "in use by another process") {
		t.Errorf("second start on the same data: %v", err)
	}
	for range 2 {
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
	}
	<-p.Done()
	if again := startForTest(t, dir); again.Port() != p.Port() || again.password != p.password {
		t.Errorf("after a restart port %d, before %d; or another password", again.Port(), p.Port())
	}
}

// The parent is killed; its server ends with it, and the next start goes on
// with all that was committed, on the same port.
func TestPostgresSurvivesKill(t *testing.T) {
	dir := openDir(t)
	var first string
	for n := 1; n <= 3; n++ {
		cmd, url := startChild(t, "postgres", dir)
		if first == "" {
			first = url
		}
		if url != first {
			t.Errorf("start %d has another URL", n)
		}
		if got := ask[int](t, url, "SELECT count(*) FROM starts"); got != n {
			t.Errorf("start %d finds %d rows", n, got)
		}
		kill(t, cmd)
	}
	if got := ask[int](t, startForTest(t, dir).URL("postgres"), "SELECT count(*) FROM starts"); got != 3 {
		t.Errorf("%d rows, want 3", got)
	}
}

// A server that outlived its parent (where there is no parent-death signal)
// is stopped, and its data used.
func TestPostgresReplacesOrphan(t *testing.T) {
	dir := openDir(t)
	p := startForTest(t, dir)
	p.process.signal(syscall.SIGINT)
	<-p.Done()

	orphan := exec.Command(p.process.cmd.Path, p.process.cmd.Args[1:]...)
	orphan.Dir, orphan.SysProcAttr = "/", p.process.cmd.SysProcAttr
	if err := orphan.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = orphan.Wait() }()
	for alive(orphan.Process.Pid) { // until it answers
		if conn, err := pgx.Connect(t.Context(), p.URL("postgres")); err == nil {
			_ = conn.Close(t.Context())
			break
		}
	}
	if err := p.Stop(); err != nil { // gives the lock back
		t.Fatal(err)
	}
	again := startForTest(t, dir)
	<-ended
	if got := ask[int](t, again.URL("postgres"), "SELECT 1"); got != 1 {
		t.Errorf("answered %d", got)
	}
}

// A pid file whose number has gone to an unrelated process does not stand in
// the way, and that process is left alone.
func TestStalePidFile(t *testing.T) {
	bystander := exec.Command("sleep", "60")
	if err := bystander.Start(); err != nil {
		t.Fatal(err)
	}
	defer kill(t, bystander)
	dir := t.TempDir()
	pidFile := filepath.Join(dir, "postmaster.pid")
	for content, removed := range map[string]bool{
		strconv.Itoa(bystander.Process.Pid) + "\n" + dir + "\n": true,
		"999999999\n": false, // PostgreSQL replaces a dead one itself
		"garbage":     false,
		"1\n":         false,
	} {
		if err := os.WriteFile(pidFile, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := endOrphan(t.Context(), dir, slog.New(slog.DiscardHandler)); err != nil {
			t.Errorf("%q: %v", content, err)
		}
		if _, err := os.Stat(pidFile); os.IsNotExist(err) != removed {
			t.Errorf("%q: %v, want removed %v", content, err, removed)
		}
	}
	if !alive(bystander.Process.Pid) {
		t.Error("the bystander was killed")
	}
}

// Done tells of a server that ends by itself.
func TestPostgresDone(t *testing.T) {
	p := startForTest(t, openDir(t))
	p.process.signal(syscall.SIGKILL)
	select {
	case <-p.Done():
	case <-time.After(10 * time.Second):
		t.Error("not done after a kill")
	}
}

// A kill during initdb leaves a half-made directory, which is made anew.
func TestPostgresClearsHalfMadeData(t *testing.T) {
	dir := openDir(t)
	if err := os.MkdirAll(filepath.Join(dir, "data.new", "base"), 0o755); err != nil {
		t.Fatal(err)
	}
	startForTest(t, dir)
}

// An initdb whose parent was killed clears up after itself while the next
// start makes the data.
func TestPostgresKilledWhileMakingData(t *testing.T) {
	for _, life := range []time.Duration{20, 60, 120, 240} {
		dir := openDir(t)
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), childEnv+"=postgres "+dir)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		<-time.After(life * time.Millisecond)
		kill(t, cmd)
		if err := startForTest(t, dir).Stop(); err != nil {
			t.Errorf("killed after %v ms: %v", life, err)
		}
	}
}

func TestPostgresRefusesOtherVersions(t *testing.T) {
	dir := openDir(t)
	if err := os.MkdirAll(filepath.Join(dir, "data"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "data", "PG_VERSION"), []byte("9.6\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	_, err := StartPostgres(t.Context(), PostgresConfig{DataDir: dir})
	if err == nil || !strings.Contains(err.Error(), "made by PostgreSQL 9") {
		t.Errorf("error %v", err)
	}
}

func TestPostgresSaysWhyItDoesNotStart(t *testing.T) {
	_, err := StartPostgres(t.Context(), PostgresConfig{DataDir: openDir(t), Settings: map[string]string{"max_connections": "many", "fsync": "off"}})
	if err == nil || !strings.Contains(err.Error(), "max_connections") {
		t.Errorf("error %v, want the server's own words", err)
	}
	if _, err := StartPostgres(t.Context(), PostgresConfig{}); err == nil || !strings.Contains(err.Error(), "data directory is empty") {
		t.Errorf("error %v", err)
	}
}

// Root's data directory below a folder that PostgreSQL's user may not enter.
func TestPostgresPlaceElsewhere(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: others run PostgreSQL as themselves")
	}
	hidden := t.TempDir()
	if err := os.Chmod(hidden, 0o700); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(hidden, "postgres")
	p := startForTest(t, dir)
	location, err := os.ReadFile(filepath.Join(dir, "location"))
	if err != nil {
		t.Fatal(err)
	}
	home := strings.TrimSpace(string(location))
	t.Cleanup(func() {
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
		if err := os.RemoveAll(home); err != nil {
			t.Error(err)
		}
	})
	if filepath.Dir(home) != sharedPlaces {
		t.Errorf("the data is in %s, want below %s", home, sharedPlaces)
	}
	if err := p.CreateDatabase(t.Context(), "kept"); err != nil {
		t.Fatal(err)
	}
	if err := p.Stop(); err != nil {
		t.Fatal(err)
	}
	again := startForTest(t, dir)
	if got := ask[int](t, again.URL("postgres"), "SELECT count(*) FROM pg_database WHERE datname = 'kept'"); got != 1 {
		t.Error("the second start does not find the first one's data")
	}
	if isLeftover(home) {
		t.Error("a folder in use is called a leftover")
	}
	if err := RemovePostgres(dir); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("removing what is in use: %v", err)
	}
	if err := again.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(dir, dir+".moved"); err != nil {
		t.Fatal(err)
	}
	if !isLeftover(home) {
		t.Error("a folder without its data directory is not called a leftover")
	}
	if err := os.Rename(dir+".moved", dir); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := RemovePostgres(dir); err != nil {
			t.Fatal(err)
		}
	}
	for _, gone := range []string{dir, home} {
		if _, err := os.Stat(gone); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is still there: %v", gone, err)
		}
	}
}

func isLeftover(home string) bool {
	return slices.ContainsFunc(Leftovers(), func(l Leftover) bool { return l.Place == home })
}

// A start that is called off does not look elsewhere for programs.
func TestChooseBinariesCalledOff(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := chooseBinaries(ctx, "", 0, nil, slog.New(slog.DiscardHandler)); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

func fakeBinaries(t *testing.T, initdb, postgres string) string {
	t.Helper()
	dir := t.TempDir()
	for name, says := range map[string]string{"initdb": initdb, "postgres": postgres} {
		if err := os.WriteFile(filepath.Join(dir, name), fmt.Appendf(nil, "#!/bin/sh\necho '%s'\n", says), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestInspectBinaries(t *testing.T) {
	for name, test := range map[string]struct {
		initdb, postgres, want string
		major                  int
	}{
		"good":         {"initdb (PostgreSQL) 17.5", "postgres (PostgreSQL) 17.5 (Debian 17.5-1)", "", 17},
		"beta":         {"initdb (PostgreSQL) 19beta1", "postgres (PostgreSQL) 19beta1", "", 19},
		"too old":      {"initdb (PostgreSQL) 13.2", "postgres (PostgreSQL) 13.2", "is too old: install 14", 0},
		"not Postgres": {"wrapper 1.0", "postgres (PostgreSQL) 17.5", "does not say a PostgreSQL version", 0},
	} {
		t.Run(name, func(t *testing.T) {
			b, err := inspectBinaries(t.Context(), fakeBinaries(t, test.initdb, test.postgres))
			if test.want == "" && (err != nil || b.Major != test.major) {
				t.Errorf("%+v, %v; want %d", b, err, test.major)
			}
			if test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("error %v, want one with %q", err, test.want)
			}
		})
	}
	if _, err := inspectBinaries(t.Context(), t.TempDir()); err == nil {
		t.Error("an empty folder is accepted")
	}
}

// PATH comes first, and a lone `postgres` wrapper there does not count.
func TestInstalledPostgres(t *testing.T) {
	dir := fakeBinaries(t, "initdb (PostgreSQL) 42.0", "postgres (PostgreSQL) 42.0")
	t.Setenv("PATH", dir+":/usr/bin:/bin")
	if found := InstalledPostgres(t.Context()); len(found) == 0 || found[0].Major != 42 {
		t.Errorf("found %+v", found)
	}
	if err := os.Remove(filepath.Join(dir, "initdb")); err != nil {
		t.Fatal(err)
	}
	for _, b := range InstalledPostgres(t.Context()) {
		if b.Major == 42 {
			t.Error("a folder without initdb is accepted")
		}
	}
}

// TIDEMARK_TEST_DOWNLOAD=1 also tries the download of the module's programs.
func TestModuleBinaries(t *testing.T) {
	if os.Getenv("TIDEMARK_TEST_DOWNLOAD") == "" {
		t.Skip("downloads 10 MB: set TIDEMARK_TEST_DOWNLOAD=1 to run")
	}
	b, err := moduleBinaries(t.Context(), slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	p, err := StartPostgres(t.Context(), PostgresConfig{DataDir: openDir(t), BinDir: b.Dir})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Stop() }()
	if got := ask[string](t, p.URL("postgres"), "SHOW server_version"); got+".0" != string(moduleVersion) {
		t.Errorf("version %s, want %s", got, moduleVersion)
	}
}
