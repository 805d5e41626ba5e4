package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tidemark/tidemark/internal/config"
)

func TestDevSaysWhereEverythingIs(t *testing.T) {
	s := theSystem(t)
	if !strings.HasPrefix(s.dev.errOut.String(), "PostgreSQL\nKafka broker\nRedis\nschema: control database\n") {
		t.Errorf("a first start says on stderr: %s", s.dev.errOut.String())
	}
	if w := s.dev.warnings(); w != "" {
		t.Errorf("a normal start has something to warn of: %s", w)
	}
	b, err := os.ReadFile(filepath.Join(s.dir, config.EndpointsFile))
	if err != nil {
		t.Fatal(err)
	}
	var keys map[string]any
	if err := json.Unmarshal(b, &keys); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"api", "kafka", "postgres", "control", "redis", "metrics"} {
		if keys[key] == nil {
			t.Errorf("%s is missing in %s", key, b)
		}
	}
	e := s.endpoints(t)
	if len(e.Postgres) != 2 {
		t.Errorf("postgres %v", e.Postgres)
	}
	for _, url := range append(e.Postgres, e.Control) {
		conn, err := pgx.Connect(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.Close(t.Context())
	}
	for _, address := range []string{e.Kafka, strings.TrimPrefix(e.Redis, "redis://")} {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.Close()
	}
	for url, want := range map[string]string{
		e.API + "/openapi.json": `"openapi"`, e.Metrics: "tidemark_component_ready{component=\"intake\"} 1",
		strings.Replace(e.Metrics, "/metrics", "/readyz?verbose", 1): "[+] projection: ready",
		strings.Replace(e.Metrics, "/metrics", "/livez", 1):          "ok",
	} {
		if status, body, err := get(t, url); err != nil || status != 200 || !strings.Contains(body, want) {
			t.Errorf("%s: %d, %v, without %q: %s", url, status, err, want, clip(body))
		}
	}
	for _, name := range []string{config.FileName, config.EndpointsFile, "dev.key", "page-tokens.key"} {
		if info, err := os.Stat(filepath.Join(s.dir, name)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s has secrets: mode %v, %v", name, info.Mode(), err)
		}
	}
}

// The lines that dev prints, as a person pastes them.
func TestDevsCurlLines(t *testing.T) {
	for _, tool := range []string{"sh", "curl"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip("no", tool, "on this machine")
		}
	}
	s := theSystem(t)
	_, lines, found := strings.Cut(s.dev.out.String(), "Try:\n")
	if !found || strings.Count(lines, "curl ") != 4 {
		t.Fatalf("no four curl lines in %s", s.dev.out.String())
	}
	// ./tidemark is this test binary.
	home := t.TempDir()
	script := fmt.Sprintf("#!/bin/sh\n%s=1 exec %q \"$@\"\n", asTidemark, os.Args[0])
	if err := os.WriteFile(filepath.Join(home, "tidemark"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	sh := exec.CommandContext(t.Context(), "sh", "-e")
	sh.Dir = home
	sh.Stdin = strings.NewReader(strings.ReplaceAll(lines, "curl ", "echo; curl -sS --fail-with-body "))
	out, err := sh.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{`"outcome":"APPLIED"`, `"myState":"LIKED"`, `"targetId":"V9001"`, `"nextPageToken":null`} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the answers have no %s:\n%s", want, out)
		}
	}
	c := newClient(t, s.endpoints(t).API, "u7", s.at()...)
	c.awaitCount("V9001", 1)
	wantVerdict(t, exitOK, s.at()...)
}

