package main

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// Wrong calls exit 2, say what is wrong and where to read on, print nothing on
// stdout, and start nothing.
func TestWrongCalls(t *testing.T) {
	dir := t.TempDir()
	at := func(args ...string) []string { return append(args, "--data-dir", filepath.Join(dir, "none")) }
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"nonsense"}, `no command "nonsense"`},
		{[]string{"verfy"}, "did you mean verify?"},
		{[]string{"topology", "nonsense"}, `tidemark topology has no command "nonsense"`},
		{[]string{"schema", "nonsense"}, `tidemark schema has no command "nonsense"`},
		{[]string{"help", "nonsense"}, `no command "nonsense"`},
		{[]string{"version", "--nonsense"}, "unknown flag: --nonsense"},
		{[]string{"version", "extra"}, `does not take "extra"`},
		{[]string{"version", "--output", "xml"}, `--output "xml" is not one of text, json`},
		{at("verify", "--output", "xml"), `--output "xml" is not one of table, json`},
		{at("doctor", "--output", "xml"), `--output "xml"`},
		{at("load", "--output", "xml"), `--output "xml"`},
		{at("token", "--output", "xml", "--user", "u"), `--output "xml"`},
		{at("topology", "check", "--output", "xml"), `--output "xml"`},
		{at("schema", "status", "--output", "xml"), `--output "xml"`},
		{[]string{"topology", "print", "--output", "xml"}, `--output "xml" is not one of text, dot, json, asyncapi`},
		{[]string{"demo", "--output", "xml"}, `--output "xml"`},
		{[]string{"demo", "--commands", "0"}, "--commands must be positive"},
		{at("verify", "--deadline", "soon"), `invalid argument "soon"`},
		{at("verify", "--deadline", "0s"), "--deadline 0s is not positive"},
		{[]string{"verify", "--config", "a", "--data-dir", "b"}, "both given: give one"},
		{at("run"), "needs one or more roles of commands, cdc"},
		{at("run", "nonsense"), `role "nonsense" is not one of`},
		{at("run", "cdc", "cdc"), "role cdc is named twice"},
		{[]string{"drill", "nonsense"}, `tidemark drill has no command "nonsense"`},
		{[]string{"drill", "run"}, "needs one or more names"},
		{at("tap"), "needs a STREAM of cdc, "},
		{at("tap", "cdc", "facts"), `does not take "facts"`},
		{at("tap", "nonsense"), `stream "nonsense" is not one of cdc, `},
		{at("tap", "cdc", "--from", "yesterday"), `--from "yesterday" is not earliest, latest or a time`},
		{at("privacy", "apply"), "needs a FILE of events, or -"},
		{at("export", "likers", "--purpose", "p", "--out", "x"), "--target is not given"},
		{at("export", "likers", "--target", "V1", "--out", "x"), "--purpose is not given"},
		{at("export", "likers", "--target", "V1", "--purpose", "p"), "--out is not given"},
		{at("export", "likers", "--target", "V1", "--purpose", " ", "--out", "x"), "purpose is empty"},
		{at("export", "likers", "--target", "V1", "--purpose", "p", "--out", "x", "--format", "xlsx"), `format "xlsx" is not one of`},
		{at("export", "likers", "--target", "V1", "--purpose", "p", "--out", "x", "--kind", "dislike"), `kind "dislike"`},
		{at("export", "likers", "--target", "V1", "--purpose", "p", "--out", "x", "--accounts", "mine"), `accounts "mine"`},
		{at("export", "likers", "--target", "V1", "--purpose", "p", "--out", "x", "--as-of", "yesterday"), `--as-of "yesterday" is not now`},
		{at("export", "likers", "--target", "V1", "--purpose", "p", "--out", "x", "--part-rows", "0"), "--part-rows 0"},
		{[]string{"export", "verify"}, "needs a DIR"},
		{at("token"), "--user is not given"},
		{at("token", "--user", "a\nb"), "control character"},
		{at("token", "--user", "u", "--role", strings.Repeat("r", 300)), "--role"},
		{at("token", "--user", "u", "--ttl", "-1s"), "--ttl -1s is not positive"},
		{at("dev", "--shards", "0"), "shards is 0"},
		{at("dev", "--partitions", "5000"), "partitions"},
		{at("dev", "--roles", "cdc,nonsense"), `role "nonsense"`},
		{at("dev", "--log-level", "loud"), `"loud"`},
		{at("dev", "--listen", "8080"), `"8080" is not host:port`},
		{at("dev", "--ops-listen", "127.0.0.1:99999"), "port is not in"},
		{at("dev", "--traffic", "-1"), "--traffic -1"},
		{at("dev", "--traffic", "5", "--roles", "cdc"), "--traffic needs the roles commands and queries"},
		{at("dev", "--postgres-url", "postgres://h/a"), "--postgres-url and --control-url go together"},
		{at("dev", "--postgres-url", "mysql://h/a", "--control-url", "postgres://h/c"), "not a postgres:// URL"},
		{at("dev", "--postgres-url", "postgres://h/a", "--control-url", "postgres://h/c", "--shards", "2"), "one per shard"},
		{at("dev", "--redis-url", "http://h"), "redis is not a redis://"},
		{[]string{"dev", "--data-dir", ""}, "--data-dir is empty"},
	} {
		t.Run(strings.Join(test.args, " "), func(t *testing.T) {
			t.Parallel()
			r := must(t, exitUsage, test.args...)
			if !strings.Contains(r.errOut, test.want) || !strings.Contains(r.errOut, "--help`.") {
				t.Errorf("stderr %q, want one with %q and where to read on", r.errOut, test.want)
			}
			if r.out != "" {
				t.Errorf("stdout %q", r.out)
			}
			if _, err := os.Stat(filepath.Join(dir, "none")); err == nil {
				t.Error("the data directory was made")
			}
		})
	}
}

