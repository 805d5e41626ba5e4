package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/tidemark/tidemark/internal/control"
	"github.com/tidemark/tidemark/relations"
	"github.com/tidemark/tidemark/topology"
)

// secondCDC starts another process that stands by.
func (r *feedRig) secondCDC() *running {
	r.t.Helper()
	return run(r.t, "run", "cdc", "--config", r.file, "--instance", "cdc-2", "--ops-listen", "127.0.0.1:0")
}

// cdc calls `tidemark cdc ARGS...`.
func (r *feedRig) cdc(code int, args ...string) result {
	r.t.Helper()
	return must(r.t, code, append(append([]string{"cdc"}, args...), "--config", r.file)...)
}

func (r *feedRig) status(code int) feedJSON {
	r.t.Helper()
	var list []feedJSON
	mustJSON(r.t, r.cdc(code, "status", "--output", "json").out, &list)
	if len(list) != 1 || list[0].Problems == nil || (code == exitDifferent) != (len(list[0].Problems) > 0) {
		r.t.Fatalf("status %+v", list)
	}
	return list[0]
}

// awaitStatus waits until the status is as wanted.
func (r *feedRig) awaitStatus(code int, want string, ok func(feedJSON) bool) (f feedJSON) {
	r.t.Helper()
	eventually(r.t, func() error {
		if f = r.status(code); !ok(f) {
			return fmt.Errorf("not %s: %+v", want, f)
		}
		return nil
	})
	return f
}

func emittersIn(state string) func(feedJSON) bool {
	return func(f feedJSON) bool {
		return len(f.Emitters) > 0 && !slices.ContainsFunc(f.Emitters, func(e emitterJSON) bool { return e.State != state })
	}
}

func oneStreams(f feedJSON) bool { return f.Reader != nil && f.Reader.Instance != "" }

// load commits without a pause until the returned function is called.
func (r *feedRig) load() (stop func()) {
	ctx, cancel := context.WithCancel(r.t.Context())
	var done sync.WaitGroup
	made := 0
	done.Go(func() {
		for ctx.Err() == nil {
			made++
			_, err := r.store.Set(r.t.Context(), relations.Command{
				OperationID: fmt.Sprint("load-", r.ops+made), Desired: topology.Liked,
				Relation: topology.Relation{Kind: topology.Like, User: fmt.Sprint("l", r.ops+made), Target: "V1"},
			})
			if err != nil {
				r.t.Error(err)
				return
			}
		}
	})
	return sync.OnceFunc(func() { cancel(); done.Wait(); r.ops += made })
}

// cdcEnd is the end of the change feed in Kafka.
func (r *feedRig) cdcEnd() (end int64) {
	r.t.Helper()
	r.admin(func(admin *kadm.Client) {
		ends, err := admin.ListEndOffsets(r.t.Context(), r.topo.Topic(topology.CDC))
		if err != nil {
			r.t.Fatal(err)
		}
		o, _ := ends.Lookup(r.topo.Topic(topology.CDC), 0)
		end = o.Offset
	})
	return end
}

// audited lists what was done to the feed, newest first.
func (r *feedRig) audited() (actions []string) {
	r.t.Helper()
	rows, err := r.ctl.Query(r.t.Context(), "SELECT who || ' ' || action FROM audit WHERE subject = $1 ORDER BY id DESC", control.FeedSubject(0))
	if err == nil {
		actions, err = pgx.CollectRows(rows, pgx.RowTo[string])
	}
	if err != nil {
		r.t.Fatal(err)
	}
	return actions
}

