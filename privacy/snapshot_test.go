package privacy

import (
	"context"
	"errors"
	"log/slog"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/tidemark/tidemark/internal/testenv"
	"github.com/tidemark/tidemark/topology"
)

// watching is a Snapshot over s that hears of changes.
func watching(t *testing.T, s *Store, p Policy) *Snapshot {
	t.Helper()
	w, err := NewSnapshot(SnapshotConfig{Store: s, Policy: p, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	awaitListening(t, w)
	return w
}

func awaitListening(t *testing.T, w *Snapshot) {
	t.Helper()
	testenv.Eventually(t, 10*time.Second, func() error {
		if why := w.Detail(); why != "" {
			return errors.New(why)
		}
		return nil
	})
}

func like(user, video string) topology.Relation {
	return topology.Relation{Kind: topology.Like, User: user, Target: video}
}

func verdictOn(t *testing.T, w *Snapshot, r topology.Relation) Verdict {
	t.Helper()
	v, err := w.MayBegin(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func awaitVerdict(t *testing.T, w *Snapshot, r topology.Relation, want Verdict) {
	t.Helper()
	testenv.Eventually(t, 10*time.Second, func() error {
		if v := verdictOn(t, w, r); v != want {
			return errors.New("the verdict is another")
		}
		return nil
	})
}

func public(id string, version uint64) Video {
	return Video{id, version, "author", Public, Everyone, Everyone}
}

func (v Video) as(version uint64, status VideoStatus) Video {
	v.Version, v.Status = version, status
	return v
}

// TestMayBegin asks twice, of the database and of what is remembered (I7).
func TestMayBegin(t *testing.T) {
	s := open(t)
	s.UseFriends(friendsOf("author", "friend"))
	apply(t, s, public("public", 1), public("deleted", 1).as(1, Deleted), public("friends", 1).as(1, FriendsOnly), public("private", 1).as(1, Private),
		openAccount("closed").with(func(a *Account) { a.Status = Closed }), openAccount("author"),
		Block{"author", "enemy", 1, true}, Block{"enemy2", "author", 1, true}, Block{"author", "forgiven", 1, true}, Block{"author", "forgiven", 2, false})
	w := watching(t, s, Policy{})
	follow := func(user, target string) topology.Relation {
		return topology.Relation{Kind: topology.Follow, User: user, Target: target}
	}
	for range 2 {
		for r, want := range map[topology.Relation]Verdict{
			like("u", "public"): Allowed, like("u", "unheard"): Allowed, like("u", "deleted"): NoTarget, like("author", "deleted"): NoTarget,
			like("u", "friends"): NoTarget, like("friend", "friends"): Allowed, like("author", "friends"): Allowed, like("u", "private"): NoTarget, like("author", "private"): Allowed,
			like("enemy", "public"): NoTarget, like("enemy2", "public"): NoTarget, like("forgiven", "public"): Allowed, like("closed", "public"): NoAccount,
			follow("u", "author"): Allowed, follow("u", "closed"): NoTarget, follow("enemy", "author"): NoTarget, follow("author", "enemy"): NoTarget, follow("author", "enemy2"): NoTarget,
			follow("enemy", "enemy2"): Allowed, follow("closed", "author"): NoAccount,
		} {
			if got := verdictOn(t, w, r); got != want {
				t.Errorf("%+v: %d, want %d", r, got, want)
			}
		}
	}
	for viewer, want := range map[string][]Withdrawal{
		"u":      {CountShown, CountShown, "DELETED", CountHidden, CountHidden},
		"friend": {CountShown, CountShown, "DELETED", CountShown, CountHidden},
		"author": {CountShown, CountShown, "DELETED", CountShown, CountShown},
	} {
		got, err := w.Withdrawn(t.Context(), viewer, topology.Favorite, []string{"public", "unheard", "deleted", "friends", "private"})
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("counts to %s: %q, %v, want %q", viewer, got, err, want)
		}
	}
	if got, err := w.Withdrawn(t.Context(), "u", topology.Follow, []string{"author", "closed", "u"}); err != nil || !slices.Equal(got, []Withdrawal{"", "CLOSED", ""}) {
		t.Errorf("followers: %q, %v", got, err)
	}
}

// TestDeletionIsHeardOf: what is remembered gives way to a deletion, to a restoring,
// and never to a version that is late (J3).
func TestDeletionIsHeardOf(t *testing.T) {
	s := open(t)
	w := watching(t, s, Policy{})
	r := like("u", "V1")
	if verdictOn(t, w, r) != Allowed { // nobody spoke of any video
		t.Fatal("unknown")
	}
	for _, step := range []struct {
		version uint64
		status  VideoStatus
		want    Verdict
	}{{1, Public, Allowed}, {5, Deleted, NoTarget}, {4, Public, NoTarget}, {5, Deleted, NoTarget}, {9, Public, Allowed}, {8, Deleted, Allowed}} {
		apply(t, s, public("V1", 1).as(step.version, step.status))
		awaitVerdict(t, w, r, step.want)
	}
	apply(t, s, Block{"author", "u", 1, true})
	awaitVerdict(t, w, r, NoTarget)
	apply(t, s, Block{"author", "u", 2, false}, openAccount("u").with(func(a *Account) { a.Status = Banned }))
	awaitVerdict(t, w, r, NoAccount)
}

// TestStrongCheck: with no notification what is remembered is old, and only what is
// marked as of high risk is asked of the database again.
func TestStrongCheck(t *testing.T) {
	s := open(t)
	apply(t, s, public("weak", 1), public("strong", 1).as(1, FriendsOnly))
	s.UseFriends(friendsOf("author", "u"))
	w := watching(t, s, Policy{Strong: []string{string(FriendsOnly)}})
	for _, id := range []string{"weak", "strong"} {
		if verdictOn(t, w, like("u", id)) != Allowed {
			t.Fatal(id)
		}
	}
	for _, table := range []string{"privacy_video", "privacy_block"} {
		if _, err := s.pool.Exec(t.Context(), "ALTER TABLE "+table+" DISABLE TRIGGER USER"); err != nil {
			t.Fatal(err)
		}
	}
	apply(t, s, public("weak", 1).as(2, Deleted))
	if verdictOn(t, w, like("u", "weak")) != Allowed {
		t.Error("the database was asked for what is remembered")
	}
	apply(t, s, Block{"u", "author", 1, true})
	if verdictOn(t, w, like("u", "strong")) != NoTarget {
		t.Error("a block was not asked for strongly")
	}
	apply(t, s, Block{"u", "author", 2, false}, public("strong", 1).as(2, Deleted))
	if verdictOn(t, w, like("u", "strong")) != NoTarget {
		t.Error("a deletion was not asked for strongly")
	}
}

// TestALostListener: a change that comes while nobody listens is not missed.
func TestALostListener(t *testing.T) {
	s := open(t)
	apply(t, s, public("V1", 1))
	w := watching(t, s, Policy{})
	if verdictOn(t, w, like("u", "V1")) != Allowed {
		t.Fatal("public")
	}
	var ended int
	err := s.pool.QueryRow(t.Context(), `
		SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
		WHERE datname = current_database() AND ltrim(query, E' \n\t') LIKE 'SELECT NOT EXISTS (SELECT FROM privacy_account)%' AND pid <> pg_backend_pid()`).Scan(&ended)
	if err != nil || ended != 1 {
		t.Fatalf("%d listeners ended, %v", ended, err)
	}
	apply(t, s, public("V1", 1).as(2, Deleted))
	awaitVerdict(t, w, like("u", "V1"), NoTarget)
	awaitListening(t, w)
	apply(t, s, public("V1", 1).as(3, Public))
	awaitVerdict(t, w, like("u", "V1"), Allowed)
}

// TestSnapshotOutage: what was known last holds on, and the policy decides on the
// rest.
func TestSnapshotOutage(t *testing.T) {
	s := open(t)
	apply(t, s, public("deleted", 1).as(1, Deleted), public("public", 1), openAccount("u"), Block{"x", "y", 1, true})
	for name, refuse := range map[string]bool{"allow": false, "refuse": true} {
		own, err := Open(t.Context(), s.pool.Config().ConnString())
		if err != nil {
			t.Fatal(err)
		}
		w, err := NewSnapshot(SnapshotConfig{Store: own, Policy: Policy{RefuseUndecided: refuse, RefuseUnknown: true}, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		for id, want := range map[string]Verdict{"deleted": NoTarget, "public": Allowed} {
			if verdictOn(t, w, like("u", id)) != want {
				t.Errorf("%s before the outage", id)
			}
		}
		own.Close()
		for id, want := range map[string]Verdict{"deleted": NoTarget, "public": Allowed} {
			if verdictOn(t, w, like("u", id)) != want {
				t.Errorf("%s, %s in the outage", name, id)
			}
		}
		v, err := w.MayBegin(t.Context(), like("u", "never asked for"))
		if refuse && !errors.Is(err, ErrUndecided) || !refuse && (err != nil || v != Allowed) {
			t.Errorf("%s: %d, %v", name, v, err)
		}
		got, err := w.Withdrawn(t.Context(), "u", topology.Like, []string{"deleted", "never asked for"})
		if refuse && !errors.Is(err, ErrUndecided) || !refuse && (err != nil || !reflect.DeepEqual(got, []Withdrawal{"DELETED", ""})) {
			t.Errorf("%s: counts %q, %v", name, got, err)
		}
	}
}

// An outage is noticed by asking, and then not waited for by each command.
func TestAnOutageIsNotWaitedForTwice(t *testing.T) {
	s := open(t)
	w, err := NewSnapshot(SnapshotConfig{Store: s, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	s.pool.Close()
	for i := 0; w.breaker.Enter(); i++ {
		if i > 10 {
			t.Fatal("the database is asked again and again")
		}
		if v := verdictOn(t, w, like("u", "V1")); v != Allowed {
			t.Errorf("%d", v)
		}
	}
}

func TestParseChange(t *testing.T) {
	for payload, want := range map[string]change{
		`["account","u:\"7"]`:        {key: accountKey(`u:"7`)},
		`["video", "V1"]`:            {key: videoKey("V1")},
		`["block", "u9", "u7"]`:      {key: pairKey("u7", "u9")},
		`["beat", "0190"]`:           {beat: "0190"},
		`["block", "u9"]`:            {},
		`["playlist", "P1"]`:         {},
		`[]`:                         {},
		`{"video":"V1"}`:             {},
		`["beat", ""]`:               {},
		`["video", "V1", "another"]`: {},
	} {
		got, err := parseChange(payload)
		if got != want || (err != nil) != (want == change{}) {
			t.Errorf("%s: %+v, %v", payload, got, err)
		}
	}
}
