package load

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidemark/tidemark/topology"
)

func writeLog(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func readAll(t *testing.T, c Replay, text string) ([]*command, []time.Duration, *replayer, error) {
	t.Helper()
	r, err := newReplayer(c, 0, strings.NewReader(text))
	if err != nil {
		return nil, nil, nil, err
	}
	var commands []*command
	var due []time.Duration
	for {
		cmd, at, err := r.next()
		if errors.Is(err, io.EOF) {
			return commands, due, r, nil
		}
		if err != nil {
			return commands, due, r, err
		}
		commands, due = append(commands, cmd), append(due, at)
	}
}

func TestReplayCSV(t *testing.T) {
	text := "\ufeffkind,extra,time,state,user,target\r\n" +
		"like,x,2026-01-02T03:04:05Z,LIKED,u1,V1\r\n" +
		"favorite,,2026-01-02T03:04:06.5Z,FAVORITED,u 2,\"V,\"\"2\"\"\"\n" +
		"\n" +
		"follow,,1767323048,FOLLOWING,u1,u2\n" +
		"like,,1767323047000,UNLIKED,u1,V1" // back in time, no line end
	commands, due, r, err := readAll(t, Replay{Path: "log.CSV", Speed: 2}, text)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for i, c := range commands {
		got = append(got, fmt.Sprintf("%d %s %v %v", c.number, c.relation.Key(), c.desired, due[i]))
	}
	want := []string{
		"1 like:u1:V1 LIKED 0s",
		`2 favorite:u 2:V,"2" FAVORITED 750ms`,
		"3 follow:u1:u2 FOLLOWING 1.5s",
		"4 like:u1:V1 UNLIKED 1.5s",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if r.report.Lines != 6 || r.report.Commands != 4 || r.report.BadLines != 0 || r.report.Backwards != 1 {
		t.Errorf("report %+v", r.report)
	}
}

func TestReplayJSONL(t *testing.T) {
	text := `{"time":"2026-01-02T03:04:05Z","user":"u1","kind":"like","target":"V1","state":"DISLIKED","more":[1,2]}
{"time":1767323046.25,"user":7,"kind":"like","target":9001,"state":"LIKED"}
`
	commands, due, _, err := readAll(t, Replay{Path: "log.ndjson", Speed: 1}, text)
	if err != nil || len(commands) != 2 {
		t.Fatalf("%d commands, %v", len(commands), err)
	}
	if commands[0].desired != topology.Disliked || commands[1].relation.Key() != "like:7:9001" || due[1] != 1250*time.Millisecond {
		t.Errorf("%+v, %+v, due %v", commands[0], commands[1], due)
	}
}

func TestReplayBadLines(t *testing.T) {
	for name, c := range map[string]struct{ path, line, reason string }{
		"time":            {"l.csv", "yesterday,u,like,V,LIKED", `time "yesterday"`},
		"no time":         {"l.csv", ",u,like,V,LIKED", "time"},
		"infinite time":   {"l.csv", "1e400,u,like,V,LIKED", "time"},
		"kind":            {"l.csv", "1,u,share,V,LIKED", `kind "share"`},
		"state":           {"l.csv", "1,u,like,V,ON", `state "ON"`},
		"foreign state":   {"l.csv", "1,u,follow,V,LIKED", `state "LIKED" is not a state of a follow`},
		"no user":         {"l.csv", "1,,like,V,LIKED", "user id is empty"},
		"long target":     {"l.csv", "1,u,like," + strings.Repeat("V", 257) + ",LIKED", "target id is longer"},
		"control":         {"l.csv", "1,u,like,\"V\x01\",LIKED", "target id has a control character"},
		"not UTF-8":       {"l.csv", "1,u\xff,like,V,LIKED", "user id is not UTF-8"},
		"few fields":      {"l.csv", "1,u,like,V", "4 fields, the header 5"},
		"many fields":     {"l.csv", "1,u,like,V,LIKED,x", "6 fields, the header 5"},
		"open quote":      {"l.csv", `1,"u,like,V,LIKED`, "column"},
		"long line":       {"l.csv", "1,u,like," + strings.Repeat("V", 200_000) + ",LIKED", "longer than 65536 bytes"},
		"not JSON":        {"l.jsonl", "1,u,like,V,LIKED", "not a JSON object"},
		"object in field": {"l.jsonl", `{"time":1,"user":{},"kind":"like","target":"V","state":"LIKED"}`, "not a JSON object of strings and numbers"},
		"two objects":     {"l.jsonl", `{"time":1}{}`, "not a JSON object"},
		"field missing":   {"l.jsonl", `{"time":1,"user":"u","kind":"like","state":"LIKED"}`, "target id is empty"},
	} {
		t.Run(name, func(t *testing.T) {
			first, good := "time,user,kind,target,state\n", "1,u,like,V,LIKED\n"
			line := int64(3)
			if strings.HasSuffix(c.path, ".jsonl") {
				first, good, line = "", `{"time":1,"user":"u","kind":"like","target":"V","state":"LIKED"}`+"\n", 2
			}
			var told []BadLine
			commands, _, r, err := readAll(t, Replay{Path: c.path, OnBadLine: func(b BadLine) { told = append(told, b) }}, first+good+c.line+"\n"+good)
			if err != nil || len(commands) != 2 {
				t.Fatalf("%d commands, %v", len(commands), err)
			}
			if len(told) != 1 || told[0].Number != line || !strings.Contains(told[0].Reason, c.reason) || len(told[0].Reason) > 300 {
				t.Errorf("told %+v, want line %d: %s", told, line, c.reason)
			}
			if r.report.BadLines != 1 || !slices.Equal(r.report.Bad, told) {
				t.Errorf("report %+v", r.report)
			}
		})
	}
}

func TestReplayEndsAfterTooManyBadLines(t *testing.T) {
	text := "time,user,kind,target,state\n" + strings.Repeat("x\n", 3) + "1,u,like,V,LIKED\n"
	if _, _, _, err := readAll(t, Replay{Path: "l.csv", BadLines: 3}, text); err != nil {
		t.Errorf("3 bad lines of 3: %v", err)
	}
	for _, limit := range []int{2, -1} {
		_, _, _, err := readAll(t, Replay{Path: "l.csv", BadLines: limit}, text)
		if err == nil || !strings.Contains(err.Error(), "line ") || !strings.Contains(err.Error(), "l.csv") {
			t.Errorf("limit %d: %v", limit, err)
		}
	}
}

func TestReplayHeader(t *testing.T) {
	for header, reason := range map[string]string{
		"":                                   "EOF",
		"time,user,kind,target\n":            "column state is missing",
		"time,user,kind,target,state,User\n": "column user is there twice",
		strings.Repeat("x", 100_000):         "longer than",
	} {
		_, _, _, err := readAll(t, Replay{Path: "l.csv"}, header)
		if err == nil || !strings.Contains(err.Error(), reason) {
			t.Errorf("header %.30q: %v, want %s", header, err, reason)
		}
	}
}

func TestParseTime(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for s, want := range map[string]time.Time{
		"2026-01-02T03:04:05Z":           at,
		"2026-01-02T04:04:05+01:00":      at,
		"2026-01-02T03:04:05.000000001Z": at.Add(1),
		"1767323045":                     at,
		"1767323045.5":                   at.Add(time.Second / 2),
		"1767323045000":                  at,
		"1767323045000000":               at,
		"1767323045000000000":            at,
		"0":                              time.Unix(0, 0),
		"-1":                             time.Unix(-1, 0),
	} {
		if got, err := parseTime(s); err != nil || !got.Equal(want) {
			t.Errorf("time %q is %v, %v; want %v", s, got, err, want)
		}
	}
	for _, s := range []string{"", "now", "2026-01-02", "NaN", "Inf", "1e30", "0x10", "99999999999999999999"} {
		if got, err := parseTime(s); err == nil {
			t.Errorf("time %q is %v", s, got)
		}
	}
}

// A replay through the API: the order of each relation is the file's.
func TestReplayKeepsTheOrderOfRelations(t *testing.T) {
	var text strings.Builder
	text.WriteString("time,user,kind,target,state\n")
	want := map[topology.Relation][]topology.State{}
	for i := range 600 {
		r := topology.Relation{Kind: topology.Like, User: fmt.Sprint("u", i%7), Target: fmt.Sprint("V/", i%3)}
		state := []topology.State{topology.Liked, topology.Disliked, topology.Unliked}[i/21%3]
		if h := want[r]; len(h) == 0 || h[len(h)-1] != state {
			want[r] = append(h, state)
		}
		fmt.Fprintf(&text, "%d,%s,like,%s,%s\n", 1000+i/100, r.User, r.Target, state)
	}
	s := newServer(t)
	c := small(s, func(c *Config) {
		c.Commands, c.Workers = 0, 32
		c.Replay = &Replay{Path: writeLog(t, "log.csv", text.String()), Speed: 50}
	})
	r := runLoad(t, c)
	s.check(t)
	expectOutcomes(t, r, 600)
	for relation, states := range want {
		if got := s.made(relation); !slices.Equal(got, states) {
			t.Errorf("%s went %v, want %v", relation.Key(), got, states)
		}
	}
	if r.Workload != "replay" || r.Replay.Commands != 600 || r.Errors() != 0 || r.Duration < 0.1 || r.OfferedRate == 0 {
		t.Errorf("report %+v", r)
	}
}

func TestReplayFlatOutAndLimited(t *testing.T) {
	s := newServer(t)
	text := strings.Repeat(`{"time":1,"user":"u","kind":"like","target":"V","state":"LIKED"}`+"\n", 100)
	r := runLoad(t, small(s, func(c *Config) {
		c.Commands = 30
		c.Replay = &Replay{Path: writeLog(t, "log.jsonl", text)}
	}))
	expectOutcomes(t, r, 30)
	if r.OfferedRate != 0 || r.Outcomes[Applied] != 1 || r.Outcomes[NoOp] != 29 {
		t.Errorf("report %+v", r)
	}
	l, err := New(small(s, func(c *Config) { c.Replay = &Replay{Path: "/nonexistent/log.csv"} }))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Run(t.Context()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
}

// endless is a log without an end.
type endless struct{ line, rest string }

func (e *endless) Read(p []byte) (int, error) {
	if e.rest == "" {
		e.rest = strings.Repeat(e.line, 1000)
	}
	n := copy(p, e.rest)
	e.rest = e.rest[n:]
	return n, nil
}

// Reading needs the memory of a line, however long the file is.
func TestReplayStreams(t *testing.T) {
	r, err := newReplayer(Replay{Path: "l.csv", BadLines: 1 << 30}, 0, io.MultiReader(
		strings.NewReader("time,user,kind,target,state\n"),
		&endless{line: "1,u,like,V,LIKED\nbad\n"},
	))
	if err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for range 200_000 {
		if _, _, err := r.next(); err != nil {
			t.Fatal(err)
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 1<<20 {
		t.Errorf("the heap grew by %d bytes over 400,000 lines", grown)
	}
	if len(r.report.Bad) != keptBadLines || r.report.BadLines < 199_000 {
		t.Errorf("%d bad lines, %d kept", r.report.BadLines, len(r.report.Bad))
	}
}

func FuzzReplayLine(f *testing.F) {
	f.Add("1,u,like,V,LIKED", true)
	f.Add(`1,"u""",like,V,LIKED`, true)
	f.Add(`{"time":1,"user":"u","kind":"like","target":"V","state":"LIKED"}`, false)
	parseCSV, err := csvParser([]byte("time,user,kind,target,state"))
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, line string, isCSV bool) {
		parse := parseJSONLine
		if isCSV {
			parse = parseCSV
		}
		e, err := parse([]byte(line))
		if err != nil {
			return
		}
		if e.relation.Check() != nil || e.state.Kind() != e.relation.Kind {
			t.Errorf("line %q is read as %+v", line, e)
		}
	})
}

func TestParseProcessorTime(t *testing.T) {
	a, ok := parseProcessorTime([]byte("cpu  100 0 50 800 50 0 0 0 0 0\ncpu0 1 1 1 1\n"))
	b, ok2 := parseProcessorTime([]byte("cpu  190 0 60 850 50 0 0 0 70 0\n"))
	if !ok || !ok2 || b.since(a) != 100.0/150 {
		t.Errorf("busy %v", b.since(a))
	}
	if a.since(a) != -1 {
		t.Error("no time has passed, and a share is given")
	}
	for _, s := range []string{"", "cpu", "cpu a b c d e f", "intr 1 2 3 4 5 6"} {
		if _, ok := parseProcessorTime([]byte(s)); ok {
			t.Errorf("%q passes", s)
		}
	}
}

func TestLimitedBy(t *testing.T) {
	base := Report{Workers: 10, Duration: 10, OfferedRate: 1000, MissedRate: 500}
	base.Late.P99 = 1000
	with := func(change func(*Report)) Report { r := base; change(&r); return r }
	for _, c := range []struct {
		name   string
		r      Report
		b      blocked
		waited time.Duration
		want   string
	}{
		{"met", with(func(r *Report) { r.MissedRate = 0 }), blocked{}, 0, "nothing"},
		{"hardly late", with(func(r *Report) { r.Late.P99 = 10 }), blocked{}, 0, "nothing"},
		{"flat out", with(func(r *Report) { r.OfferedRate, r.MissedRate = 0, 0 }), blocked{workers: 9 * time.Second}, 0, "workers: 10"},
		{"processor", with(func(r *Report) { r.Machine.CPUBusy = 0.95 }), blocked{}, 90 * time.Second, "processor"},
		{"server", base, blocked{}, 50 * time.Second, "server"},
		{"relations", base, blocked{order: 5 * time.Second, workers: time.Second}, 0, "relations"},
		{"workers", base, blocked{order: time.Second, workers: 5 * time.Second}, 0, "workers"},
	} {
		if got := c.r.limit(c.b, c.waited); !strings.HasPrefix(got, c.want) {
			t.Errorf("%s: limited by %s", c.name, got)
		}
	}
}