// A pause reaches both emitters under load, says so everywhere, outlasts a
// kill, and loses nothing.
func TestPausingTheFeed(t *testing.T) {
	r := newFeedRig(t, nil)
	r.run("intake").await(t, readyLine)
	one := r.run("cdc")
	one.await(t, readyLine)
	r.commit(10)
	r.verified()
	two := r.secondCDC()
	two.await(t, readyLine)

	f := r.awaitStatus(exitOK, "one streams, one stands by", func(f feedJSON) bool {
		return oneStreams(f) && len(f.Emitters) == 2 && f.Emitters[1].State == "standby"
	})
	if f.Reader.Instance != "cdc" || f.Emitters[0].State != "streaming" || f.Emitters[1].Instance != "cdc-2" {
		t.Errorf("reader %+v, emitters %+v", f.Reader, f.Emitters)
	}
	if !f.Slot.Active || f.Slot.WALStatus != "reserved" || f.Slot.ConfirmedLSN == "" || !f.Publication.Complete || f.Paused != nil || f.VerifiedSeal == 0 || f.Outbox.Bytes == 0 || len(f.Outbox.Parts) == 0 {
		t.Errorf("status %+v", f)
	}
	if f.LagBytes == nil || f.LagSeconds == nil || f.OldestUnpublishedSeconds == nil || *f.OldestUnpublishedSeconds > 30 || f.UnpublishedRows == nil {
		t.Errorf("lag of %+v", f)
	}
	if out := r.cdc(exitOK, "status").out; !strings.Contains(out, "cdc (pid ") || !strings.Contains(out, "emitter cdc-2: standby") {
		t.Errorf("table:\n%s", out)
	}

	stopLoad := r.load()
	defer stopLoad()
	out := r.cdc(exitOK, "pause", "--shard", "0", "--reason", "upgrade", "--as", "ann").out
	for _, want := range []string{"shard 0: paused", "emitter cdc: paused", "emitter cdc-2: paused"} {
		if !strings.Contains(out, want) {
			t.Errorf("pause says %s, not %q", out, want)
		}
	}
	end := r.cdcEnd()
	f = r.status(exitOK)
	if f.Slot.Active || f.Paused == nil || f.Paused.By != "ann" || f.Paused.Reason != "upgrade" || !emittersIn("paused")(f) {
		t.Errorf("status %+v", f)
	}
	readyz := strings.Fields(one.await(t, "operators"))[1]
	if code, body, err := get(t, readyz); err != nil || code != 200 || !strings.Contains(body, "[+] cdc.0: ready [paused: by ann since ") || !strings.Contains(body, ": upgrade; the slot holds ") {
		t.Errorf("readyz says %d %s, %v", code, body, err)
	}
	retained := f.Slot.RetainedBytes
	f = r.awaitStatus(exitOK, "behind", func(f feedJSON) bool {
		return f.Slot.RetainedBytes > retained+50_000 && *f.UnpublishedRows > 100 && *f.OldestUnpublishedSeconds > 2 && *f.LagSeconds > 1
	})
	if *f.LagSeconds > *f.OldestUnpublishedSeconds {
		t.Errorf("the feed is %v s late at least, its oldest row %v s old at most", *f.LagSeconds, *f.OldestUnpublishedSeconds)
	}
	if out := r.cdc(exitOK, "pause", "--as", "bob").out; !strings.Contains(out, "was paused already") {
		t.Errorf("pausing twice says %s", out)
	}

	one.kill()
	one = r.run("cdc")
	one.await(t, readyLine)
	if now := r.cdcEnd(); now != end {
		t.Errorf("%d records came while the feed was paused", now-end)
	}
	if out := r.cdc(exitOK, "resume", "--as", "ann").out; !strings.Contains(out, "shard 0: resumed") || !strings.Contains(out, "streaming") {
		t.Errorf("resume says %s", out)
	}
	stopLoad()
	r.verified()
	if list := r.gaps("--all"); len(list) > 0 {
		t.Errorf("gaps %+v", list)
	}
	r.equal()
	if got := r.audited(); !slices.Equal(got, []string{"ann cdc.resumed", "ann cdc.paused"}) {
		t.Errorf("audit %v", got)
	}
	two.stop(t)
	one.stop(t)
	if f = r.status(exitOK); len(f.Emitters) != 0 {
		t.Errorf("emitters that have stopped are listed: %+v", f.Emitters)
	}
	if out := r.cdc(exitOK, "pause", "--as", "ann").out; !strings.Contains(out, "no emitter works now") {
		t.Errorf("pause without emitters says %s", out)
	}
}

