package privacy

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// listening is a memory whose lease has just been proven.
func listening() *memory {
	m := newMemory(1000)
	m.listen([sorts]bool{})
	m.proven(time.Now().Add(time.Hour))
	return m
}

// TestALateFillDoesNotWin: version 1 is read, the deletion is committed and heard
// of, and then the answer with version 1 comes to be remembered.
func TestALateFillDoesNotWin(t *testing.T) {
	m, k := listening(), videoKey("V1")
	late := m.begin([]subjectKey{k, videoKey("V2")})
	m.forget(k)
	m.end(late, []subject{{known: true, video: Public}, {known: true, video: Public}})
	if v, ok := m.current(k); ok {
		t.Errorf("%+v is remembered", v)
	}
	if _, ok := m.current(videoKey("V2")); !ok {
		t.Error("another key of the same read is not remembered")
	}
	after := m.begin([]subjectKey{k})
	m.end(after, []subject{{known: true, video: Deleted}})
	if v, ok := m.current(k); !ok || v.video != Deleted {
		t.Errorf("what was read after it: %+v, %t", v, ok)
	}
	if len(m.reading) != 0 {
		t.Errorf("%d keys are still being read", len(m.reading))
	}
}

// Two reads of one key: what came before the change is not kept by either end.
func TestForgottenWhileTwoRead(t *testing.T) {
	m, k := listening(), videoKey("V1")
	first := m.begin([]subjectKey{k})
	m.forget(k)
	second := m.begin([]subjectKey{k})
	m.end(second, []subject{{known: true, video: Deleted}})
	m.end(first, []subject{{known: true, video: Public}})
	if v, ok := m.current(k); !ok || v.video != Deleted {
		t.Errorf("%+v, %t", v, ok)
	}
}

// What nobody listens for is not current, and stays the last that was known.
func TestNotCurrentWithoutAListener(t *testing.T) {
	m, k := listening(), videoKey("V1")
	m.end(m.begin([]subjectKey{k}), []subject{{known: true, video: Public}})
	across := m.begin([]subjectKey{videoKey("V2")})
	for what, change := range map[string]func(){
		"the lease ended":        func() { m.proven(time.Now().Add(-lease)) },
		"the listener was lost":  func() { m.proven(time.Now()); m.deaf() },
		"another listener began": func() { m.listen([sorts]bool{}); m.proven(time.Now()) },
	} {
		m.proven(time.Now())
		change()
		if _, ok := m.current(k); ok {
			t.Errorf("%s, and it is current", what)
		}
		if v, ok := m.last(k); !ok || v.video != Public {
			t.Errorf("%s, and the last is %+v, %t", what, v, ok)
		}
	}
	m.end(across, []subject{{known: true, video: Public}})
	if _, ok := m.current(videoKey("V2")); ok {
		t.Error("what was read while nobody listened is current")
	}
}

// Where no event spoke of any video nothing is asked, until one does.
func TestNoSubjectsAtAll(t *testing.T) {
	m := newMemory(10)
	m.listen([sorts]bool{ofVideo: true})
	if m.noneOf(ofVideo) {
		t.Error("nobody is known before the first beat")
	}
	m.proven(time.Now())
	if v, ok := m.current(videoKey("V1")); !ok || v.known || !m.noneOf(ofVideo) {
		t.Errorf("%+v, %t", v, ok)
	}
	if _, ok := m.current(accountKey("u1")); ok {
		t.Error("accounts are as videos")
	}
	m.forget(videoKey("V2"))
	if _, ok := m.current(videoKey("V1")); ok || m.noneOf(ofVideo) {
		t.Error("one was spoken of, and nothing is asked")
	}
}

// TestMemoryModel runs commits, notifications, reads and evictions in any order:
// what is current is never older than the last change that was heard of. In the
// model a read sees the database as it was at any time between its begin and its
// end.
func TestMemoryModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := listening()
		keys := []subjectKey{videoKey("V1"), videoKey("V2")}
		type underWay struct {
			read
			seen []subject // nil until the database was read
		}
		database := map[subjectKey]int{}
		heard := map[subjectKey]int{}
		var notifications []subjectKey // committed, not heard of, in order
		var committed []int
		var reading []*underWay
		versionOf := func(v subject) int {
			var n int
			_, _ = fmt.Sscan(v.author, &n)
			return n
		}
		key := rapid.SampledFrom(keys)
		t.Repeat(map[string]func(*rapid.T){
			"commit": func(t *rapid.T) {
				k := key.Draw(t, "key")
				database[k]++
				notifications, committed = append(notifications, k), append(committed, database[k])
			},
			"hear": func(t *rapid.T) {
				if len(notifications) == 0 {
					t.Skip()
				}
				heard[notifications[0]] = committed[0]
				m.forget(notifications[0])
				notifications, committed = notifications[1:], committed[1:]
			},
			"begin": func(t *rapid.T) {
				reading = append(reading, &underWay{read: m.begin(rapid.SliceOfNDistinct(key, 1, 2, rapid.ID).Draw(t, "keys"))})
			},
			"read": func(t *rapid.T) {
				if len(reading) == 0 {
					t.Skip()
				}
				r := rapid.SampledFrom(reading).Draw(t, "which")
				r.seen = nil
				for _, k := range r.keys {
					r.seen = append(r.seen, subject{known: true, author: fmt.Sprint(database[k])})
				}
			},
			"end": func(t *rapid.T) {
				if len(reading) == 0 {
					t.Skip()
				}
				i := rapid.IntRange(0, len(reading)-1).Draw(t, "which")
				m.end(reading[i].read, reading[i].seen)
				reading = append(reading[:i:i], reading[i+1:]...)
			},
			"": func(t *rapid.T) {
				for _, k := range keys {
					if v, ok := m.current(k); ok && versionOf(v) < heard[k] {
						t.Fatalf("%v is at %d, %d was heard of", k, versionOf(v), heard[k])
					}
				}
			},
		})
	})
}
