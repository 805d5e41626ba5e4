package relations

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark/tidemark/internal/testenv"
	"github.com/tidemark/tidemark/topology"
)

// old is a shard with rows in yesterday's outbox partition, all of them sealed,
// proven and confirmed by a slot.
type old struct {
	t        *testing.T
	url      string
	db       *pgx.Conn
	slot     string
	now      time.Time // when yesterday's rows are just older than the retention
	last     int64     // id of yesterday's last row
	config   RetentionConfig
	reported string
	reg      *prometheus.Registry
}

func newOld(t *testing.T) *old {
	o := &old{t: t, url: migrated(t, 1)[0], slot: fmt.Sprintf("old_%d", time.Now().UnixNano())}
	o.db = dial(t, o.url)
	o.exec("SELECT pg_create_logical_replication_slot($1, 'pgoutput')", o.slot)
	o.exec(`INSERT INTO outbox (aggregatetype, aggregateid, type, payload, source_shard, created_at)
		SELECT 'relation', 'like:u:V' || g, 'RelationChanged', jsonb_build_object('eventId', g), 0, date_trunc('day', now() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC' - interval '1 hour'
		FROM generate_series(1, 30) g`)
	if err := o.db.QueryRow(t.Context(), "SELECT max(id) FROM outbox").Scan(&o.last); err != nil {
		t.Fatal(err)
	}
	stop := startSealer(t, o.url, nil)
	testenv.Eventually(t, 20*time.Second, func() error {
		if _, proofs := seals(t, o.url); len(proofs) < 3 {
			return errors.New("too few proofs")
		}
		return nil
	})
	stop()
	o.confirm()
	o.now = time.Now().UTC().Truncate(day).Add(7*day + time.Hour)
	o.config = RetentionConfig{URL: o.url, Outbox: 7 * day, Commands: 30 * day, Report: func(s string) { o.reported = s }}
	return o
}

func (o *old) exec(sql string, args ...any) {
	o.t.Helper()
	if _, err := o.db.Exec(o.t.Context(), sql, args...); err != nil {
		o.t.Fatalf("%s: %v", sql, err)
	}
}

func (o *old) confirm() {
	o.t.Helper()
	o.exec("SELECT pg_replication_slot_advance($1, pg_current_wal_lsn())", o.slot)
}

func (o *old) sweep() {
	o.t.Helper()
	o.reg = prometheus.NewRegistry()
	o.config.Registerer = o.reg
	r, err := NewRetention(o.config)
	if err != nil {
		o.t.Fatal(err)
	}
	if err := r.sweep(o.t.Context(), dial(o.t, o.url), o.now); err != nil {
		o.t.Fatal(err)
	}
}

func (o *old) partitions(table string) map[string]bool {
	o.t.Helper()
	i := slices.IndexFunc(timeTables, func(t timeTable) bool { return t.name == table })
	have, err := attached(o.t.Context(), o.db, timeTables[i])
	if err != nil {
		o.t.Fatal(err)
	}
	return have
}

func (o *old) yesterday() string {
	return timeTables[0].partition(time.Now().UTC().Truncate(day).Add(-day))
}

func (o *old) wantKept(reason string) {
	o.t.Helper()
	o.sweep()
	if !o.partitions("outbox")[o.yesterday()] {
		o.t.Fatal("the partition is gone")
	}
	if !strings.Contains(o.reported, o.yesterday()+" stays: ") || !strings.Contains(o.reported, reason) {
		o.t.Errorf("reported %q, want %q", o.reported, reason)
	}
	o.wantMetric("tidemark_relations_partitions_overdue", 1)
}

func (o *old) wantMetric(name string, want float64) {
	o.t.Helper()
	families, err := o.reg.Gather()
	if err != nil {
		o.t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.Metric {
			for _, l := range m.Label {
				if f.GetName() == name && l.GetValue() == "outbox" {
					if got := m.GetGauge().GetValue() + m.GetCounter().GetValue(); got != want {
						o.t.Errorf("%s is %v, want %v", name, got, want)
					}
					return
				}
			}
		}
	}
	o.t.Errorf("no metric %s", name)
}

func TestAnOldPartitionThatNobodyNeedsGoes(t *testing.T) {
	o := newOld(t)
	o.exec("DELETE FROM outbox WHERE id = 1")
	o.exec("UPDATE outbox_deleted SET named = true, deleted_at = deleted_at - interval '1 day'")
	before := o.partitions("outbox")
	o.sweep()
	after := o.partitions("outbox")
	if after[o.yesterday()] || len(after) != len(before)-1 || o.reported != "" {
		t.Fatalf("%d partitions of %d, reported %q", len(after), len(before), o.reported)
	}
	o.wantMetric("tidemark_relations_partitions_overdue", 0)
	o.wantMetric("tidemark_relations_partitions_dropped_total", 1)
	var trail int
	if err := o.db.QueryRow(t.Context(), "SELECT count(*) FROM outbox_deleted").Scan(&trail); err != nil || trail != 0 {
		t.Errorf("the trail has %d rows, %v", trail, err)
	}
	o.sweep() // nothing more
	s := openAt(t, []string{o.url}, nil)
	mustSet(t, s, command("op", relation(topology.Like, "u", "V"), topology.Liked))
}