// lost lists the rows that the feed did not bring.
func (r *feedRig) lost() (ids []int64) {
	r.t.Helper()
	r.verified()
	came := r.passedOn()
	rows, err := r.db.Query(r.t.Context(), "SELECT id FROM outbox WHERE aggregatetype = 'relation' ORDER BY id")
	if err == nil {
		ids, err = pgx.CollectRows(rows, pgx.RowTo[int64])
	}
	if err != nil {
		r.t.Fatal(err)
	}
	return slices.DeleteFunc(ids, func(id int64) bool { return came[id] })
}

// A slot that is dropped and made anew under writes, by the commands and
// without restarting anything, ends in a named gap, and that in equal counts.
func TestDroppingAndCreatingASlot(t *testing.T) {
	r := newFeedRig(t, nil)
	r.run("intake").await(t, readyLine)
	emitter := r.run("cdc")
	emitter.await(t, readyLine)
	r.commit(10)
	r.verified()
	refused := func(want string, args ...string) {
		t.Helper()
		if got := r.cdc(exitError, args...); !strings.Contains(got.errOut, want) {
			t.Errorf("want %q: %v", want, got)
		}
	}
	says := func(want []string, args ...string) {
		t.Helper()
		got := r.cdc(exitOK, args...)
		for _, w := range want {
			if !strings.Contains(got.out, w) {
				t.Errorf("want %q: %v", w, got)
			}
		}
	}

	t.Log("a slot that is read is not dropped")
	says([]string{"is there and can be used"}, "create-slot")
	refused("is read by pid", "drop-slot")
	refused("is read by pid", "drop-slot", "--execute")
	says([]string{"would drop slot", "would end its reader", "nothing was changed"}, "drop-slot", "--force")
	if f := r.status(exitOK); !f.Slot.Active {
		t.Fatalf("a dry run has changed something: %+v", f)
	}

	t.Log("dropped under writes")
	stopLoad := r.load()
	defer stopLoad()
	says([]string{"will drop slot", "shard 0: done"}, "drop-slot", "--force", "--execute", "--as", "ann", "--reason", "test")
	r.awaitStatus(exitDifferent, "missing, and the emitter says so", func(f feedJSON) bool {
		return !f.Slot.Exists && emittersIn("failed")(f) && strings.Contains(f.Emitters[0].LastError, "vanished") && strings.Contains(f.Problems[0], "create-slot --shard 0")
	})
	says([]string{"would create slot", "become a named gap", "nothing was changed"}, "create-slot")
	r.awaitStatus(exitDifferent, "still missing", func(f feedJSON) bool { return !f.Slot.Exists })

	t.Log("creation is blocked by an open transaction")
	holder := r.connect(r.cfg.Postgres[0])
	if _, err := holder.Exec(t.Context(), "BEGIN; SELECT pg_current_xact_id()"); err != nil {
		t.Fatal(err)
	}
	pid := fmt.Sprintf("pid %d (idle in transaction", holder.PgConn().PID())
	got := r.cdc(exitError, "create-slot", "--execute", "--timeout", "3s", "--as", "ann")
	if !strings.Contains(got.errOut, "waiting for "+pid) || !strings.Contains(got.errOut, "still waiting for "+pid) || !strings.Contains(got.errOut, "open for 00:00:") {
		t.Errorf("blocked: %v", got)
	}
	r.awaitStatus(exitDifferent, "given up", func(f feedJSON) bool { return !f.Slot.Exists })
	if _, err := holder.Exec(t.Context(), "ROLLBACK"); err != nil {
		t.Fatal(err)
	}

	t.Log("created; the emitter goes on by itself")
	says([]string{"will create slot", "shard 0: done"}, "create-slot", "--execute", "--as", "ann")
	r.awaitStatus(exitOK, "flowing", oneStreams)
	stopLoad()
	lost := r.lost()
	if len(lost) == 0 {
		t.Fatal("nothing was lost: the test cannot fail")
	}
	r.awaitGaps("slot-recreated", lost)
	if f := r.status(exitOK); f.OpenGaps == 0 || f.MissingRows != int64(len(lost)) {
		t.Errorf("status %+v", f)
	}
	r.heal()

	t.Log("a publication is gone: slot and publication are made anew")
	r.fed()
	r.exec("DROP PUBLICATION tidemark_outbox")
	f := r.awaitStatus(exitDifferent, "missing", func(f feedJSON) bool { return !f.Publication.Exists && !f.Publication.Complete })
	if !f.Slot.Exists {
		t.Errorf("status %+v", f)
	}
	refused("cannot be read with a newer one", "create-slot", "--execute")
	r.commit(5)
	r.cdc(exitOK, "pause", "--as", "ann")
	says([]string{"shard 0: done"}, "drop-slot", "--execute", "--as", "ann")
	says([]string{"will create publication", "shard 0: done"}, "create-slot", "--execute", "--as", "ann")
	r.cdc(exitOK, "resume", "--as", "ann")
	r.commit(2)
	lost = r.lost()
	if len(lost) < 5 {
		t.Fatalf("only %v were lost", lost)
	}
	eventually(t, func() error {
		var named []int64
		for _, g := range r.gaps() {
			named = append(named, g.Ids...)
		}
		if slices.Sort(named); !slices.Equal(named, lost) {
			return fmt.Errorf("gaps name %v, want %v", named, lost)
		}
		return nil
	})
	r.heal()

	t.Log("an altered publication is told, not repaired")
	r.exec("ALTER PUBLICATION tidemark_outbox SET (publish = 'insert, delete')")
	if f = r.status(exitDifferent); !f.Publication.Exists || f.Publication.Complete || !strings.Contains(f.Problems[0], "SET (publish = 'insert')") {
		t.Errorf("status %+v", f)
	}
	want := []string{
		"ann cdc.resumed", "ann cdc.slot-created", "ann cdc.slot-dropped", "ann cdc.paused", "ann cdc.slot-created",
		"ann cdc.slot-created-failed", "ann cdc.slot-created", "ann cdc.slot-dropped",
	}
	if got := r.audited(); !slices.Equal(got, want) {
		t.Errorf("audit %v, want %v", got, want)
	}
	select {
	case <-emitter.ended:
		t.Error("the process of the emitter has ended")
	default:
	}
}