func TestDevIsRefused(t *testing.T) {
	s := theSystem(t)
	taken := strings.TrimPrefix(s.endpoints(t).API, "http://")
	fresh := t.TempDir()
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"the same data directory": {s.at(append([]string{"dev"}, devArgs...)...), fmt.Sprintf("is in use by another `tidemark dev` (process %d): stop that one, or choose another directory with --data-dir", s.dev.cmd.Process.Pid)},
		"API port in use":         {[]string{"dev", "--data-dir", fresh, "--listen", taken, "--ops-listen", "127.0.0.1:0"}, "address already in use: choose another address with --listen"},
		"operators' port in use":  {[]string{"dev", "--data-dir", fresh, "--listen", "127.0.0.1:0", "--ops-listen", taken}, "address already in use: choose another address with --ops-listen"},
		"a file as directory":     {[]string{"dev", "--data-dir", filepath.Join(s.dir, "dev.key")}, "making the data directory"},
	} {
		t.Run(name, func(t *testing.T) {
			r := must(t, exitError, test.args...)
			if !strings.Contains(r.errOut, test.want) || r.out != "" {
				t.Errorf("want %q\n%v", test.want, r)
			}
		})
	}
	if entries, err := os.ReadDir(fresh); err != nil || len(entries) > 1 { // the lock
		t.Errorf("a refused start left %v, %v", entries, err)
	}
	if r := must(t, exitError, s.at("run", "queries", "--listen", taken)...); !strings.Contains(r.errOut, "choose another address with --listen, or api.listen") {
		t.Error(r)
	}
}

// A start with other numbers than the data has is refused, and changes nothing.
func TestDevsFrozenNumbers(t *testing.T) {
	s := theSystem(t)
	before := s.config(t)
	s.restart(t, func() {
		for flag, want := range map[string]string{"--shards": "was made with --shards 2, not 3", "--partitions": "was made with --partitions 4, not 3"} {
			if r := must(t, exitError, s.at(append([]string{"dev", flag, "3"}, devArgs...)...)...); !strings.Contains(r.errOut, want) {
				t.Error(r)
			}
		}
		// The contract in the control database decides, also when the
		// directory's own note is lost.
		file := filepath.Join(s.dir, config.FileName)
		if err := os.Rename(file, file+".lost"); err != nil {
			t.Fatal(err)
		}
		if r := must(t, exitError, s.at(append([]string{"dev", "--shards", "3"}, devArgs...)...)...); !strings.Contains(r.errOut, "shards is configured as 3, but shard map 1 was made for 2") {
			t.Error(r)
		}
		if _, err := os.Stat(file); err == nil {
			t.Error("what was refused stands in tidemark.yaml")
		}
		if err := os.Rename(file+".lost", file); err != nil {
			t.Fatal(err)
		}
	})
	if after := s.config(t); after.Shards != before.Shards || after.CountPartitions != before.CountPartitions {
		t.Errorf("%+v", after)
	}
	if said := s.dev.errOut.String(); s.dev.warnings() != "" || strings.Count(said, "\n") > 2 {
		t.Errorf("a second start is not quiet: %s", said)
	}
	wantVerdict(t, exitOK, s.at()...)
}

// restart stops the system gracefully, does something, and starts it again.
func (s *system) restart(t testing.TB, between func()) {
	t.Helper()
	if code := s.dev.stop(t); code != exitOK {
		t.Errorf("a graceful stop exits %d: %s", code, s.dev.errOut.String())
	}
	if said := s.dev.errOut.String(); s.dev.warnings() != "" || !strings.HasSuffix(said, "stopping\n") {
		t.Errorf("a normal life and stop say: %s", said)
	}
	if _, err := os.Stat(filepath.Join(s.dir, config.EndpointsFile)); err == nil {
		t.Error("endpoints.json has addresses of nobody")
	}
	between()
	begun := time.Now()
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	t.Logf("ready after %v", since(begun))
}

// Killed in the middle of traffic, and again in the middle of the next start,
// it goes on from its data directory.
func TestDevGoesOnAfterKills(t *testing.T) {
	s := theSystem(t)
	traffic := run(t, s.at("load", "--commands", "0", "--rate", "300", "--users", "300", "--targets", "300")...)
	eventually(t, func() error {
		if strings.Count(traffic.errOut.String(), "decided") < 2 {
			return fmt.Errorf("no traffic yet: %s", traffic.errOut.String())
		}
		return nil
	})
	cfg := s.config(t)
	s.dev.kill()
	if code := traffic.stop(t); code > exitError {
		t.Errorf("interrupted load exits %d: %s", code, traffic.errOut.String())
	}
	again, err := start(s.at(append([]string{"dev"}, devArgs...)...)...)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error { // PostgreSQL is up, the rest not yet
		conn, err := pgx.Connect(t.Context(), cfg.Control)
		if err == nil {
			_ = conn.Close(t.Context())
		}
		return err
	})
	again.kill()
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	if report := wantVerdict(t, exitOK, s.at()...); report.Relations < 100 || !report.Quiet {
		t.Errorf("%+v", report)
	}
}