func TestAYoungPartitionStays(t *testing.T) {
	o := newOld(t)
	o.now = o.now.Add(-2 * time.Hour)
	o.sweep()
	if !o.partitions("outbox")[o.yesterday()] || o.reported != "" {
		t.Errorf("reported %q", o.reported)
	}
}

func TestAPartitionThatIsNeededStaysAndSaysWhy(t *testing.T) {
	o := newOld(t)

	o.exec("UPDATE seal SET proven = false WHERE number = 1")
	o.wantKept("seal 1 is not proven")
	o.exec("UPDATE seal SET proven = true")

	o.config.Holds = func(context.Context, int) ([]Hold, error) { return []Hold{{o.last, "a gap names it"}}, nil }
	o.wantKept("a gap names it")
	o.config.Holds = func(context.Context, int) ([]Hold, error) { return nil, errors.New("control is away") }
	o.wantKept("control is away")
	o.config.Holds = func(context.Context, int) ([]Hold, error) { return []Hold{{o.last + 1, "beyond"}}, nil }

	behind := o.slot + "_behind"
	o.exec("SELECT pg_create_logical_replication_slot($1, 'pgoutput')", behind)
	o.exec("UPDATE seal SET lsn = pg_current_wal_insert_lsn() + 1000000")
	o.wantKept("has not confirmed it")
	o.exec("UPDATE seal SET lsn = '0/1'")
	o.exec("SELECT pg_drop_replication_slot($1)", behind)
	o.exec("SELECT pg_drop_replication_slot($1)", o.slot)
	o.wantKept("no replication slot")
	o.exec("SELECT pg_create_logical_replication_slot($1, 'pgoutput')", o.slot)

	long := dial(t, o.url)
	if _, err := long.Exec(t.Context(), "BEGIN; LOCK TABLE outbox IN ROW EXCLUSIVE MODE"); err != nil {
		t.Fatal(err)
	}
	o.wantKept("a transaction is using table outbox")
	if _, err := long.Exec(t.Context(), "ROLLBACK"); err != nil {
		t.Fatal(err)
	}
	o.sweep()
	if o.partitions("outbox")[o.yesterday()] {
		t.Errorf("the partition stays: %q", o.reported)
	}
}

func TestCommandPartitionsGoByTheirOwnRetention(t *testing.T) {
	o := newOld(t)
	s := openAt(t, []string{o.url}, nil)
	c := command("op", relation(topology.Like, "u", "V"), topology.Liked)
	mustSet(t, s, c)
	o.now = time.Now().Add(20 * day)
	before := o.partitions("command")
	o.sweep()
	if len(o.partitions("command")) != len(before) {
		t.Error("a command partition went before its retention")
	}
	if !mustSet(t, s, c).Replayed {
		t.Error("the operation is not known any more")
	}
	o.now = time.Now().Add(40 * day)
	o.sweep()
	if len(o.partitions("command")) >= len(before) {
		t.Error("no command partition went")
	}
	if mustSet(t, s, c).Replayed {
		t.Error("the operation is still known")
	}
}

func TestPausedRetentionDropsLater(t *testing.T) {
	o := newOld(t)
	var paused atomic.Bool
	paused.Store(true)
	asked := make(chan struct{})
	o.config.Outbox = time.Nanosecond // yesterday's rows are older than that
	o.config.Paused = func() bool {
		select {
		case asked <- struct{}{}:
		default:
		}
		return paused.Load()
	}
	r, err := NewRetention(o.config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	<-asked
	<-asked
	if !o.partitions("outbox")[o.yesterday()] {
		t.Error("a partition was dropped while nothing was to be")
	}
	paused.Store(false)
	testenv.Eventually(t, 20*time.Second, func() error {
		if o.partitions("outbox")[o.yesterday()] {
			return fmt.Errorf("yesterday's partition is still there: %q", o.reported)
		}
		return nil
	})
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestRetentionRunsOncePerShardAndStops(t *testing.T) {
	o := newOld(t)
	o.config.Interval = time.Millisecond
	var stops []func()
	for range 2 {
		r, err := NewRetention(o.config)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.Run(ctx) }()
		stops = append(stops, func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
		o.config.Report = nil
	}
	for _, stop := range stops {
		stop()
	}
	if _, err := NewRetention(RetentionConfig{URL: o.url, Outbox: -1}); err == nil {
		t.Error("a retention below 0 is taken")
	}
	if _, err := NewRetention(RetentionConfig{URL: "no url"}); err == nil {
		t.Error("a bad URL is taken")
	}
}

func TestPartitionNamesThatAreNotOursAreLeftAlone(t *testing.T) {
	have := map[string]bool{"outbox_20200101": true, "outbox_archive": true, "outbox_20209901": true, "command_20200101": true}
	got := timeTables[0].endedBefore(have, time.Date(2020, 1, 2, 0, 0, 0, 0, time.UTC))
	if !slices.Equal(got, []string{"outbox_20200101"}) {
		t.Errorf("ended: %v", got)
	}
	if got = timeTables[0].endedBefore(have, time.Date(2020, 1, 1, 23, 59, 0, 0, time.UTC)); len(got) != 0 {
		t.Errorf("not ended: %v", got)
	}
}
