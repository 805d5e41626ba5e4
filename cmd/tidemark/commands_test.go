package main

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tidemark/tidemark/emitters/load"
	"github.com/tidemark/tidemark/internal/config"
	"github.com/tidemark/tidemark/internal/kafkaadmin"
	"github.com/tidemark/tidemark/internal/verify"
)

func TestToken(t *testing.T) {
	s := theSystem(t)
	var minted struct{ User, Token string }
	r := must(t, exitOK, s.at("token", "--user", "用户 7", "--role", "operator", "--ttl", "5m", "--output", "json")...)
	mustJSON(t, r.out, &minted)
	payload, err := base64.RawURLEncoding.DecodeString(strings.Split(minted.Token, ".")[1])
	if err != nil {
		t.Fatal(err)
	}
	var claims struct {
		Sub   string
		Roles []string
		Iat   int64
		Exp   int64
	}
	mustJSON(t, string(payload), &claims)
	if minted.User != "用户 7" || claims.Sub != minted.User || !slices.Equal(claims.Roles, []string{"operator"}) || claims.Exp-claims.Iat != 300 {
		t.Errorf("%+v", claims)
	}
	issuer := s.changedConfig(t, func(c *config.Config) { c.Auth = config.Auth{JWKSURL: "https://issuer.example/keys"} })
	if r := must(t, exitError, "token", "--user", "u", "--config", issuer); !strings.Contains(r.errOut, "tokens come from the issuer behind that URL") {
		t.Error(r)
	}
	none := s.changedConfig(t, func(c *config.Config) { c.Auth = config.Auth{} })
	if r := must(t, exitError, "token", "--user", "u", "--config", none); !strings.Contains(r.errOut, "auth.hs256_key_file is not set: set it in the configuration file, or TIDEMARK_AUTH_HS256_KEY_FILE") {
		t.Error(r)
	}
}

