package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/tidemark/tidemark/internal/config"
	"github.com/tidemark/tidemark/internal/embedded"
)

func removeSystem(t *testing.T, s *system) {
	if s.dev != nil {
		s.dev.stop(t)
	}
	if err := errors.Join(embedded.RemovePostgres(filepath.Join(s.dir, "postgres")), os.RemoveAll(s.dir)); err != nil {
		t.Error(err)
	}
}

// Every fault of the change feed ends in a gap that names exactly the rows
// that were lost, and, healed, in counts that are those of the facts.
func TestFaultsOfTheFeedAreNamedAndHealed(t *testing.T) {
	r := newFeedRig(t, nil)
	in, cdc := r.run("intake"), r.run("cdc")
	in.await(t, readyLine)
	cdc.await(t, readyLine)
	r.commit(20)
	r.verified()
	if list := r.gaps("--all"); len(list) > 0 {
		t.Fatalf("gaps %+v", list)
	}
	// Each leaves the system whole, with its gaps healed and forgotten.
	forget := func() {
		t.Helper()
		if _, err := r.ctl.Exec(t.Context(), "DELETE FROM gap"); err != nil {
			t.Fatal(err)
		}
	}

	t.Log("the slot is dropped while facts are committed, and created anew")
	cdc.stop(t)
	r.dropSlot()
	lost := r.commit(15)
	r.sealed()
	lost = append(lost, r.commit(3)...)
	r.sealed()
	r.createSlot()
	r.commit(4)
	cdc = r.run("cdc")
	r.awaitGaps("slot-recreated", lost)
	r.heal()
	forget()

	t.Log("the publication leaves the outbox out for a while")
	r.verified()
	r.fed()
	r.exec("ALTER PUBLICATION tidemark_outbox DROP TABLE outbox")
	lost = r.commit(12)
	r.sealed()
	r.exec("ALTER PUBLICATION tidemark_outbox ADD TABLE outbox")
	r.commit(2)
	r.awaitGaps("publication-altered", lost)
	r.heal()
	forget()

	t.Log("the broker loses records before intake has read them")
	r.verified()
	in.stop(t)
	lost = r.commit(9)
	r.fed()
	r.truncate()
	r.commit(2)
	in = r.run("intake")
	r.awaitGaps("topic-truncated", lost)
	r.heal()
	forget()

	t.Log("the broker loses records under an intake that runs and is behind")
	r.verified()
	if err := in.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	lost = r.commit(1) // answers the fetch that intake has sent already
	r.fed()
	lost = append(lost, r.commit(6)...)
	r.fed()
	r.truncate()
	r.commit(2)
	if err := in.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	r.verified()
	came := r.passedOn()
	lost = slices.DeleteFunc(lost, func(id int64) bool { return came[id] })
	if len(lost) < 6 {
		t.Fatalf("only %v were lost", lost)
	}
	r.awaitGaps("topic-truncated", lost)
	r.heal()
	forget()

	t.Log("a row is deleted from the outbox by hand, long after it was delivered")
	ids := r.commit(3)
	r.verified()
	r.exec("DELETE FROM outbox WHERE id = $1", ids[1])
	r.awaitGaps("row-deleted", ids[1:2])
	r.heal()
	forget()

	t.Log("rows are deleted from the outbox before they are delivered")
	cdc.stop(t)
	r.dropSlot()
	ids = r.commit(5)
	r.exec("DELETE FROM outbox WHERE id = ANY($1)", ids)
	r.sealed()
	r.createSlot()
	r.commit(1)
	r.run("cdc")
	r.awaitGaps("row-deleted", ids)
	r.heal()
	forget()

	t.Log("intake is killed between finding a gap and recording it")
	r.verified()
	in.stop(t)
	lost = r.commit(4)
	r.fed()
	r.truncate()
	if _, err := r.ctl.Exec(t.Context(), "BEGIN; LOCK TABLE gap"); err != nil {
		t.Fatal(err)
	}
	in = r.run("intake")
	eventually(t, func() error {
		var waits bool
		err := r.db.QueryRow(t.Context(), "SELECT exists (SELECT FROM pg_stat_activity WHERE application_name = 'tidemark-control' AND wait_event_type = 'Lock' AND query LIKE '%INSERT INTO gap%')").Scan(&waits)
		if err == nil && !waits {
			err = errors.New("nobody records a gap")
		}
		return err
	})
	in.kill()
	if _, err := r.ctl.Exec(t.Context(), "COMMIT"); err != nil {
		t.Fatal(err)
	}
	r.run("intake")
	r.awaitGaps("topic-truncated", lost)
	r.heal()
}

