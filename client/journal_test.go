package client

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func op(id string, s State) *operation {
	return &operation{ID: id, Desired: s, At: time.Date(2026, 8, 19, 10, 20, 30, 0, time.UTC)}
}

// Cut or changed at any byte, a journal has the records before that byte.
func TestJournalTorn(t *testing.T) {
	d := &memDisk{}
	j, _, err := openJournal(d, "u7", 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	var ends []int
	for i, s := range []State{Liked, Unliked, Disliked} {
		ends = append(ends, len(d.synced))
		if err := j.append(Like("V9001"), queue{flight: op(strings.Repeat("x", i), s)}); err != nil {
			t.Fatal(err)
		}
	}
	whole := bytes.Clone(d.synced)
	last := func(data []byte) State {
		queues, _, err := readJournal(data, "u7")
		if err != nil {
			t.Fatalf("%q: %v", data, err)
		}
		if q := queues[Like("V9001")]; q.flight != nil {
			return q.flight.Desired
		}
		return ""
	}
	states := []State{"", Liked, Unliked}
	for i, want := range states {
		end := len(whole)
		if i+1 < len(ends) {
			end = ends[i+1]
		}
		for at := ends[i]; at < end; at++ {
			changed := bytes.Clone(whole)
			changed[at] ^= 0x20
			if got := last(whole[:at]); got != want {
				t.Errorf("cut at byte %d: %q, want %q", at, got, want)
			}
			if got := last(changed); got != want {
				t.Errorf("byte %d changed: %q, want %q", at, got, want)
			}
		}
	}
}

// A record behind a torn one must not become readable again when a later
// record takes the torn one's place to the byte.
func TestJournalNeverReadsPastTheTornPart(t *testing.T) {
	d := &memDisk{}
	j, _, err := openJournal(d, "u7", 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"first", "ghost"} {
		if err := j.append(Like("V9001"), queue{flight: op(id, Liked)}); err != nil {
			t.Fatal(err)
		}
	}
	lines := bytes.SplitAfter(d.synced, []byte("\n"))
	lines[1][12] ^= 1
	torn := bytes.Join(lines, nil)
	d = &memDisk{synced: torn, unsure: bytes.Clone(torn)}
	if j, _, err = openJournal(d, "u7", 1<<20); err != nil {
		t.Fatal(err)
	}
	if err := j.append(Like("V9001"), queue{flight: op("newer", Liked)}); err != nil {
		t.Fatal(err)
	}
	queues, _, err := readJournal(d.synced, "u7")
	if err != nil || queues[Like("V9001")].flight.ID != "newer" {
		t.Errorf("%v, error %v", queues[Like("V9001")].flight, err)
	}
}

func TestJournalRefusals(t *testing.T) {
	path := filepath.Join(t.TempDir(), "app", "likes.journal")
	s := newServer()
	c := s.config()
	c.Journal = path
	first, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the journal's mode is %v, error %v", info.Mode(), err)
	}
	if _, err := Open(c); !errors.Is(err, ErrJournal) || !strings.Contains(err.Error(), "another client has it open") {
		t.Errorf("a second client: %v", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	other := c
	other.User = "u8"
	if _, err := Open(other); !errors.Is(err, ErrJournal) || !strings.Contains(err.Error(), "another user") {
		t.Errorf("another user: %v", err)
	}
	for name, text := range map[string]string{
		"notes":        strings.Repeat("buy milk\n", 20),
		"later format": string(line(header{journalFormat + 1, "u7"})),
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(c); !errors.Is(err, ErrJournal) {
			t.Errorf("%s: %v", name, err)
		}
		if now, err := os.ReadFile(path); err != nil || string(now) != text {
			t.Errorf("%s: the file was changed", name)
		}
	}
}

// A journal does not grow with the number of clicks.
func TestJournalIsCompacted(t *testing.T) {
	d := &memDisk{fail: map[int]bool{}}
	j, _, err := openJournal(d, "u7", 4000)
	if err != nil {
		t.Fatal(err)
	}
	live := map[Relation]queue{}
	compactions := 0
	for i := range 2000 {
		r := Like(string(rune('a' + i%5)))
		live[r] = queue{flight: op(strings.Repeat("i", i%36), Liked)}
		if err := j.append(r, live[r]); err != nil {
			t.Fatal(err)
		}
		if j.long() {
			compactions++
			d.fail[d.writes+1] = compactions%3 == 0
			if err := j.compact(live); (err != nil) != (compactions%3 == 0) {
				t.Fatal(err)
			}
		}
		if j.size > 50_000 {
			t.Fatalf("the journal has %d bytes for %d relations", j.size, len(live))
		}
	}
	queues, _, err := readJournal(d.synced, "u7")
	if err != nil || compactions < 10 {
		t.Fatalf("%d compactions, error %v", compactions, err)
	}
	for r, q := range live {
		if queues[r].flight == nil || queues[r].flight.ID != q.flight.ID {
			t.Errorf("%v: %+v, want %+v", r, queues[r].flight, q.flight)
		}
	}
}
