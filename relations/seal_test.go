package relations

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/tidemark/tidemark/internal/testenv"
	"github.com/tidemark/tidemark/topology"
)

// startSealer runs a sealer until the test ends or stop is called.
func startSealer(t *testing.T, url string, change func(*SealerConfig)) (stop func()) {
	t.Helper()
	c := SealerConfig{URL: url, Interval: 5 * time.Millisecond}
	if change != nil {
		change(&c)
	}
	s, err := NewSealer(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// sealRow is a row of the outbox that a sealer wrote, decoded strictly.
type sealRow struct {
	id   int64
	seal topology.Seal
}

// seals reads a shard's seals and proofs in id order, and checks that both are
// numbered from 1 without holes or repetition and have the form of the feed.
func seals(t *testing.T, url string) ([]sealRow, []topology.SealProof) {
	t.Helper()
	rows, err := dial(t, url).Query(context.Background(), `
		SELECT id, aggregatetype, aggregateid, type, payload::text FROM outbox
		WHERE aggregatetype IN ('seal', 'proof') ORDER BY id`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var out []sealRow
	var proofs []topology.SealProof
	for rows.Next() {
		var id int64
		var aggregate, key, kind, payload string
		if err := rows.Scan(&id, &aggregate, &key, &kind, &payload); err != nil {
			t.Fatal(err)
		}
		into, wantKey, wantKind := any(nil), "", ""
		switch aggregate {
		case topology.AggregateSeal:
			out = append(out, sealRow{id: id})
			into, wantKey, wantKind = &out[len(out)-1].seal, fmt.Sprintf("seal:%d", len(out)), topology.TypeSealed
		case topology.AggregateProof:
			proofs = append(proofs, topology.SealProof{})
			into, wantKey, wantKind = &proofs[len(proofs)-1], fmt.Sprintf("proof:%d", len(proofs)), topology.TypeSealProven
		}
		dec := json.NewDecoder(strings.NewReader(payload))
		dec.DisallowUnknownFields()
		if err := dec.Decode(into); err != nil {
			t.Fatalf("row %d: %v", id, err)
		}
		if key != wantKey || kind != wantKind {
			t.Fatalf("row %d is %s of type %s, want %s of type %s", id, key, kind, wantKey, wantKind)
		}
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	for i, s := range out {
		if s.seal.Seal != uint64(i+1) || s.seal.SealedAt.IsZero() || i > 0 && s.seal.SealedAt.Before(out[i-1].seal.SealedAt) {
			t.Fatalf("seal %d is %+v", i+1, s.seal)
		}
	}
	for i, p := range proofs {
		if p.Seal != uint64(i+1) {
			t.Fatalf("proof %d is of seal %d", i+1, p.Seal)
		}
	}
	return out, proofs
}

// checkProofs compares each proof with what the outbox holds now: an event
// that became visible behind its seal would make the interval larger.
func checkProofs(t *testing.T, url string) (proven int) {
	t.Helper()
	sealed, proofs := seals(t, url)
	events := outbox(t, url)
	from := int64(1)
	for i, p := range proofs {
		want := topology.SealProof{Seal: uint64(i + 1), FromID: from, ToID: sealed[i].id}
		for _, e := range events {
			if e.id >= want.FromID && e.id < want.ToID {
				want.Rows++
				want.XorSum ^= xxhash.Sum64String(e.event.EventID)
			}
		}
		if p != want {
			t.Errorf("proof %+v, the outbox holds %+v", p, want)
		}
		from = want.ToID + 1
	}
	return len(proofs)
}

func awaitProofs(t *testing.T, url string, n int) {
	t.Helper()
	conn := dial(t, url)
	testenv.Eventually(t, 20*time.Second, func() error {
		var have int
		err := conn.QueryRow(context.Background(), "SELECT count(*) FROM outbox WHERE aggregatetype = 'proof'").Scan(&have)
		if err == nil && have < n {
			err = fmt.Errorf("%d proofs, want %d", have, n)
		}
		return err
	})
}

func TestSealsUnderLoadSettleTheirIntervals(t *testing.T) {
	urls := migrated(t, 1)
	s := openAt(t, urls, func(c *Config) { c.Committers = 4; c.BatchLimit = 8 })
	reg := prometheus.NewRegistry()
	stop := startSealer(t, urls[0], func(c *SealerConfig) { c.Registerer = reg })
	var group errgroup.Group
	group.SetLimit(32)
	for i := range 3000 {
		group.Go(func() error {
			r := relation(topology.Like, fmt.Sprintf("u%d", i%300), fmt.Sprintf("v%d", i%2))
			_, err := s.Set(context.Background(), command(fmt.Sprintf("op%d", i), r, []topology.State{topology.Liked, topology.Unliked}[i/600%2]))
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	before, _ := seals(t, urls[0])
	awaitProofs(t, urls[0], len(before)+2) // one that covers the last command
	stop()
	n := checkProofs(t, urls[0])
	_, proofs := seals(t, urls[0])
	var rows int64
	for _, p := range proofs {
		rows += p.Rows
	}
	if want := len(outbox(t, urls[0])); rows != int64(want) {
		t.Errorf("%d seals prove %d rows, the outbox has %d", n, rows, want)
	}
	checkHistory(t, s, urls)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	observed := map[string]uint64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			observed[f.GetName()] += m.GetHistogram().GetSampleCount()
		}
	}
	for _, name := range []string{"tidemark_relations_seal_lock_wait_seconds", "tidemark_relations_seal_lock_held_seconds"} {
		if observed[name] < uint64(n) {
			t.Errorf("%s has %d samples for %d seals", name, observed[name], n)
		}
	}
}

func TestOneSealerWorksTheOtherTakesOver(t *testing.T) {
	urls := migrated(t, 1)
	s := openAt(t, urls, nil)
	mustSet(t, s, command("a", v9001, topology.Liked))
	stopFirst := startSealer(t, urls[0], nil)
	awaitProofs(t, urls[0], 2)
	startSealer(t, urls[0], nil)
	awaitProofs(t, urls[0], 4)
	stopFirst()
	before, _ := seals(t, urls[0])
	awaitProofs(t, urls[0], len(before)+3)
	// Its connection is lost at any point; numbers stay dense (checked in seals).
	conn := dial(t, urls[0])
	for range 20 {
		if _, err := conn.Exec(context.Background(), `
			SELECT pg_terminate_backend(l.pid) FROM pg_locks l
			WHERE l.locktype = 'advisory' AND l.granted AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
			  AND (l.classid::bigint << 32 | l.objid::bigint) = $1`, int64(sealerKey)); err != nil {
			t.Fatal(err)
		}
		before, _ := seals(t, urls[0])
		awaitProofs(t, urls[0], len(before)+1)
	}
	checkProofs(t, urls[0])
}

func TestASealGivesWayToALongTransaction(t *testing.T) {
	urls := migrated(t, 1)
	s := openAt(t, urls, nil)
	tx, err := dial(t, urls[0]).Begin(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	_, err = tx.Exec(context.Background(), `
		INSERT INTO outbox (aggregatetype, aggregateid, type, payload, source_shard, created_at)
		VALUES ('relation', 'x', 'RelationChanged', '{"eventId": "late"}', 0, now())`)
	if err != nil {
		t.Fatal(err)
	}
	reg := prometheus.NewRegistry()
	startSealer(t, urls[0], func(c *SealerConfig) { c.Registerer = reg; c.LockTimeout = 10 * time.Millisecond })
	testenv.Eventually(t, 20*time.Second, func() error {
		if n := counter(t, reg, "tidemark_relations_seals_total", "skipped"); n < 3 {
			return fmt.Errorf("%v seals were skipped", n)
		}
		return nil
	})
	mustSet(t, s, command("a", v9001, topology.Liked)) // writers go on meanwhile
	if n := counter(t, reg, "tidemark_relations_seals_total", "sealed"); n != 0 {
		t.Errorf("%v seals beside an open transaction", n)
	}
	if err := tx.Commit(context.Background()); err != nil {
		t.Fatal(err)
	}
	awaitProofs(t, urls[0], 1)
	_, proofs := seals(t, urls[0])
	if proofs[0].Rows != 2 {
		t.Errorf("the first interval has %d rows, want 2", proofs[0].Rows)
	}
}

func counter(t *testing.T, reg *prometheus.Registry, name, label string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if f.GetName() == name && l.GetValue() == label {
					return m.GetCounter().GetValue()
				}
			}
		}
	}
	return 0
}

func TestASealThatWasLeftUnprovenIsProvenOnce(t *testing.T) {
	urls := migrated(t, 1)
	s := openAt(t, urls, nil)
	conn := dial(t, urls[0])
	for i := range 3 {
		mustSet(t, s, command(fmt.Sprint(i), relation(topology.Like, "u", fmt.Sprint(i)), topology.Liked))
		sealed, err := seal(context.Background(), conn, 0, time.Second)
		if err != nil || sealed.number != uint64(i+1) || sealed.held < 0 || sealed.wait < 0 {
			t.Fatalf("%+v: %v", sealed, err)
		}
	}
	iv, found, err := nextUnproven(context.Background(), conn)
	if err != nil || !found || iv.seal != 1 {
		t.Fatalf("%+v %v %v", iv, found, err)
	}
	for range 2 { // the second is the retry of a lost answer
		if err := prove(context.Background(), conn, 0, iv); err != nil {
			t.Fatal(err)
		}
	}
	startSealer(t, urls[0], nil)
	awaitProofs(t, urls[0], 4)
	checkProofs(t, urls[0])
}

func TestSealerWaitsForPostgres(t *testing.T) {
	urls := migrated(t, 1)
	way, there := newLink(t, urls[0])
	startSealer(t, there, nil)
	way.mend(t)
	awaitProofs(t, urls[0], 1)
	way.cut()
	before, _ := seals(t, urls[0])
	way.mend(t)
	awaitProofs(t, urls[0], len(before)+2)
	checkProofs(t, urls[0])
}

func TestSealerRefusesBadConfigurationAndOtherShards(t *testing.T) {
	for name, c := range map[string]SealerConfig{
		"url":      {URL: "postgres://%zz"},
		"interval": {URL: "postgres://localhost/x", Interval: time.Nanosecond},
		"timeout":  {URL: "postgres://localhost/x", LockTimeout: -time.Second},
	} {
		if _, err := NewSealer(c); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	url := migrated(t, 1)[0]
	s, err := NewSealer(SealerConfig{URL: url, Shard: 3})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.session(context.Background(), func() {}); err == nil || !strings.Contains(err.Error(), "says that it is shard 0") {
		t.Errorf("sealing another shard's database: %v", err)
	}
	var none int
	err = dial(t, url).QueryRow(context.Background(), "SELECT number FROM seal").Scan(&none)
	if !errors.Is(err, pgx.ErrNoRows) {
		t.Errorf("seal %d (%v)", none, err)
	}
}
