package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tidemark/tidemark/internal/config"
	"github.com/tidemark/tidemark/internal/embedded"
	"github.com/tidemark/tidemark/internal/verify"
)

// system is a `tidemark dev` that most tests share: they leave it equal.
type system struct {
	dir string
	dev *running
}

var shared struct {
	once   sync.Once
	system system
	err    error
}

var devArgs = []string{"--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0"}

// theSystem starts the shared system at its first call.
func theSystem(t testing.TB) *system {
	t.Helper()
	shared.once.Do(func() {
		if shared.system.dir, shared.err = systemDir(); shared.err == nil {
			shared.err = shared.system.start("--shards", "2", "--partitions", "4")
		}
	})
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return &shared.system
}

// systemDir is a folder that PostgreSQL's user may enter.
func systemDir() (string, error) {
	dir, err := os.MkdirTemp("", "tidemark-test-dev-")
	if err != nil {
		return "", err
	}
	return dir, os.Chmod(dir, 0o755)
}

func (s *system) start(args ...string) (err error) {
	if s.dev, err = start(append(append([]string{"dev", "--data-dir", s.dir}, devArgs...), args...)...); err != nil {
		return err
	}
	_, err = s.dev.awaitOutput(readyLine)
	return err
}

// stopShared ends the shared system and removes its folder.
func stopShared() error {
	s := &shared.system
	if s.dev != nil {
		_ = s.dev.cmd.Process.Signal(syscall.SIGTERM)
		<-s.dev.ended
	}
	if s.dir == "" {
		return nil
	}
	return errors.Join(embedded.RemovePostgres(filepath.Join(s.dir, "postgres")), os.RemoveAll(s.dir))
}

// at adds the system's data directory to a command.
func (s *system) at(args ...string) []string { return append(args, "--data-dir", s.dir) }

func (s *system) config(t testing.TB) config.Config {
	t.Helper()
	cfg, err := config.Load(filepath.Join(s.dir, config.FileName))
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func (s *system) endpoints(t testing.TB) config.Endpoints {
	t.Helper()
	e, err := config.ReadEndpoints(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// client talks to an API as one user.
type client struct {
	t         testing.TB
	api, user string
	token     string
}

func newClient(t testing.TB, api, user string, where ...string) *client {
	t.Helper()
	r := must(t, exitOK, append([]string{"token", "--user", user}, where...)...)
	return &client{t, api, user, strings.TrimSpace(r.out)}
}

func (c *client) do(method, path, key string, body, answer any) {
	c.t.Helper()
	if err := c.try(method, path, key, body, answer); err != nil {
		c.t.Fatal(err)
	}
}

func (c *client) try(method, path, key string, body, answer any) error {
	b, err := json.Marshal(body)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(c.t.Context(), method, c.api+path, bytes.NewReader(b))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+c.token)
	req.Header.Set("Content-Type", "application/json")
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	status, got, err := ask(req)
	if err == nil && status/100 != 2 {
		err = fmt.Errorf("status %d: %s", status, got)
	}
	if err == nil && answer != nil {
		err = json.Unmarshal(got, answer)
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	return nil
}

// oneShot keeps no connection, so that no goroutine outlives a test.
var oneShot = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}

func ask(req *http.Request) (status int, body []byte, err error) {
	res, err := oneShot.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = res.Body.Close() }()
	body, err = io.ReadAll(res.Body)
	return res.StatusCode, body, err
}

func get(t testing.TB, url string) (status int, body string, err error) {
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		return 0, "", err
	}
	status, b, err := ask(req)
	return status, string(b), err
}

// like sets the user's relation with a video to LIKED.
func (c *client) like(video, key string) {
	c.t.Helper()
	c.do(http.MethodPut, "/v1/videos/"+video+"/like-relation", key, map[string]string{"desiredState": "LIKED"}, nil)
}

// awaitCount waits until a video's displayed likes are n.
func (c *client) awaitCount(video string, n int64) {
	c.t.Helper()
	eventually(c.t, func() error {
		var count struct{ DisplayCount int64 }
		if err := c.try(http.MethodGet, "/v1/targets/like/"+video+"/count", "", nil, &count); err != nil {
			return err
		}
		if count.DisplayCount != n {
			return fmt.Errorf("%s has %d likes, want %d", video, count.DisplayCount, n)
		}
		return nil
	})
}

// wantVerdict verifies until the verdict's exit code is as wanted, and gives
// the report.
func wantVerdict(t testing.TB, code int, where ...string) verify.Report {
	t.Helper()
	var report verify.Report
	mustJSON(t, must(t, code, append([]string{"verify", "--output", "json"}, where...)...).out, &report)
	return report
}

func since(t time.Time) time.Duration { return time.Since(t).Round(time.Millisecond) }