// changedConfig writes the system's configuration with a change and returns
// the file.
func (s *system) changedConfig(t testing.TB, change func(*config.Config)) string {
	t.Helper()
	cfg := s.config(t)
	change(&cfg)
	file := filepath.Join(t.TempDir(), config.FileName)
	if err := cfg.Write(file); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestLoad(t *testing.T) {
	s := theSystem(t)
	var report load.Report
	r := must(t, exitOK, s.at("load", "--commands", "500", "--rate", "0", "--users", "100", "--targets", "50", "--read-rate", "50", "--output", "json")...)
	mustJSON(t, r.out, &report)
	if report.Decided != 500 || report.Errors() != 0 || !strings.Contains(r.errOut, "load: ") {
		t.Error(r)
	}
	if r := must(t, exitUsage, s.at("load", "--rate", "-1")...); !strings.Contains(r.errOut, "rate is -1") || r.out != "" {
		t.Error(r)
	}
	if r := must(t, exitUsage, s.at("load", "--url", "nowhere")...); r.out != "" {
		t.Error(r)
	}
	if r := must(t, exitError, s.at("load", "--url", "http://127.0.0.1:1")...); !strings.Contains(r.errOut, "connection refused") || !strings.Contains(r.errOut, "tidemark doctor") || r.out != "" {
		t.Error(r)
	}
	wantVerdict(t, exitOK, s.at()...)
}

func TestReplay(t *testing.T) {
	s := theSystem(t)
	home := t.TempDir()
	write := func(name, content string) string {
		file := filepath.Join(home, name)
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	csv := write("log.csv", "user,kind,target,state,time,note\n"+
		"r1,like,replayed,LIKED,2026-08-19T10:20:30Z,\n"+
		"r2,like,replayed,LIKED,2026-08-19T10:20:31Z,\"a, b\"\n"+
		"r3,like,replayed,LOVED,2026-08-19T10:20:32Z,\n"+
		"r3,like\n"+
		"r2,like,replayed,UNLIKED,2026-08-19T10:20:40Z,\n")
	jsonl := write("log.jsonl", `{"time":1787134830,"user":"r4","kind":"like","target":"replayed","state":"LIKED"}`+"\n"+
		"nonsense\n\n"+
		`{"time":"2026-08-19T10:20:31Z","user":"r4","kind":"favorite","target":"replayed","state":"FAVORITED"}`+"\n")
	for file, want := range map[string]load.ReplayReport{
		csv:   {Lines: 6, Commands: 3, BadLines: 2},
		jsonl: {Lines: 4, Commands: 2, BadLines: 1},
	} {
		var report load.Report
		r := must(t, exitOK, s.at("load", "--replay", file, "--speed", "20", "--output", "json")...)
		mustJSON(t, r.out, &report)
		if got := report.Replay; got.Lines != want.Lines || got.Commands != want.Commands || got.BadLines != want.BadLines || report.Errors() != 0 {
			t.Errorf("%s: %+v", file, got)
		}
		for _, b := range report.Replay.Bad {
			if b.Number == 0 || b.Reason == "" {
				t.Errorf("%s: %+v", file, b)
			}
		}
	}
	newClient(t, s.endpoints(t).API, "r1", s.at()...).awaitCount("replayed", 2)
	for name, test := range map[string]struct {
		args []string
		code int
		want string
	}{
		"bad lines not allowed": {[]string{"--replay", csv, "--speed", "0", "--bad-lines", "1"}, exitError, "2 lines cannot be used, the last is line 5"},
		"no bad line allowed":   {[]string{"--replay", jsonl, "--speed", "0", "--bad-lines", "0"}, exitError, "1 lines cannot be used, the last is line 2"},
		"no header":             {[]string{"--replay", write("headless.csv", "r1,like,replayed,LIKED,1\n")}, exitError, "column time is missing"},
		"no file":               {[]string{"--replay", filepath.Join(home, "none.csv")}, exitError, "none.csv: no such file"},
		"unknown form":          {[]string{"--replay", filepath.Join(home, "log.txt")}, exitUsage, "does not end in .csv"},
		"backwards":             {[]string{"--replay", csv, "--speed", "-1"}, exitUsage, "speed -1"},
	} {
		if r := must(t, test.code, s.at(append([]string{"load"}, test.args...)...)...); !strings.Contains(r.errOut, test.want) {
			t.Errorf("%s: want %q\n%v", name, test.want, r)
		}
	}
	wantVerdict(t, exitOK, s.at()...)
}

// ofStream is what every line of a tap has.
type ofStream struct {
	Partition int32
	Offset    int64
	Time      time.Time
	Key       string
	Value     json.RawMessage
	Error     string
}

func tapLines(t testing.TB, out string) (lines []ofStream) {
	t.Helper()
	for line := range strings.Lines(out) {
		var l ofStream
		mustJSON(t, line, &l)
		lines = append(lines, l)
	}
	return lines
}

// Every stream decodes, from the beginning and by its topic's name.
func TestTapDecodesEveryStream(t *testing.T) {
	s := theSystem(t)
	c := newClient(t, s.endpoints(t).API, "tapper", s.at()...)
	c.like("tapped", "tap-1")
	c.awaitCount("tapped", 1)
	s.setAside(t)
	event := filepath.Join(t.TempDir(), "event.jsonl")
	if err := os.WriteFile(event, []byte(`{"type":"block","blockerId":"tapper","blockedId":"tapped","version":1,"active":false}`), 0o600); err != nil {
		t.Fatal(err)
	}
	must(t, exitOK, s.at("privacy", "publish", event)...)
	for _, name := range streamNames() {
		r := must(t, exitOK, s.at("tap", name)...)
		lines := tapLines(t, r.out)
		if len(lines) == 0 || r.errOut != "" {
			t.Errorf("%s: %d lines, stderr %s", name, len(lines), r.errOut)
		}
		for _, l := range lines {
			bad := name == "cdc" && l.Key == "broken" // what setAside wrote
			if l.Time.IsZero() || l.Key == "" || bad != (l.Error != "") || bad != (string(l.Value) == "null") {
				t.Fatalf("%s: %+v", name, l)
			}
		}
	}
	topic := s.config(t).Prefix + ".quarantine"
	if r := must(t, exitOK, s.at("tap", topic)...); len(tapLines(t, r.out)) != 1 {
		t.Errorf("by the topic's name: %v", r)
	}
}

// setAside writes a record that nobody can use to cdc, and waits until it is
// in quarantine.
func (s *system) setAside(t testing.TB) {
	t.Helper()
	client, err := kafkaadmin.Client(s.config(t).Kafka.Brokers, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	record := &kgo.Record{Topic: s.config(t).Prefix + ".cdc", Key: []byte("broken"), Value: []byte("no envelope")}
	if err := client.ProduceSync(t.Context(), record).FirstErr(); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		if r := must(t, exitOK, s.at("tap", "quarantine")...); !strings.Contains(r.out, `"key":"broken"`) {
			return fmt.Errorf("not in quarantine: %s", clip(r.out))
		}
		return nil
	})
}

func TestTapFromAndFollow(t *testing.T) {
	s := theSystem(t)
	c := newClient(t, s.endpoints(t).API, "follower", s.at()...)
	c.like("followed-0", "follow-0")
	c.awaitCount("followed-0", 1)
	lines := tapLines(t, must(t, exitOK, s.at("tap", "facts")...).out)
	last := slices.MaxFunc(lines, func(a, b ofStream) int { return a.Time.Compare(b.Time) })

	from := tapLines(t, must(t, exitOK, s.at("tap", "facts", "--from", last.Time.Format(time.RFC3339Nano))...).out)
	if len(from) == 0 || len(from) >= len(lines) || from[0].Time.Before(last.Time.Truncate(time.Millisecond)) {
		t.Errorf("from %v: %d of %d lines, %+v", last.Time, len(from), len(lines), from)
	}
	for _, begin := range []string{"latest", time.Now().Add(time.Hour).UTC().Format(time.RFC3339)} {
		if r := must(t, exitOK, s.at("tap", "facts", "--from", begin)...); r.out != "" {
			t.Errorf("from %s: %s", begin, clip(r.out))
		}
	}

	follow := run(t, s.at("tap", "facts", "--from", "latest", "--follow")...)
	eventually(t, func() error { // it may have begun after the first likes
		c.like(fmt.Sprintf("followed-%d", time.Now().UnixNano()), fmt.Sprintf("follow-%d", time.Now().UnixNano()))
		if !strings.Contains(follow.out.String(), "followed-") {
			return fmt.Errorf("it prints %q", follow.out.String())
		}
		return nil
	})
	if err := follow.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	<-follow.ended
	if code := follow.cmd.ProcessState.ExitCode(); code != exitOK || follow.errOut.String() != "" {
		t.Errorf("Ctrl-C: exit %d, %s", code, follow.errOut.String())
	}
	tapLines(t, follow.out.String()) // whole lines only
}

// Each way to make a fact wrong behind the system's back is found and named.
func TestVerifyFindsWhatIsWrong(t *testing.T) {
	s := theSystem(t)
	for _, user := range []string{"deleted", "changed", "copied"} {
		newClient(t, s.endpoints(t).API, user, s.at()...).like("watched-"+user, "watch-"+user)
	}
	newClient(t, s.endpoints(t).API, "copied", s.at()...).awaitCount("watched-copied", 1)
	undo := s.tamper(t,
		`DELETE FROM relation WHERE user_id = 'deleted'`,
		`UPDATE relation SET state = 3 WHERE user_id = 'changed'`,
		`INSERT INTO relation SELECT 'ghost', kind, target_id, state, version, state_changed_at, last_operation_id, created_at, updated_at FROM relation WHERE user_id = 'copied'`)
	report := wantVerdict(t, exitDifferent, s.at()...)
	for _, user := range []string{"deleted", "changed", "ghost"} {
		if !slices.ContainsFunc(report.Differences, func(d verify.Difference) bool { return d.User == user && d.Reason != "" }) {
			t.Errorf("nothing about user %s in %+v", user, report.Differences)
		}
	}
	if r := must(t, exitDifferent, s.at("verify")...); !strings.Contains(r.out, "watched-deleted") || !strings.Contains(r.out, "verdict: different") || strings.Contains(r.errOut, "tidemark:") {
		t.Error(r)
	}
	undo()
	wantVerdict(t, exitOK, s.at()...)
}

// tamper runs statements on every shard and returns what undoes them.
func (s *system) tamper(t testing.TB, statements ...string) (undo func()) {
	t.Helper()
	var conns []*pgx.Conn
	exec := func(conn *pgx.Conn, statement string) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	for _, url := range s.config(t).Postgres {
		conn, err := pgx.Connect(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, conn)
		exec(conn, "CREATE TEMP TABLE kept AS TABLE relation")
		for _, statement := range statements {
			exec(conn, statement)
		}
	}
	return func() {
		for _, conn := range conns {
			exec(conn, "DELETE FROM relation")
			exec(conn, "INSERT INTO relation TABLE kept")
			_ = conn.Close(t.Context())
		}
	}
}

func TestTopologyCheckAndCreate(t *testing.T) {
	s := theSystem(t)
	var diffs []kafkaadmin.Difference
	mustJSON(t, must(t, exitOK, s.at("topology", "check", "--output", "json")...).out, &diffs)
	if diffs == nil || len(diffs) > 0 {
		t.Errorf("%+v", diffs)
	}
	client, err := kafkaadmin.Client(s.config(t).Kafka.Brokers, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	topic := s.config(t).Prefix + ".quarantine"
	set := func(value string) {
		t.Helper()
		_, err := kadm.NewClient(client).AlterTopicConfigs(t.Context(), []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "retention.ms", Value: &value}}, topic)
		if err != nil {
			t.Fatal(err)
		}
	}
	set("1000")
	defer set(fmt.Sprint(s.config(t).Retention.Milliseconds()))
	mustJSON(t, must(t, exitDifferent, s.at("topology", "check", "--output", "json")...).out, &diffs)
	if len(diffs) != 1 || diffs[0].Topic != topic || diffs[0].Field != "retention.ms" || diffs[0].Have != "1000" {
		t.Errorf("%+v", diffs)
	}
	if r := must(t, exitDifferent, s.at("topology", "check")...); !strings.Contains(r.out, topic+" has retention.ms 1000") || r.errOut != "" {
		t.Error(r)
	}
	if r := must(t, exitError, s.at("topology", "create")...); !strings.Contains(r.errOut, topic+" has retention.ms 1000") {
		t.Error(r)
	}
	if r := must(t, exitDifferent, s.at("doctor")...); !strings.Contains(r.out, topic+" has retention.ms 1000") {
		t.Error(r)
	}
	var topo struct{ Shards int }
	mustJSON(t, must(t, exitOK, s.at("topology", "print", "--output", "json")...).out, &topo)
	if topo.Shards != 2 {
		t.Errorf("the configuration's topology has %d shards", topo.Shards)
	}
}

