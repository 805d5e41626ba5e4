//go:build real

package main

import (
	"bytes"
	"fmt"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/tidemark/tidemark/emitters/cdc"
	"github.com/tidemark/tidemark/internal/testenv"
	"github.com/tidemark/tidemark/processors/intake"
	"github.com/tidemark/tidemark/topology"
)

// processed are the times when a feed handled a record: the only difference
// that there may be.
var processed = regexp.MustCompile(`"ts_ms":\d+,"ts_us":\d+,"ts_ns":\d+}$`)

func normalised(value []byte) []byte {
	return processed.ReplaceAll(value, []byte(`"ts_ms":0,"ts_us":0,"ts_ns":0}`))
}

// newRunningFeeds are feeds of which each shard has both at work.
func newRunningFeeds(t *testing.T) *feeds {
	f := newFeeds(t)
	f.startDebezium()
	for shard, url := range f.urls {
		if err := cdc.EnsureSlot(t.Context(), url, f.slot("built_in", shard)); err != nil {
			t.Fatal(err)
		}
	}
	f.stop = f.startBuiltIn()
	return f
}

// compare waits until both topics have all rows of the outboxes and compares
// them record by record; it returns how often intake came to which outcome.
func (f *feeds) compare() map[intake.Outcome]int {
	f.t.Helper()
	rows, began := f.rows(), time.Now()
	for _, topo := range []*topology.Topology{f.builtIn, f.other} {
		awaitEnds(f.t, topo.Topic(topology.CDC), rows)
		f.t.Logf("%s complete after %v", topo.Topic(topology.CDC), time.Since(began).Round(time.Millisecond))
	}
	ours := readTopic(f.t.Context(), f.t, f.builtIn.Topic(topology.CDC), rows)
	theirs := readTopic(f.t.Context(), f.t, f.other.Topic(topology.CDC), rows)
	outcomes := map[intake.Outcome]int{}
	for shard := range f.urls {
		compareRecords(f.t, ours[shard], theirs[shard])
		f.compareEffects(ours[shard], theirs[shard], outcomes)
	}
	f.t.Logf("outbox rows by shard %v, outcomes %v", rows, outcomes)
	return outcomes
}

// rows are the outbox rows by shard.
func (f *feeds) rows() map[int]int64 {
	f.t.Helper()
	rows := map[int]int64{}
	for shard := range f.urls {
		var n int64
		if err := f.query(shard, &n, "SELECT count(*) FROM outbox"); err != nil {
			f.t.Fatal(err)
		}
		rows[shard] = n
	}
	return rows
}

// B2: the built-in emitter and Debezium write the same records, byte for byte
// but for the time of processing, in the same order into the same partitions,
// intake makes the same of them, and what the projection has in the end, every
// relation and every bucket, is the same.
func TestB2BothFeedsWriteTheSameRecords(t *testing.T) {
	f := newRunningFeeds(t)
	startCounting(t, f.builtIn)
	startCounting(t, f.other)
	f.write(allCommands)
	outcomes := f.compare()
	f.compareState()
	for _, outcome := range []intake.Outcome{intake.Changed, intake.Sealed, intake.Proven} {
		if outcomes[outcome] == 0 {
			t.Errorf("no record led to %s: the test shows less than it should", outcome)
		}
	}
	if n := outcomes[intake.Quarantined]; n > 0 {
		t.Errorf("%d records of the relation store were quarantined", n)
	}
}

