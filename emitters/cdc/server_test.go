package cdc

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/tidemark/tidemark/internal/embedded"
	"github.com/tidemark/tidemark/internal/testenv"
)

// server is a PostgreSQL server of the test's own.
type server struct {
	*embedded.Postgres
	t testing.TB
}

func startServer(t testing.TB, dir string, settings map[string]string) *server {
	t.Helper()
	all := map[string]string{"fsync": "off"}
	maps.Copy(all, settings)
	pg, err := embedded.StartPostgres(t.Context(), embedded.PostgresConfig{DataDir: dir, Settings: all})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pg.Stop() })
	return &server{Postgres: pg, t: t}
}

func (s *server) stop() {
	s.t.Helper()
	if err := s.Stop(); err != nil {
		s.t.Fatal(err)
	}
}

// rig makes a shard's database on the server.
func (s *server) rig(t testing.TB, database string) *rig {
	t.Helper()
	if err := s.CreateDatabase(t.Context(), database); err != nil {
		t.Fatal(err)
	}
	return newRigOn(t, s.URL(database))
}

// TestPostgresRestarts: stopped in order, again and again.
func TestPostgresRestarts(t *testing.T) {
	dir := testenv.ServerDir(t)
	pg := startServer(t, dir, nil)
	r := pg.rig(t, "shard")
	r.ensureSlot()
	e := r.start()
	for i := range 3 {
		r.insert(10)
		r.awaitRows(10 * (i + 1))
		pg.stop()
		testenv.Eventually(t, patience, func() error {
			if e.Ready() == nil {
				return fmt.Errorf("still ready without PostgreSQL")
			}
			return nil
		})
		pg = startServer(t, dir, nil)
		r.db = r.connect(r.direct)
	}
	r.insert(10)
	checkOrder(t, r.awaitRows(40))
	if err := e.Ready(); err != nil {
		t.Error(err)
	}
	e.stop()
}

// little WAL is kept for a slot, and none without need.
var little = map[string]string{"max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB", "max_wal_size": "32MB"}

// fillWAL writes WAL until the server has removed what the slot needs.
func (r *rig) fillWAL() {
	r.t.Helper()
	testenv.Eventually(r.t, patience, func() error {
		r.exec(`INSERT INTO other SELECT g, repeat('x', 1000) FROM generate_series(1, 8000) g`)
		r.exec(`SELECT pg_switch_wal()`)
		r.exec(`CHECKPOINT`)
		s, err := lookUpSlot(r.t.Context(), r.db, r.cfg.Slot)
		if err == nil && s.walStatus != "lost" {
			err = fmt.Errorf("WAL is %s", s.walStatus)
		}
		return err
	})
}

// TestD06RemovedWALIsNamed: the server has removed WAL that the slot needs
// (max_slot_wal_keep_size), while nobody streamed and under a feed that Kafka
// holds up. Run ends and names it; nothing passes for complete.
func TestD06RemovedWALIsNamed(t *testing.T) {
	pg := startServer(t, testenv.ServerDir(t), little)
	for name, streaming := range map[string]bool{"streaming": true, "stopped": false} {
		t.Run(name, func(t *testing.T) {
			r := pg.rig(t, name)
			r.ensureSlot()
			refused := r.refuseWrites(disconnect)
			e := r.start()
			r.insert(5)
			r.awaitRows(5)
			if streaming {
				refused.on.Store(true)
			} else {
				e.stop()
			}
			r.insert(5)
			r.fillWAL()
			refused.on.Store(false)
			if !streaming {
				e = r.start()
			}
			err := e.awaitEnd()
			if !errors.Is(err, ErrSlotUnusable) || !strings.Contains(err.Error(), "max_slot_wal_keep_size") || !strings.Contains(err.Error(), "heal") {
				t.Errorf("Run returned %v", err)
			}
			if err := e.Ready(); err == nil || !strings.Contains(err.Error(), "max_slot_wal_keep_size") {
				t.Errorf("ready says %v", err)
			}
			if err := EnsureSlot(t.Context(), r.direct, r.cfg.Slot); !errors.Is(err, ErrSlotUnusable) {
				t.Errorf("EnsureSlot returned %v", err)
			}
		})
	}
}

// TestD09PromotedStandbyWithoutTheSlot: the primary dies, its standby takes its
// place and does not have the slot. The feed does not make a new one in
// silence: it names the slot, the database and the last record there is, so
// that what lies between is known and can be healed. With leave it goes on.
func TestD09PromotedStandbyWithoutTheSlot(t *testing.T) {
	primary, standby := startPair(t)
	r := primary.rig(t, "shard")
	r.ensureSlot()
	p := r.throughProxy()
	e := r.start()
	r.insert(5)
	r.awaitRows(5)
	direct := standby.URL("shard")
	p.redirect(direct)
	p.each(func(c *pipe) { c.close() })
	failed := func() {
		t.Helper()
		err := e.awaitEnd()
		if !errors.Is(err, ErrSlotVanished) {
			t.Fatalf("Run returned %v", err)
		}
		for _, text := range []string{r.cfg.Slot, "database shard", "up to offset 5", "heal"} {
			if !strings.Contains(err.Error(), text) {
				t.Errorf("%q does not have %q", err, text)
			}
		}
		if err := e.Ready(); err == nil {
			t.Error("ready without a slot")
		}
	}
	failed()
	r.insert(3) // the gap: the standby has them, Kafka does not
	wal := r.serverLSN()
	r.direct, r.db = direct, r.connect(direct)
	r.await(`SELECT pg_last_wal_replay_lsn() >= $1::text::pg_lsn`, wal.String())
	primary.stop()
	r.exec(`SELECT pg_promote()`)

	e = r.start()
	failed()
	e = r.start(func(c *Config) { c.AllowNewSlot = true })
	e.awaitState(StateStreaming)
	r.insert(2)
	all := r.awaitRows(7)
	checkOrder(t, all)
	if id := all[5].After.ID; id <= 8 {
		t.Errorf("row %d stands behind the gap of rows 6 to 8", id)
	}
}