// An unmigrated deployment is seen, migrated, and seen to be.
func TestSchema(t *testing.T) {
	s := theSystem(t)
	var all []databaseStatus
	mustJSON(t, must(t, exitOK, s.at("schema", "status", "--output", "json")...).out, &all)
	if len(all) != 3 || !all[0].Migrations[0].Applied {
		t.Errorf("%+v", all)
	}
	admin, err := pgx.Connect(t.Context(), s.endpoints(t).Control)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = admin.Close(context.WithoutCancel(t.Context())) }()
	for _, name := range []string{"other_control", "other_shard"} {
		if _, err := admin.Exec(t.Context(), "CREATE DATABASE "+name); err != nil {
			t.Fatal(err)
		}
	}
	defer func() {
		for _, q := range []string{"SELECT pg_drop_replication_slot('other_shard_0')", "DROP DATABASE other_control WITH (FORCE)", "DROP DATABASE other_shard WITH (FORCE)"} {
			if _, err := admin.Exec(t.Context(), q); err != nil {
				t.Error(err)
			}
		}
	}()
	other := s.changedConfig(t, func(c *config.Config) {
		c.Control = strings.Replace(c.Control, "/tidemark_control", "/other_control", 1)
		c.Postgres = []string{strings.Replace(c.Postgres[0], "/tidemark_shard_0", "/other_shard", 1)}
		c.Shards, c.Prefix = 1, "other"
	})
	mustJSON(t, must(t, exitDifferent, "schema", "status", "--config", other, "--output", "json").out, &all)
	if len(all) != 2 || all[1].Migrations[0].Applied {
		t.Errorf("%+v", all)
	}
	if r := must(t, exitError, "verify", "--config", other); !strings.Contains(r.errOut, "`tidemark schema migrate`") {
		t.Error(r)
	}
	if r := must(t, exitDifferent, "doctor", "--config", other); !strings.Contains(r.out, "is not applied") || !strings.Contains(r.out, "do: `tidemark topology create`") {
		t.Error(r)
	}
	for range 2 {
		if r := must(t, exitOK, "schema", "migrate", "--config", other); r.out != "" || !strings.Contains(r.errOut, "migrating relation shard 0") {
			t.Error(r)
		}
	}
	if r := must(t, exitOK, "schema", "status", "--config", other); strings.Contains(r.out, "no: run") {
		t.Error(r)
	}
	wrong := s.changedConfig(t, func(c *config.Config) { c.CountPartitions = 2 })
	if r := must(t, exitError, "schema", "migrate", "--config", wrong); !strings.Contains(r.errOut, "count partitions is configured as 2") {
		t.Error(r)
	}
}

