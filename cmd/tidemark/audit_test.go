package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/tidemark/tidemark/internal/config"
	"github.com/tidemark/tidemark/internal/control"
)

// audited are the commands with which an operator changes something or sees
// what names users: the action that the audit has of each, and a test, here or of
// package control, that finds it there.
var audited = map[string]struct{ action, test string }{
	"tidemark cache rebuild":      {"cache.begun", "TestACacheGenerationsLife"},
	"tidemark cdc create-slot":    {"cdc.slot-created", "TestDroppingAndCreatingASlot"},
	"tidemark cdc drop-slot":      {"cdc.slot-dropped", "TestDroppingAndCreatingASlot"},
	"tidemark cdc pause":          {"cdc.paused", "TestDroppingAndCreatingASlot"},
	"tidemark cdc resume":         {"cdc.resumed", "TestDroppingAndCreatingASlot"},
	"tidemark export likers":      {"export.begun", "TestAKilledExportGoesOn"},
	"tidemark gaps heal":          {"gap.healed", "TestRaisingAGapIsIdempotent"},
	"tidemark likers backfill":    {"likers backfill", "TestOperatorsAreAudited"},
	"tidemark overload auto":      {"overload.freed", "TestOverload"},
	"tidemark overload set":       {"overload.ordered", "TestOverload"},
	"tidemark privacy apply":      {"privacy.event", "TestOperatorsAreAudited"},
	"tidemark privacy publish":    {"privacy.published", "TestOperatorsAreAudited"},
	"tidemark quarantine discard": {"quarantine.discarded", "TestQuarantineCommands"},
	"tidemark quarantine replay":  {"quarantine.replayed", "TestQuarantineCommands"},
	"tidemark quarantine show":    {"quarantine.shown", "TestQuarantineCommands"},
	"tidemark risk hide":          {"risk.begun", "TestRiskFromRuleToUndo"},
	"tidemark risk show":          {"risk.begun", "TestRiskFromRuleToUndo"},
	"tidemark shards fence":       {"shard-map.activated", "TestShards"},
	"tidemark tap":                {"stream.read", "TestOperatorsAreAudited"},
}

// unaudited are all other commands, each with why the audit needs nothing of it.
var unaudited = map[string]string{
	"tidemark barrier":         "shows seals and offsets, no user",
	"tidemark cache status":    "shows how far generations are",
	"tidemark cdc status":      "shows how far the feed is",
	"tidemark demo":            "runs a system of its own",
	"tidemark dev":             "runs a process",
	"tidemark doctor":          "shows what is reached",
	"tidemark drill list":      "shows names of drills",
	"tidemark drill run":       "runs a system of its own",
	"tidemark drill-broker":    "a part of a drill",
	"tidemark drill-member":    "a part of a drill",
	"tidemark export verify":   "reads files that the caller has",
	"tidemark gaps list":       "shows gaps, no user",
	"tidemark load":            "sends commands through the API, by users of its own",
	"tidemark overload show":   "shows the level",
	"tidemark quarantine list": "shows no payload",
	"tidemark risk cases":      "shows cases that are in the audit: who, why and how many, no user",
	"tidemark risk check":      "reads a file of rules",
	"tidemark risk try":        "judges a command that its caller makes up",
	"tidemark run":             "runs a process",
	"tidemark schema migrate":  "comes before there is an audit to write to",
	"tidemark schema status":   "shows the schema",
	"tidemark shards check":    "shows the map",
	"tidemark shards list":     "shows the map",
	"tidemark token":           "needs the key, with which anybody can sign tokens by other means",
	"tidemark topology check":  "shows topics",
	"tidemark topology create": "makes topics that the map has",
	"tidemark topology print":  "shows the map",
	"tidemark verify":          "compares numbers; names keys only where they differ, which is to be told to all",
	"tidemark version":         "shows the version",
}

// Every command is in one of the two lists: a new one that acts, or shows what
// names users, has a line in the audit and a test of it. Those that do say --as.
func TestOperatorCommandsAreAudited(t *testing.T) {
	code, tests := sources(t, ".", "../../internal/control", "../../internal/quarantine/review", "../../exports")
	seen := map[string]bool{}
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		for _, c := range cmd.Commands() {
			walk(c)
		}
		if cmd.HasSubCommands() {
			return
		}
		name := cmd.CommandPath()
		seen[name] = true
		a, is := audited[name]
		if _, not := unaudited[name]; is == not {
			t.Errorf("%s is in one of audited and unaudited: %v, %v", name, is, not)
		}
		if is != (cmd.Flags().Lookup("as") != nil) {
			t.Errorf("%s is audited: %v, but its flag --as says otherwise", name, is)
		}
		if is && (!strings.Contains(tests, "func "+a.test+"(") || !strings.Contains(code, `"`+a.action+`"`)) {
			t.Errorf("%s: no code writes %s, or there is no %s", name, a.action, a.test)
		}
	}
	root := newRoot()
	walk(root)
	for name := range audited {
		if !seen[name] {
			t.Errorf("%s does not exist", name)
		}
	}
	for name := range unaudited {
		if !seen[name] {
			t.Errorf("%s does not exist", name)
		}
	}
}

// sources is the text of the Go files of folders.
func sources(t *testing.T, folders ...string) (code, tests string) {
	t.Helper()
	for _, folder := range folders {
		files, err := filepath.Glob(filepath.Join(folder, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if strings.HasSuffix(file, "_test.go") {
				tests += string(b)
			} else {
				code += string(b)
			}
		}
	}
	return code, tests
}

// What operators say of users and what they read of them is in the audit, with
// who and why, and before it is done: without an audit it is not done.
func TestOperatorsAreAudited(t *testing.T) {
	s := theSystem(t)
	cfg := s.config(t)
	event := filepath.Join(t.TempDir(), "event.jsonl")
	if err := os.WriteFile(event, []byte(`{"type":"block","blockerId":"audited-1","blockedId":"audited-2","version":1,"active":false}`), 0o600); err != nil {
		t.Fatal(err)
	}
	db, err := control.Open(t.Context(), cfg.Control)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for action, args := range map[string][]string{
		"privacy.published": {"privacy", "publish", event},
		"privacy.event":     {"privacy", "apply", event},
		"stream.read":       {"tap", "privacy-events", "--from", "latest"},
		"likers backfill":   {"likers", "backfill", "--execute"},
	} {
		why := "relations from before the reverse index"
		if action != "likers backfill" {
			why = "ticket 7"
			args = append(args, "--reason", why)
		}
		must(t, exitOK, s.at(append(args, "--as", "ann")...)...)
		entries, err := db.Entries(t.Context(), "", 10_000)
		if err != nil {
			t.Fatal(err)
		}
		at := slices.IndexFunc(entries, func(e control.Entry) bool { return e.Action == action && e.Who == "ann" && e.Reason == why })
		if at < 0 {
			t.Errorf("the audit has no %s of ann", action)
		}
	}
	gone := s.changedConfig(t, func(c *config.Config) { c.Control = "postgres://nobody@127.0.0.1:1/absent" })
	for _, args := range [][]string{{"privacy", "publish", event}, {"privacy", "apply", event}, {"tap", "privacy-events"}, {"quarantine", "show", "1", "--payload"}} {
		if r := must(t, exitError, append(args, "--config", gone)...); r.out != "" {
			t.Errorf("%v without an audit printed %q", args, r.out)
		}
	}
}