// await waits until a query says true.
func (r *rig) await(sql string, args ...any) {
	r.t.Helper()
	testenv.Eventually(r.t, patience, func() error {
		var yes bool
		if err := r.db.QueryRow(r.t.Context(), sql, args...).Scan(&yes); err != nil || !yes {
			return fmt.Errorf("not yet: %s: %w", sql, err)
		}
		return nil
	})
}

// startPair starts a server and a standby that follows it, both with the files
// of one initdb.
func startPair(t testing.TB) (primary, standby *server) {
	t.Helper()
	dir, copied := testenv.ServerDir(t), testenv.ServerDir(t)
	startServer(t, dir, nil).stop()
	if out, err := exec.CommandContext(t.Context(), "cp", "-a", filepath.Join(dir, "data"), filepath.Join(dir, "password"), copied).CombinedOutput(); err != nil {
		t.Fatalf("copying the server's files: %v: %s", err, out)
	}
	if err := os.WriteFile(filepath.Join(copied, "data", "standby.signal"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	primary = startServer(t, dir, nil)
	source, err := pgx.ParseConfig(primary.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	return primary, startServer(t, copied, map[string]string{
		"primary_conninfo": fmt.Sprintf("host=%s port=%d user=%s password=%s", source.Host, source.Port, source.User, source.Password),
	})
}

// TestD23TransactionIDsWrapAround: the stream carries 32 bits of a transaction
// id. They begin anew at 2^32, and later ones are still later: nothing orders
// by them.
func TestD23TransactionIDsWrapAround(t *testing.T) {
	dir := testenv.ServerDir(t)
	setNextXID(t, dir, 1<<32-150)
	r := startServer(t, dir, map[string]string{"autovacuum": "off"}).rig(t, "shard")
	r.ensureSlot()
	e := r.start(killable)
	const times = 200
	for i := range times {
		r.insert(2)
		if i%50 == 25 {
			e.stop()
			e = r.start(killable)
		}
	}
	all := r.awaitRows(2 * times)
	checkOrder(t, all)
	var epoch int64
	if err := r.db.QueryRow(t.Context(), `SELECT pg_current_xact_id()::text::bigint >> 32`).Scan(&epoch); err != nil || epoch != 1 {
		t.Fatalf("epoch %d, %v: the ids did not wrap around", epoch, err)
	}
	kept := first(all)
	if from, to := kept[0].Source.TxID, kept[len(kept)-1].Source.TxID; from < 1<<32-150 || to > 1000 {
		t.Errorf("transaction ids from %d to %d", from, to)
	}
	for i, rec := range kept {
		if rec.After.ID != int64(i+1) {
			t.Fatalf("offset %d is row %d, want %d", rec.offset, rec.After.ID, i+1)
		}
	}
}

// setNextXID makes a server's files whose next transaction has an id, with
// pg_resetwal. Older ids would lie in its future, so all rows are frozen.
func setNextXID(t testing.TB, dir string, next uint32) {
	t.Helper()
	pg := startServer(t, dir, nil)
	admin, err := pgx.Connect(t.Context(), pg.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer closeSQL(admin)
	var bin string
	if err := admin.QueryRow(t.Context(), `SELECT setting FROM pg_config() WHERE name = 'BINDIR'`).Scan(&bin); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(bin, "pg_resetwal")
	if _, err := os.Stat(program); err != nil {
		t.Skipf("this PostgreSQL has no pg_resetwal: %v", err)
	}
	if _, err := admin.Exec(t.Context(), `ALTER DATABASE template0 ALLOW_CONNECTIONS true`); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"postgres", "template1", "template0"} {
		conn, err := pgx.Connect(t.Context(), pg.URL(name))
		if err != nil {
			t.Fatal(err)
		}
		_, err = conn.Exec(t.Context(), `VACUUM FREEZE`)
		closeSQL(conn)
		if err != nil {
			t.Fatal(err)
		}
	}
	pg.stop()

	data := filepath.Join(dir, "data")
	info, err := os.Stat(data)
	if err != nil {
		t.Fatal(err)
	}
	owner := info.Sys().(*syscall.Stat_t)
	// A segment of pg_xact holds the states of 2^20 transactions.
	segment := filepath.Join(data, "pg_xact", fmt.Sprintf("%04X", next>>20))
	if err := errors.Join(os.WriteFile(segment, make([]byte, 256<<10), 0o600), os.Chown(segment, int(owner.Uid), int(owner.Gid))); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, "-x", fmt.Sprint(next), "-u", fmt.Sprint(next-1000), data)
	if os.Geteuid() == 0 { // which it refuses to run as
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: owner.Uid, Gid: owner.Gid}}
	}
	cmd.Dir = "/"
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("pg_resetwal: %v: %s", err, out)
	}
}
