package privacy

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/tidemark/tidemark/internal/testenv"
)

// The rules of a revision stay what they were, whatever is applied later.
func TestARevisionStays(t *testing.T) {
	s := open(t)
	account := func(version uint64, status AccountStatus, private bool) Account {
		return openAccount("a").with(func(a *Account) { a.Version, a.Status, a.Private = version, status, private })
	}
	type moment struct {
		revision int64
		hidden   bool
	}
	var all []moment
	note := func(hidden bool, events ...Event) {
		t.Helper()
		apply(t, s, events...)
		revision, err := s.Revision(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, moment{revision, hidden})
	}
	note(false)
	note(false, account(1, Active, false))
	note(true, account(2, Active, true))
	note(true, account(3, Banned, false), account(2, Active, false)) // the older one comes late
	note(false, account(4, Active, false))
	note(true, account(5, Closed, false))
	note(true, openAccount("b").with(func(a *Account) { a.Private = true }))
	for i, m := range all {
		hidden, err := s.HiddenAt(t.Context(), m.revision, []string{"unknown", "a", "b", "a"})
		if err != nil {
			t.Fatal(err)
		}
		if want := []bool{false, m.hidden, i == len(all)-1, m.hidden}; !slices.Equal(hidden, want) {
			t.Errorf("moment %d, revision %d: %v, want %v", i, m.revision, hidden, want)
		}
	}
}

// Revision waits for a change that is not committed: else that would come under
// a revision that was named already.
func TestRevisionWaitsForChangesInFlight(t *testing.T) {
	s := open(t)
	tx, err := s.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	sql, args := openAccount("a").with(func(a *Account) { a.Private = true }).upsert()
	if _, err := tx.Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err)
	}
	told := make(chan int64, 1)
	go func() {
		revision, err := s.Revision(context.WithoutCancel(t.Context()))
		if err != nil {
			t.Error(err)
		}
		told <- revision
	}()
	testenv.Eventually(t, 10*time.Second, func() error {
		var waits int
		return s.pool.QueryRow(t.Context(), "SELECT 1 FROM pg_locks WHERE NOT granted AND relation = 'privacy_account_hidden'::regclass").Scan(&waits)
	})
	select {
	case <-told:
		t.Error("it did not wait")
	default:
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	hidden, err := s.HiddenAt(t.Context(), <-told, []string{"a"})
	if err != nil || !hidden[0] {
		t.Errorf("hidden %v, %v", hidden, err)
	}
}
