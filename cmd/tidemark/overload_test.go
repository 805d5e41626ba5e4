package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tidemark/tidemark/api"
	"github.com/tidemark/tidemark/internal/config"
	"github.com/tidemark/tidemark/internal/overload"
	"github.com/tidemark/tidemark/internal/testenv"
)

// overloadShown is what `tidemark overload show` tells.
func (r *feedRig) overloadShown() (shown overloadJSON) {
	r.t.Helper()
	out := must(r.t, exitOK, "overload", "show", "--output", "json", "--config", r.file).out
	if err := json.Unmarshal([]byte(out), &shown); err != nil {
		r.t.Fatalf("%v: %s", err, out)
	}
	return shown
}

// overloadChanged is what a command that changes the level tells.
func (r *feedRig) overloadChanged(args ...string) (changed changedLevelJSON) {
	r.t.Helper()
	out := must(r.t, exitOK, append(append([]string{"overload"}, args...), "--output", "json", "--as", "ann", "--reason", "a test", "--config", r.file)...).out
	if err := json.Unmarshal([]byte(out), &changed); err != nil {
		r.t.Fatalf("%v: %s", err, out)
	}
	return changed
}

// levelOf is the level that a process has gone to by itself; -1 when it has said
// none.
func (j overloadJSON) levelOf(t *testing.T, instance string) overload.Level {
	t.Helper()
	for _, p := range j.Processes {
		if p.Instance != instance {
			continue
		}
		l, err := overload.ParseLevel(p.Level)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	return -1
}

// heard is the level that a process has heard of.
func heard(t *testing.T, process *running) (overload.Level, error) {
	t.Helper()
	at, _, _ := strings.Cut(strings.Fields(process.await(t, "operators"))[1], "/readyz")
	_, body, err := get(t, at+"/metrics")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(body) {
		if value, ok := strings.CutPrefix(line, "tidemark_overload_heard_level "); ok {
			n, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			return overload.Level(n), err
		}
	}
	return 0, errors.New("it tells no level")
}

// A process whose shard stands still goes up the levels by itself and says so;
// the others, which are not pressed, hear of it and let wait what can wait. When
// the shard goes on, the level falls by itself, one after the other, what waited
// is done, and nothing is lost. An operator's level goes the same way.
func TestLevelsGoBetweenProcesses(t *testing.T) {
	if testing.Short() {
		t.Skip("levels fall one every ten seconds")
	}
	r := newFeedRig(t, func(c *config.Config) {
		// What is in flight presses, not how fast the machine is.
		c.Overload.CommandsInFlight, c.Overload.CommandLatency, c.Overload.CountLag = 32, 10*time.Second, time.Hour
		c.Exports.Dir = filepath.Join(filepath.Dir(c.StateDir), "exports")
		c.Limits.Enabled = false
	})
	web := r.run("queries")
	web.await(t, readyLine)
	r.run("cdc").await(t, readyLine)
	r.run("intake").await(t, readyLine)
	eventually(t, func() error {
		if s := r.overloadShown(); s.Order != nil || s.levelOf(t, "commands") != overload.Normal || s.levelOf(t, "queries") != overload.Normal {
			return fmt.Errorf("shown: %+v", s)
		}
		return nil
	})
	url := strings.Fields(web.await(t, "API"))[1]
	ann := &client{t, url, "ann", strings.TrimSpace(must(t, exitOK, "token", "--user", "ann", "--role", api.AnalystRole, "--config", r.file).out)}
	traffic := run(t, "load", "--config", r.file, "--url", r.commands(), "--commands", "0", "--rate", "60", "--users", "50", "--targets", "1", "--workers", "64")

	tx, err := r.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "LOCK TABLE relation IN ACCESS EXCLUSIVE MODE"); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		s := r.overloadShown()
		if s.levelOf(t, "commands") < overload.PauseConsumers {
			return fmt.Errorf("shown: %+v", s)
		}
		if s.levelOf(t, "queries") != overload.Normal {
			t.Errorf("queries, which nothing presses: %+v", s)
		}
		return nil
	})
	for name, process := range map[string]*running{"queries": web, "projection": r.count} {
		eventually(t, func() error {
			if l, err := heard(t, process); err != nil || l < overload.PauseConsumers {
				return fmt.Errorf("%s has heard of %v: %w", name, l, err)
			}
			return nil
		})
	}
	var job api.ExportAnswer
	ann.do(http.MethodPost, "/v1/exports", "k1", map[string]string{"kind": "like", "targetId": "V0", "format": "csv", "purpose": "a test"}, &job)
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.fallsByItself(func() string {
		ann.do(http.MethodGet, "/v1/exports/"+job.ExportID, "", nil, &job)
		return job.State
	})
	eventually(t, func() error {
		ann.do(http.MethodGet, "/v1/exports/"+job.ExportID, "", nil, &job)
		if job.State != "FINISHED" {
			return fmt.Errorf("job %+v", job)
		}
		return nil
	})
	r.ordered(web)
	if code := traffic.stop(t); code > exitError {
		t.Errorf("the load exits %d: %s", code, traffic.errOut.String())
	}
	if report := wantVerdict(t, exitOK, "--config", r.file); report.Relations == 0 {
		t.Errorf("nothing was compared: %+v", report)
	}
}