// B2: the same of rows that no relation store writes, and of transactions that
// overlap, are large, roll back a part or hold a logical message.
func TestB2BothFeedsWriteTheSameOddRecords(t *testing.T) {
	f := newRunningFeeds(t)
	small, large := f.connect(0), f.connect(0)
	run := func(conn *pgx.Conn, sql string, args ...any) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), sql, args...); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	insert := func(conn *pgx.Conn, id, payload, createdAt string) {
		t.Helper()
		run(conn, `INSERT INTO outbox (aggregatetype, aggregateid, type, payload, source_shard, created_at) VALUES ('relation', $1, 'RelationChanged', $2, 0, $3::text::timestamptz)`, id, payload, createdAt)
	}
	bulk := `INSERT INTO outbox (aggregatetype, aggregateid, type, payload, source_shard, created_at)
		SELECT 'relation', $1 || g, 'RelationChanged', jsonb_build_object('n', g, 'x', repeat('x', 300)), 0, now() FROM generate_series(1, 600) g`
	for _, sql := range []string{
		`CREATE TABLE outbox_early PARTITION OF outbox FOR VALUES FROM (MINVALUE) TO ('2020-01-01')`,
		`CREATE TABLE outbox_late PARTITION OF outbox FOR VALUES FROM ('2100-01-01') TO (MAXVALUE)`,
	} {
		run(small, sql)
	}
	run(large, `BEGIN`)
	run(large, bulk, "large")
	for _, at := range []string{
		"2019-12-31 10:20:30.123456+00", "2019-12-31 10:20:30.1+02", "2019-12-31 10:20:00+00", "2019-12-31 00:00:00.000001+00",
		"12026-08-19 10:20:30.5+00", "0001-12-31 23:59:59+00 BC", "0044-03-15 12:00:00+00 BC", "infinity", "-infinity",
	} {
		insert(small, "like:u:"+at, `{}`, at)
	}
	for _, id := range append(oddIDs, "", "\x01\x1f\b\f\n\r\t\x7f") {
		insert(small, id, `{"quote": "\"", "text": "赞 é 😀\n\u2028\u0001", "big": 1e300, "x": null}`, "2019-12-31")
	}
	run(large, `SAVEPOINT part`)
	run(large, bulk, "undone")
	run(large, `ROLLBACK TO part`)
	insert(large, "after the savepoint", `null`, "2019-12-31")
	run(large, `SELECT pg_logical_emit_message(true, 'somebody', 'else''s message')`)
	insert(small, "toasted", `{"x": "`+strings.Repeat("赞\\n", 30_000)+`"}`, "2019-12-31")
	run(large, `COMMIT`)
	run(small, `UPDATE outbox SET type = 'x' WHERE aggregateid = 'toasted'`)
	run(small, `DELETE FROM outbox_early WHERE aggregateid = 'none'`)
	insert(small, "last", `{}`, "2019-12-31")
	if outcomes := f.compare(); outcomes[intake.Quarantined] == 0 {
		t.Errorf("outcomes %v: odd rows are not for counting", outcomes)
	}
	f.checkNoOtherTopics()
}

// B2, B4: a feed that is restarted under load repeats records at most; the
// first copies are those of the other feed. Only what the first transaction after
// a restart, which may have many rows, says of the commit before it may differ: the built-in emitter, which
// keeps no position but the slot's, then names the slot's, which lies between
// that commit and the record's own.
func TestB2FeedsRestart(t *testing.T) {
	f := newRunningFeeds(t)
	const restarts = 2
	for range restarts {
		var writing sync.WaitGroup
		writing.Go(f.writeSome)
		f.restartDebezium()
		f.stop()
		f.stop = f.startBuiltIn()
		writing.Wait()
	}
	rows := f.rows()
	ours := f.awaitFirst(f.builtIn.Topic(topology.CDC), rows)
	theirs := f.awaitFirst(f.other.Topic(topology.CDC), rows)
	for shard := range f.urls {
		checkPositionsRise(t, ours[shard])
		checkPositionsRise(t, theirs[shard])
		first := map[string]bool{} // transactions after a restart
		for i := range ours[shard] {
			a, b := ours[shard][i].Value, theirs[shard][i].Value
			tx := string(transaction.Find(a))
			if !bytes.Equal(normalised(a), normalised(b)) && (first[tx] || len(first) < restarts) {
				first[tx] = true
				ours[shard][i].Value, theirs[shard][i].Value = withoutPrevious(a), withoutPrevious(b)
			}
		}
		compareRecords(t, ours[shard], theirs[shard])
	}
}

// B2, B4: on one slot and one topic either feed goes on where the other was
// stopped, there and back: no row is missing, and the positions of the first
// copies rise. What was written while no feed ran comes too.
func TestB2SwitchFeeds(t *testing.T) {
	f := newFeeds(t)
	f.share()
	for shard, url := range f.urls {
		if err := cdc.EnsureSlot(t.Context(), url, f.slot("", shard)); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		stop := f.startBuiltIn()
		f.writeSome()
		stop()
		f.writeSome()
		f.startDebezium()
		f.writeSome()
		f.stopDebezium()
		f.writeSome()
	}
	f.startBuiltIn()
	for _, records := range f.awaitFirst(f.other.Topic(topology.CDC), f.rows()) {
		t.Logf("partition %d: %d records do not know the commit before them", records[0].Partition, checkPositionsRise(t, records))
	}
}

var sequence = regexp.MustCompile(`"sequence":"\[(null|\\"(\d+)\\"),\\"(\d+)\\"\]"`)

var transaction = regexp.MustCompile(`"txId":\d+`)

// withoutPrevious leaves the position of the change itself.
func withoutPrevious(value []byte) []byte {
	return sequence.ReplaceAll(value, []byte(`"sequence":"[$3]"`))
}