func TestDoctorFindsAllWell(t *testing.T) {
	s := theSystem(t)
	var found []finding
	r := must(t, exitOK, s.at("doctor", "--output", "json")...)
	mustJSON(t, r.out, &found)
	for _, f := range found {
		if f.State != "ok" && f.Check != "leftover" {
			t.Errorf("%+v", f)
		}
	}
	if len(found) < 12 || r.errOut != "" {
		t.Error(r)
	}
	// Broken parts, each named with what to do.
	gone := s.changedConfig(t, func(c *config.Config) {
		c.Postgres[1] = strings.Replace(c.Postgres[1], "tidemark_shard_1", "nowhere", 1)
		c.Kafka.Brokers = []string{"127.0.0.1:1"}
		c.Redis = "redis://127.0.0.1:1"
	})
	r = must(t, exitDifferent, "doctor", "--config", gone)
	for _, want := range []string{"bad      relation shard 1", "nowhere", "bad      Kafka", "warning  Redis", "do: check that a broker runs there", "counts stay right without it"} {
		if !strings.Contains(r.out, want) {
			t.Errorf("no %q in\n%s", want, r.out)
		}
	}
	if r.errOut != "" || strings.Contains(r.out, s.password(t)) {
		t.Errorf("stderr %s; or the password is on stdout", r.errOut)
	}
}

