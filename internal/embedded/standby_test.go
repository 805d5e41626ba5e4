package embedded

import (
	"errors"
	"testing"
	"time"
)

// A standby has what its primary had, takes its place on its port with its
// password, and has no replication slot.
func TestStandbyTakesOver(t *testing.T) {
	p := startForTest(t, openDir(t))
	const make = `SELECT count(*) FROM pg_create_logical_replication_slot('feed', 'pgoutput')`
	if n := ask[int](t, p.URL("postgres"), make); n != 1 {
		t.Fatalf("%d slots were made", n)
	}
	cfg := PostgresConfig{DataDir: openDir(t), Settings: map[string]string{"fsync": "off"}}
	standby, err := p.StartStandby(t.Context(), cfg)
	if errors.Is(err, ErrNoBackupProgram) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.StartStandby(t.Context(), cfg); err == nil {
		t.Error("a data directory in use is taken for a second standby")
	}
	if !ask[bool](t, standby.URL("postgres"), "SELECT pg_is_in_recovery()") {
		t.Error("the copy does not follow its primary")
	}
	if err := p.CreateDatabase(t.Context(), "later"); err != nil {
		t.Fatal(err)
	}
	end := time.Now().Add(20 * time.Second)
	for ask[int](t, standby.URL("postgres"), "SELECT count(*) FROM pg_database WHERE datname = 'later'") == 0 {
		if time.Now().After(end) {
			t.Fatal("what the primary committed does not come")
		}
	}
	if err := errors.Join(p.Crash(), p.Crash(), standby.Stop()); err != nil {
		t.Fatal(err)
	}
	cfg.Port, cfg.Settings["primary_conninfo"] = p.Port(), ""
	if standby, err = StartPostgres(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = standby.Stop() })
	if err := standby.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := ask[int](t, p.URL("later"), "SELECT count(*) FROM pg_replication_slots"); got != 0 {
		t.Errorf("the new primary has %d slots", got)
	}
}