// Asked to stop before it is up, it stops as if it were.
func TestDevInterruptedAtItsStart(t *testing.T) {
	dir, err := systemDir()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	for _, step := range []string{"PostgreSQL\n", "schema: relation shard 0\n"} {
		dev := run(t, append([]string{"dev", "--data-dir", dir}, devArgs...)...)
		eventually(t, func() error {
			if !strings.Contains(dev.errOut.String(), step) {
				return fmt.Errorf("it says %s", dev.errOut.String())
			}
			return nil
		})
		code := dev.stop(t)
		if said := dev.errOut.String(); code != exitOK || dev.out.String() != "" || strings.Contains(said, "tidemark:") || dev.warnings() != "" {
			t.Errorf("stopped at %q: exit %d, %s", step, code, said)
		}
	}
}

// Without roles dev is infrastructure only, and with --traffic it serves
// itself.
func TestDevsRolesAndTraffic(t *testing.T) {
	s := theSystem(t)
	s.dev.stop(t)
	if err := s.start("--roles", "none"); err != nil {
		t.Fatal(err)
	}
	if e := s.endpoints(t); e.API != "" || len(e.Postgres) != 2 || e.Metrics == "" {
		t.Errorf("%+v", e)
	}
	if strings.Contains(s.dev.out.String(), "curl") {
		t.Errorf("without an API there is nothing to try: %s", s.dev.out.String())
	}
	eventually(t, func() error { // static members leave their group after the session's time
		r := must(t, exitDifferent, s.at("doctor")...)
		for _, want := range []string{"nobody reads replication slot", "start the role: `tidemark run cdc`", "start the role: `tidemark run projection`"} {
			if !strings.Contains(r.out, want) {
				return fmt.Errorf("no %q in\n%s", want, r.out)
			}
		}
		return nil
	})
	s.dev.stop(t)
	if err := s.start("--traffic", "50"); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		r := must(t, exitOK, s.at("tap", "facts", "--from", s.startedAt(t))...)
		if n := strings.Count(r.out, "\n"); n < 50 {
			return fmt.Errorf("%d facts by its own traffic", n)
		}
		return nil
	})
	s.restart(t, func() {})
	wantVerdict(t, exitOK, s.at()...)
}

// startedAt is when the system became ready, to the second.
func (s *system) startedAt(t testing.TB) string {
	info, err := os.Stat(filepath.Join(s.dir, config.EndpointsFile))
	if err != nil {
		t.Fatal(err)
	}
	return info.ModTime().UTC().Format(time.RFC3339)
}

// A dead PostgreSQL is started again below the running roles.
func TestDevRestartsItsPostgres(t *testing.T) {
	s := theSystem(t)
	b, err := os.ReadFile(filepath.Join(s.dir, "postgres", "data", "postmaster.pid"))
	if err != nil {
		t.Skip("PostgreSQL's files are elsewhere:", err)
	}
	pid, _, _ := strings.Cut(string(b), "\n")
	if out, err := exec.CommandContext(t.Context(), "kill", "-9", pid).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	c := newClient(t, s.endpoints(t).API, "survivor", s.at()...)
	eventually(t, func() error {
		return c.try(http.MethodPut, "/v1/videos/after-crash/like-relation", "crash-1", map[string]string{"desiredState": "LIKED"}, nil)
	})
	c.awaitCount("after-crash", 1)
	if !strings.Contains(s.dev.errOut.String(), "the embedded PostgreSQL ended by itself; starting it again") {
		t.Errorf("it says %s", s.dev.errOut.String())
	}
	wantVerdict(t, exitOK, s.at()...)
	s.dev.stop(t)
	if err := s.start(); err != nil { // with an empty stderr, for the tests that follow
		t.Fatal(err)
	}
}