// password is that of the embedded PostgreSQL.
func (s *system) password(t testing.TB) string {
	t.Helper()
	u, err := pgx.ParseConfig(s.endpoints(t).Control)
	if err != nil {
		t.Fatal(err)
	}
	return u.Password
}

// A large stream passes through a tap in bounded memory: 60,000 records of
// 4 KB are 240 MB.
func TestTapInBoundedMemory(t *testing.T) {
	s := theSystem(t)
	client, err := kafkaadmin.Client(s.config(t).Kafka.Brokers, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	const records = 60_000
	topic := s.config(t).Prefix + ".quarantine" // nobody else reads it
	random := rand.NewChaCha8([32]byte{})
	for range records {
		noise := make([]byte, 3000) // that does not shrink on its way
		_, _ = random.Read(noise)   // never fails
		value := []byte(`"` + base64.StdEncoding.EncodeToString(noise) + `"`)
		client.Produce(t.Context(), &kgo.Record{Topic: topic, Key: []byte("bulk"), Value: value}, nil)
	}
	if err := client.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	cmd := program(t.Context(), s.at("tap", "quarantine")...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := 0
	for scan := bufio.NewScanner(out); scan.Scan(); {
		lines++
	}
	if err := cmd.Wait(); err != nil || lines < records {
		t.Errorf("%d lines, %v", lines, err)
	}
	usage, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage)
	if !ok {
		t.Skip("this system does not tell a child's memory")
	}
	const limit = 140 << 10 // KiB on Linux
	t.Logf("%d lines in %v, at most %d MiB", lines, since(begun), usage.Maxrss>>10)
	if usage.Maxrss > limit {
		t.Errorf("the tap used %d KiB, over %d", usage.Maxrss, limit)
	}
}