// checkPositionsRise: (previous commit, change) orders a shard's records. The
// change may lie before the previous commit, since transactions overlap. A
// feed that has seen no commit yet says null of the previous one; returns how
// many records do, which have no place in the order.
func checkPositionsRise(t *testing.T, records []topology.Record) (unknown int) {
	t.Helper()
	var last [2]uint64
	for _, r := range records {
		m := sequence.FindSubmatch(r.Value)
		if m == nil {
			t.Fatalf("no sequence in %s", r.Value)
		}
		if string(m[1]) == "null" {
			unknown++
			continue
		}
		previous, _ := strconv.ParseUint(string(m[2]), 10, 64) // digits, as the pattern says
		lsn, err := strconv.ParseUint(string(m[3]), 10, 64)
		if err != nil || previous < last[0] || previous == last[0] && lsn <= last[1] {
			t.Fatalf("%s, partition %d, offset %d: position (%d, %d) after %v: %v", r.Topic, r.Partition, r.Offset, previous, lsn, last, err)
		}
		last = [2]uint64{previous, lsn}
	}
	return unknown
}

// awaitFirst waits until every row is in the topic and returns the first copy
// of each, in order.
func (f *feeds) awaitFirst(topic string, rows map[int]int64) (first map[int][]topology.Record) {
	f.t.Helper()
	admin := kadm.NewClient(client(f.t))
	testenv.Eventually(f.t, patience, func() error {
		ends, err := admin.ListEndOffsets(f.t.Context(), topic)
		if err != nil {
			return err
		}
		read, repeated := readTopic(f.t.Context(), f.t, topic, endsOf(ends)), 0
		first = map[int][]topology.Record{}
		for p, records := range read {
			seen := map[string]bool{}
			for _, r := range records {
				if id := outboxID.FindString(string(r.Value)); !seen[id] {
					seen[id] = true
					first[p] = append(first[p], r)
				} else {
					repeated++
				}
			}
			if have := int64(len(first[p])); have != rows[p] {
				return fmt.Errorf("%s, partition %d has %d of %d rows", topic, p, have, rows[p])
			}
		}
		f.t.Logf("%s has all rows, and %d again", topic, repeated)
		return nil
	})
	return first
}

var outboxID = regexp.MustCompile(`"after":{"id":\d+`)

// checkNoOtherTopics: Debezium writes its heartbeat and the records, nothing
// else.
func (f *feeds) checkNoOtherTopics() {
	f.t.Helper()
	topics, err := kadm.NewClient(client(f.t)).ListTopics(f.t.Context())
	if err != nil {
		f.t.Fatal(err)
	}
	known := map[string]bool{"__debezium-heartbeat." + f.prefix: true}
	for _, s := range f.other.Streams {
		known[s.Topic] = true
	}
	for name := range topics {
		if strings.Contains(name, f.prefix) && !known[name] {
			f.t.Errorf("there is a topic %s", name)
		}
	}
}

// compareRecords reports the first differences only.
func compareRecords(t *testing.T, ours, theirs []topology.Record) {
	t.Helper()
	differences := 0
	for i := range ours {
		a, b := ours[i], theirs[i]
		if a.Key != b.Key || a.Partition != b.Partition || !bytes.Equal(normalised(a.Value), normalised(b.Value)) {
			if differences++; differences <= 3 {
				at := firstDifference(normalised(a.Value), normalised(b.Value))
				t.Errorf("partition %d, record %d, byte %d\nbuilt-in at %d: %s\n%s\nDebezium at %d: %s\n%s", a.Partition, i, at, a.Offset, a.Key, around(a.Value, at), b.Offset, b.Key, around(b.Value, at))
			}
		}
	}
	if differences > 0 {
		t.Errorf("%d of %d records differ", differences, len(ours))
	}
}

func firstDifference(a, b []byte) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	return min(len(a), len(b))
}

// around shows a long text near a place.
func around(text []byte, at int) []byte {
	if len(text) < 2000 {
		return text
	}
	return text[max(0, min(at, len(text))-200):min(at+200, len(text))]
}

// compareEffects feeds both to intake, as if they had come on one topic.
func (f *feeds) compareEffects(ours, theirs []topology.Record, outcomes map[intake.Outcome]int) {
	f.t.Helper()
	core, err := intake.NewCore(f.builtIn, topology.NewManifest(1, 1, 1, topology.DefaultBucketSpace(), f.builtIn.Config.CountPartitions),
		topology.NewReverseGeneration(1, f.builtIn.Config.LikerPartitions, f.builtIn.Config.ReverseShards))
	if err != nil {
		f.t.Fatal(err)
	}
	for i := range ours {
		theirs[i].Topic, theirs[i].Timestamp = ours[i].Topic, ours[i].Timestamp
		ours[i].Value, theirs[i].Value = normalised(ours[i].Value), normalised(theirs[i].Value)
		a, b := core.Apply(ours[i]), core.Apply(theirs[i])
		if !reflect.DeepEqual(a, b) {
			f.t.Fatalf("partition %d, record %d: effects\n%.1000v\nof the built-in emitter's,\n%.1000v\nof Debezium's", ours[i].Partition, i, a, b)
		}
		outcomes[b.Outcome]++
	}
}