func TestWrongCallsOfTheFeed(t *testing.T) {
	s := theSystem(t)
	for _, c := range []struct {
		want string
		args []string
	}{
		{"there are shards 0..1", []string{"cdc", "status", "--shard", "2"}},
		{"there are shards 0..1", []string{"cdc", "pause", "--shard", "-2"}},
		{"--timeout 0s is not positive", []string{"cdc", "create-slot", "--timeout", "0s"}},
		{`--output "xml"`, []string{"cdc", "status", "--output", "xml"}},
		{"unknown flag: --force", []string{"cdc", "create-slot", "--force"}},
	} {
		if r := must(t, exitUsage, s.at(c.args...)...); !strings.Contains(r.errOut, c.want) || r.out != "" {
			t.Errorf("want %q: %v", c.want, r)
		}
	}
	// Every shard, or one.
	var list []feedJSON
	mustJSON(t, must(t, exitOK, s.at("cdc", "status", "--output", "json")...).out, &list)
	if len(list) != 2 || list[1].Shard != 1 {
		t.Errorf("status %+v", list)
	}
	mustJSON(t, must(t, exitOK, s.at("cdc", "status", "--shard", "1", "--output", "json")...).out, &list)
	if len(list) != 1 || list[0].Shard != 1 {
		t.Errorf("status %+v", list)
	}
}