// commands is where the commands process serves.
func (r *feedRig) commands() string {
	return strings.Fields(r.web.await(r.t, "API"))[1]
}

// fallsByItself waits until the commands process is at level normal, and looks at
// an export meanwhile: it is begun at none of the levels at which it waits. Each
// level lasts.
func (r *feedRig) fallsByItself(export func() string) {
	r.t.Helper()
	last, since := overload.Level(-1), time.Time{}
	testenv.Eventually(r.t, fallPatience, func() error {
		state, l := export(), r.overloadShown().levelOf(r.t, "commands")
		if l >= overload.PauseConsumers && last >= overload.PauseConsumers && state != "QUEUED" {
			r.t.Errorf("at level %v the export is %s", l, state)
		}
		if l != last {
			// It is told and read once a second.
			if lasted := time.Since(since); l < last-1 || !since.IsZero() && lasted < overload.DefaultRules().Fall-3*time.Second {
				r.t.Errorf("level %v after %v of %v", l, lasted, last)
			}
			if last >= 0 {
				since = time.Now()
			}
			last = l
		}
		if l != overload.Normal {
			return fmt.Errorf("the level is %v", l)
		}
		return nil
	})
}

// fallPatience is for five levels, and what presses meanwhile.
const fallPatience = 3 * time.Minute

// ordered has an operator set the level and free it; everybody hears of both.
func (r *feedRig) ordered(web *running) {
	t := r.t
	t.Helper()
	if c := r.overloadChanged("set", "refuse"); !c.Changed || c.Ordered == nil || *c.Ordered != "refuse" {
		t.Errorf("set: %+v", c)
	}
	user := newClient(t, strings.Fields(web.await(t, "API"))[1], "reader", "--config", r.file)
	count := func() error { return user.try(http.MethodGet, "/v1/targets/like/V0/count", "", nil, nil) }
	eventually(t, func() error {
		if err := count(); err == nil || !strings.Contains(err.Error(), "urn:tidemark:problem:overloaded") {
			return fmt.Errorf("a query is not refused: %w", err)
		}
		l, err := heard(t, r.count)
		if err == nil && l != overload.Refuse {
			err = fmt.Errorf("projection has heard of %v", l)
		}
		return err
	})
	s := r.overloadShown()
	if s.Order == nil || s.Order.Level != "refuse" || s.Order.Who != "ann" || s.Order.Reason != "a test" {
		t.Errorf("shown: %+v", s)
	}
	if c := r.overloadChanged("auto"); !c.Changed || c.Ordered != nil {
		t.Errorf("auto: %+v", c)
	}
	if c := r.overloadChanged("auto"); c.Changed {
		t.Errorf("auto again: %+v", c)
	}
	eventually(t, count)
}
