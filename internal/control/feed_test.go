package control

import (
	"testing"
	"time"
)

// Pausing and resuming are audited once each, and the first who paused stays.
func TestPausingAFeed(t *testing.T) {
	db := openEmpty(t)
	change := func(do func(string, string) (bool, error), who string, want bool) {
		t.Helper()
		if changed, err := do(who, "upgrade"); err != nil || changed != want {
			t.Fatalf("changed %v, %v; want %v", changed, err, want)
		}
	}
	pause := func(who, why string) (bool, error) { return db.PauseFeed(t.Context(), 3, who, why) }
	resume := func(who, why string) (bool, error) { return db.ResumeFeed(t.Context(), 3, who, why) }
	change(resume, "ann", false)
	change(pause, "ann", true)
	change(pause, "bob", false)
	pauses, err := db.FeedPauses(t.Context())
	if p := pauses[3]; err != nil || len(pauses) != 1 || p.Who != "ann" || p.Reason != "upgrade" || p.At.IsZero() {
		t.Fatalf("pauses %+v, %v", pauses, err)
	}
	change(resume, "bob", true)
	if pauses, err = db.FeedPauses(t.Context()); err != nil || len(pauses) != 0 {
		t.Fatalf("pauses %+v, %v", pauses, err)
	}
	entries, err := db.Entries(t.Context(), "cdc:3", 10)
	if err != nil || len(entries) != 2 || entries[0].Action != "cdc.resumed" || entries[0].Who != "bob" || entries[1].Action != "cdc.paused" || entries[1].Reason != "upgrade" {
		t.Fatalf("audit %+v, %v", entries, err)
	}
}

// An emitter's report replaces its last one and brings what is paused; the
// same again is not written every time; who is silent is no longer listed.
func TestEmittersReport(t *testing.T) {
	db := openEmpty(t)
	report := func(all ...FeedEmitter) map[int]FeedPause {
		t.Helper()
		pauses, err := db.ReportEmitters(t.Context(), all)
		if err != nil {
			t.Fatal(err)
		}
		return pauses
	}
	list := func(want int) []FeedEmitter {
		t.Helper()
		all, err := db.FeedEmitters(t.Context(), time.Minute)
		if err != nil || len(all) != want {
			t.Fatalf("emitters %+v, %v; want %d", all, err, want)
		}
		return all
	}
	since := time.Now().Truncate(time.Second)
	one := FeedEmitter{Shard: 0, Instance: "a", State: "streaming", Since: since, PID: 7}
	two := FeedEmitter{Shard: 1, Instance: "a", State: "standby", Since: since, Restarts: 2, LastError: "away", LastErrorAt: &since}
	if pauses := report(one, two); len(pauses) != 0 {
		t.Fatalf("pauses %+v", pauses)
	}
	before := list(2)
	if _, err := db.PauseFeed(t.Context(), 1, "ann", ""); err != nil {
		t.Fatal(err)
	}
	if pauses := report(one, two); len(pauses) != 1 || pauses[1].Who != "ann" {
		t.Fatalf("pauses %+v", pauses)
	}
	if after := list(2); !after[0].SeenAt.Equal(before[0].SeenAt) || after[1].LastError != "away" || !after[1].LastErrorAt.Equal(since) {
		t.Errorf("emitters %+v after %+v", after, before)
	}
	two.State, two.LastErrorAt = "paused", nil
	report(one, two)
	if after := list(2); after[1].State != "paused" || after[1].LastErrorAt != nil || !after[1].SeenAt.After(before[1].SeenAt) {
		t.Errorf("emitters %+v after %+v", after, before)
	}
	mutate(t, db, "UPDATE feed_emitter SET seen_at = seen_at - interval '2 minutes' WHERE shard = 0")
	if left := list(1); left[0].Shard != 1 {
		t.Errorf("emitters %+v", left)
	}
	report(one)
	list(2)
	mutate(t, db, "UPDATE feed_emitter SET seen_at = seen_at - interval '2 days' WHERE shard = 1")
	report(one)
	if err := db.ForgetEmitters(t.Context(), "b"); err != nil {
		t.Fatal(err)
	}
	list(1)
	if err := db.ForgetEmitters(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	list(0)
}