// A deletion that even its trail does not show is still counted, and healed by
// the time of its interval.
func TestRowsThatVanishWithoutATrail(t *testing.T) {
	r := newFeedRig(t, nil)
	in, cdc := r.run("intake"), r.run("cdc")
	in.await(t, readyLine)
	cdc.await(t, readyLine)
	r.commit(3)
	r.verified()
	in.stop(t)
	ids := r.commit(4)
	r.sealed() // the proof has counted them
	r.fed()
	r.truncate()
	r.exec("BEGIN; SET LOCAL session_replication_role = replica; DELETE FROM outbox WHERE id = ANY('{" + fmt.Sprintf("%d,%d", ids[1], ids[2]) + "}'); COMMIT")
	r.commit(1)
	r.run("intake")
	eventually(t, func() error {
		missing := int64(0)
		for _, g := range r.gaps() {
			missing += g.Missing
		}
		if missing < 2 {
			return fmt.Errorf("gaps name %d rows: %+v", missing, r.gaps())
		}
		return nil
	})
	r.heal()
}

// With gap_healing: auto nobody has to do anything.
func TestGapsHealByThemselvesWhenConfigured(t *testing.T) {
	r := newFeedRig(t, func(c *config.Config) { c.GapHealing = config.HealAutomatically })
	cdc := r.run("cdc")
	r.run("intake").await(t, readyLine)
	cdc.await(t, readyLine)
	r.commit(3)
	r.verified()
	cdc.stop(t)
	r.dropSlot()
	lost := r.commit(5)
	r.sealed()
	r.createSlot()
	r.commit(1)
	r.run("cdc")
	eventually(t, func() error {
		var rows int64
		for _, g := range r.gaps("--all") {
			if g.State != "HEALED" || g.HealedBy == "" {
				return fmt.Errorf("gap %+v", g)
			}
			rows += g.Missing
		}
		if rows != int64(len(lost)) {
			return fmt.Errorf("%d rows were named, want %d", rows, len(lost))
		}
		return nil
	})
	r.equal()
}

// A transaction that takes long delays seals; what is verified afterwards is
// whole, and nothing is called missing meanwhile.
func TestLongTransactionsOnlyDelaySeals(t *testing.T) {
	r := newFeedRig(t, nil)
	r.run("intake").await(t, readyLine)
	r.run("cdc").await(t, readyLine)
	for range 3 {
		long := r.connect(r.cfg.Postgres[0])
		if _, err := long.Exec(t.Context(), "BEGIN; LOCK TABLE outbox IN ROW EXCLUSIVE MODE"); err != nil {
			t.Fatal(err)
		}
		var seals int
		if err := r.db.QueryRow(t.Context(), "SELECT count(*) FROM seal").Scan(&seals); err != nil {
			t.Fatal(err)
		}
		r.commit(50)
		if _, err := long.Exec(t.Context(), `INSERT INTO outbox (aggregatetype, aggregateid, type, payload, source_shard, created_at)
			SELECT 'other', 'x', 'y', '{}', 0, now() FROM generate_series(1, 20)`); err != nil {
			t.Fatal(err)
		}
		r.commit(50)
		var now int
		if err := r.db.QueryRow(t.Context(), "SELECT count(*) FROM seal").Scan(&now); err != nil || now > seals+1 {
			t.Fatalf("%d seals through a long transaction, %v", now-seals, err)
		}
		end := "COMMIT"
		if seals%2 == 0 {
			end = "ROLLBACK"
		}
		if _, err := long.Exec(t.Context(), end); err != nil {
			t.Fatal(err)
		}
		r.verified()
	}
	if list := r.gaps("--all"); len(list) > 0 {
		t.Errorf("gaps %+v", list)
	}
	r.equal()
}