// Without a system, commands exit 1 and say how to get one.
func TestNoSystem(t *testing.T) {
	dir := t.TempDir()
	for _, args := range [][]string{
		{"run", "cdc"}, {"verify"}, {"load"}, {"tap", "cdc"}, {"topology", "check"}, {"topology", "create"},
		{"schema", "status"}, {"schema", "migrate"}, {"token", "--user", "u"},
	} {
		t.Run(args[0], func(t *testing.T) {
			t.Parallel()
			r := must(t, exitError, append(args, "--data-dir", dir)...)
			if !strings.Contains(r.errOut, "start `tidemark dev`, which writes it, or name one with --config") || r.out != "" {
				t.Error(r)
			}
		})
	}
	broken := filepath.Join(dir, "broken.yaml")
	if err := os.WriteFile(broken, []byte("shards: 4\nnonsense: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := must(t, exitError, "verify", "--config", broken); !strings.Contains(r.errOut, "nonsense is not a setting") {
		t.Error(r)
	}
	if r := must(t, exitError, "verify", "--config", filepath.Join(dir, "none.yaml")); !strings.Contains(r.errOut, "none.yaml: no such file") {
		t.Error(r)
	}
}

func TestDoctorWithoutSystem(t *testing.T) {
	home := t.TempDir()
	t.Chdir(home)
	r := must(t, exitOK, "doctor", "--output", "json")
	var found []finding
	mustJSON(t, r.out, &found)
	last := found[len(found)-1]
	if last.Check != "configuration" || last.State != "warning" || !strings.Contains(last.Do, "start `tidemark dev`") {
		t.Errorf("%+v", found)
	}
	if r := must(t, exitDifferent, "doctor", "--config", "none.yaml"); !strings.Contains(r.out, "bad") || r.errOut != "" {
		t.Error(r)
	}
}

// mustJSON checks that a text is one JSON value and nothing else.
func mustJSON(t testing.TB, s string, v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(s), v); err != nil {
		t.Fatalf("not JSON alone: %v\n%s", err, clip(s))
	}
}

var update = flag.Bool("update", false, "write the golden files anew")

// Every command's help, as a person reads it: testdata/help has a file per
// command.
func TestHelp(t *testing.T) {
	for _, command := range commandsBelow(newRoot()) {
		r := must(t, exitOK, append([]string{"help"}, strings.Fields(command)...)...)
		if flagged := must(t, exitOK, append(strings.Fields(command), "--help")...); flagged.out != r.out {
			t.Errorf("help %s and %s --help differ:\n%s", command, command, flagged.out)
		}
		golden := filepath.Join("testdata", "help", strings.ReplaceAll(strings.TrimSpace("tidemark "+command), " ", "-")+".txt")
		if *update {
			if err := os.MkdirAll(filepath.Dir(golden), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(golden, []byte(r.out), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if want, err := os.ReadFile(golden); err != nil || r.out != string(want) {
			t.Errorf("the help differs from %s (%v); go test ./cmd/tidemark -run TestHelp -update writes it anew:\n%s", golden, err, r.out)
		}
	}
}

// commandsBelow lists a command and all that a person may call below it.
func commandsBelow(cmd *cobra.Command) []string {
	_, path, _ := strings.Cut(cmd.CommandPath(), " ")
	all := []string{path}
	for _, c := range cmd.Commands() {
		if !c.Hidden && c.Name() != "help" {
			all = append(all, commandsBelow(c)...)
		}
	}
	return all
}

func TestVersionAndTopology(t *testing.T) {
	var v versionInfo
	mustJSON(t, must(t, exitOK, "version", "--output", "json").out, &v)
	if v.Version == "" || v.Go == "" || v.Platform == "" {
		t.Errorf("%+v", v)
	}
	var topo struct{ Streams []struct{ Name string } }
	mustJSON(t, must(t, exitOK, "topology", "print", "--output", "json").out, &topo)
	if len(topo.Streams) == 0 {
		t.Error("no streams")
	}
	for output, begin := range map[string]string{"text": "shards 4", "dot": "digraph tidemark {"} {
		if r := must(t, exitOK, "topology", "print", "--output", output); !strings.HasPrefix(r.out, begin) || r.errOut != "" {
			t.Error(r)
		}
	}
}
