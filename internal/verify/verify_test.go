package verify

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/tidemark/tidemark/internal/testenv"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

func TestMain(m *testing.M) { testenv.Main(m) }

var update = flag.Bool("update", false, "rewrite golden files")

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v; run go test ./internal/verify -update", err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs; run with -update and look at the diff\ngot:\n%s", path, got)
	}
}

var (
	u1V1 = topology.Relation{Kind: topology.Like, User: "u1", Target: "V1"}
	u2V1 = topology.Relation{Kind: topology.Like, User: "u2", Target: "V1"}
	u1V2 = topology.Relation{Kind: topology.Favorite, User: "u1", Target: "V2"}
)

func smallWorld() *world {
	w := newWorld()
	w.set(u1V1, topology.Liked, topology.Hiding{})
	w.set(u2V1, topology.Disliked, topology.Hiding{})
	w.set(u2V1, topology.Liked, topology.Hiding{})
	w.set(u1V2, topology.Favorited, topology.Hiding{})
	return w
}

// lagging has a fact that the projection does not have yet.
func lagging() *world {
	w := smallWorld()
	w.facts[u1V1] = Fact{Relation: u1V1, State: topology.Unliked, Version: 2, ChangedAtUs: 9}
	return w
}

// listBehind has a relation that the reverse index does not have yet.
func listBehind() *world {
	w := smallWorld()
	w.likes = w.likes[:len(w.likes)-1]
	return w
}

// wrong has a fault that no lag explains.
func wrong() *world {
	w := smallWorld()
	w.changeBucket(u1V2, func(b *tidemarkv1.BucketCount) { b.Active = 7 })
	return w
}

func TestVerdicts(t *testing.T) {
	broken := errors.New("no such host")
	notQuiet := func(context.Context) error { return errors.New("shard 2 is displayed up to seal 4 of 5") }
	quiet := func(context.Context) error { return nil }
	still := func(context.Context) (uint64, error) { return 7, nil }
	rising := func() func(context.Context) (uint64, error) {
		var n uint64
		return func(context.Context) (uint64, error) { n++; return n, nil }
	}
	secondTimeNotQuiet := func() func(context.Context) error {
		calls := 0
		return func(ctx context.Context) error {
			if calls++; calls > 1 {
				return notQuiet(ctx)
			}
			return nil
		}
	}
	for _, c := range []struct {
		name    string
		w       *world
		change  func(*Config)
		verdict Verdict
		reason  string
	}{
		{"equal", smallWorld(), nil, Equal, ""},
		{"empty", newWorld(), nil, Equal, ""},
		{"quiet and equal", smallWorld(), func(c *Config) { c.Quiet, c.Activity = quiet, still }, Equal, ""},
		{"equal though not quiet", smallWorld(), func(c *Config) { c.Quiet = notQuiet }, Equal, "shard 2"},
		{"quiet and behind", lagging(), func(c *Config) { c.Quiet, c.Activity = quiet, still }, Different, ""},
		{"vouched for and behind", lagging(), nil, Different, ""},
		{"not quiet and behind", lagging(), func(c *Config) { c.Quiet = notQuiet }, Unknown, "the feed is not quiet: shard 2"},
		{"behind while relations change", lagging(), func(c *Config) { c.Quiet, c.Activity = quiet, rising() }, Unknown, "changed during the comparison"},
		{"no longer quiet", lagging(), func(c *Config) { c.Quiet, c.Activity = secondTimeNotQuiet(), still }, Unknown, "shard 2"},
		{"activity not known", lagging(), func(c *Config) { c.Activity = func(context.Context) (uint64, error) { return 0, broken } }, Unknown, "reading the activity: no such host"},
		{"wrong though not quiet", wrong(), func(c *Config) { c.Quiet = notQuiet }, Different, "shard 2"},
		{"wrong and changing", wrong(), func(c *Config) { c.Activity = rising() }, Different, ""},
		{"facts not read", smallWorld(), func(c *Config) { c.Facts = func(context.Context, func(Fact) error) error { return broken } }, Unknown, "reading facts: no such host"},
		{"projection not read", smallWorld(), func(c *Config) {
			c.Projection = func(context.Context, func(int, string, []byte) error) error { return broken }
		}, Unknown, "reading the projection table: no such host"},
		{"likers not read", smallWorld(), func(c *Config) {
			c.Likers = func(context.Context, func(int, string, []byte) error) error { return broken }
		}, Unknown, "reading the likers table: no such host"},
		{"lists not compared", smallWorld(), func(c *Config) { c.Likers = nil }, Equal, ""},
		{"list behind, not quiet", listBehind(), func(c *Config) { c.Quiet = notQuiet }, Unknown, "shard 2"},
		{"list behind and quiet", listBehind(), func(c *Config) { c.Quiet, c.Activity = quiet, still }, Different, ""},
		{"display not read", smallWorld(), func(c *Config) {
			c.Display = func(context.Context, func(int, string, []byte) error) error { return broken }
		}, Unknown, "reading the display table"},
		{"too many", smallWorld(), func(c *Config) { c.MaxRelations = 2 }, Unknown, "more relations than"},
	} {
		t.Run(c.name, func(t *testing.T) {
			config := c.w.config()
			if c.change != nil {
				c.change(&config)
			}
			r := Run(t.Context(), config)
			if r.Verdict != c.verdict || !strings.Contains(r.Reason, c.reason) || (c.reason == "") != (r.Reason == "") {
				t.Errorf("%s, %q; want %s, %q; differences %+v", r.Verdict, r.Reason, c.verdict, c.reason, r.Differences)
			}
			if code := map[Verdict]int{Equal: 0, Different: 3, Unknown: 1}[c.verdict]; r.Verdict.ExitCode() != code {
				t.Errorf("exit code %d, want %d", r.Verdict.ExitCode(), code)
			}
		})
	}
}

func TestReportGolden(t *testing.T) {
	w := lagging()
	w.changeBucket(u1V2, func(b *tidemarkv1.BucketCount) { b.Active = -1 })
	w.displays["like:V1"].Active = 9
	config := w.config()
	table := config.Projection
	config.Projection = func(ctx context.Context, each func(int, string, []byte) error) error {
		if err := each(3, "0003|like:u1", []byte{0xff}); err != nil {
			return err
		}
		return table(ctx, each)
	}
	r := Run(t.Context(), config)
	r.Seconds = 1.5
	var b bytes.Buffer
	if err := r.WriteTable(&b); err != nil {
		t.Fatal(err)
	}
	golden(t, "report.txt", b.Bytes())
	b.Reset()
	if err := r.WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	var back Report
	if err := json.Unmarshal(b.Bytes(), &back); err != nil || back.Verdict != Different || len(back.Differences) != len(r.Differences) || back.Counts[Count] != r.Counts[Count] {
		t.Errorf("reads back as %+v, %v", back, err)
	}
}

func value(t *testing.T, m interface{ MarshalVT() ([]byte, error) }) []byte {
	t.Helper()
	b, err := m.MarshalVT()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestUnreadableRows(t *testing.T) {
	watermark := func(shard uint32) []byte {
		return value(t, &tidemarkv1.ProjectionRow{Body: &tidemarkv1.ProjectionRow_Watermark{Watermark: &tidemarkv1.SourceWatermark{Shard: shard}}})
	}
	checkpoint := value(t, &tidemarkv1.ProjectionRow{Body: &tidemarkv1.ProjectionRow_Checkpoint{Checkpoint: &tidemarkv1.PartialCheckpoint{}}})
	row := func(s topology.State, version uint64, b *tidemarkv1.BucketCount) []byte {
		return value(t, relationRow(Fact{State: s, Version: version}, 1, b))
	}
	bucket := &tidemarkv1.BucketCount{Active: 1, Seq: 1}
	key := topology.CountedKey(1, 2, u1V1)
	for _, c := range []struct {
		name      string
		partition int
		key       string
		value     []byte
		unread    int64
	}{
		{"relation", 1, key, row(topology.Liked, 1, bucket), 0},
		{"watermark", 1, topology.WatermarkKey(1, 3), watermark(3), 0},
		{"checkpoint", 1, topology.CheckpointKey(1), checkpoint, 0},
		{"tombstone", 1, key, nil, 1},
		{"no protobuf", 1, key, []byte{0xff}, 1},
		{"empty", 1, key, []byte{}, 1},
		{"version 0", 1, key, row(topology.Liked, 0, bucket), 1},
		{"foreign state", 1, key, row(topology.Following, 1, bucket), 1},
		{"unknown state", 1, key, row(99, 1, bucket), 1},
		{"no bucket", 1, key, row(topology.Liked, 1, nil), 1},
		{"no counted key", 1, "like:u1:V1", row(topology.Liked, 1, bucket), 1},
		{"relation under a watermark's key", 1, topology.WatermarkKey(1, 3), row(topology.Liked, 1, bucket), 1},
		{"watermark of another shard", 1, topology.WatermarkKey(1, 3), watermark(2), 1},
		{"watermark under a relation's key", 1, key, watermark(3), 1},
		{"watermark on another partition", 2, topology.WatermarkKey(1, 3), watermark(3), 1},
		{"checkpoint under another key", 1, topology.WatermarkKey(1, 3), checkpoint, 1},
		{"checkpoint on another partition", 2, topology.CheckpointKey(1), checkpoint, 1},
	} {
		t.Run("projection "+c.name, func(t *testing.T) {
			s := NewComparison(nil, 10)
			if err := s.Projection(c.partition, c.key, c.value); err != nil {
				t.Fatal(err)
			}
			if got := s.compare(10).counts[Unreadable]; got != c.unread {
				t.Errorf("%d unreadable, want %d", got, c.unread)
			}
		})
	}
	snapshot := value(t, &tidemarkv1.DisplayRow{Body: &tidemarkv1.DisplayRow_Snapshot{Snapshot: &tidemarkv1.DisplaySnapshot{}}})
	progress := value(t, &tidemarkv1.DisplayRow{Body: &tidemarkv1.DisplayRow_Progress{Progress: &tidemarkv1.PartitionProgress{Partition: 5}}})
	for _, c := range []struct {
		name   string
		key    string
		value  []byte
		unread int64
	}{
		{"snapshot", "like:V1", snapshot, 0},
		{"progress", topology.ProgressKey(0, 5), progress, 0},
		{"tombstone", "like:V1", nil, 1},
		{"no protobuf", "like:V1", []byte{0xff}, 1},
		{"no target", "V1", snapshot, 1},
		{"snapshot under a progress key", topology.ProgressKey(0, 5), snapshot, 1},
		{"progress under a target", "like:V1", progress, 1},
		{"progress of another partition", topology.ProgressKey(0, 6), progress, 1},
	} {
		t.Run("display "+c.name, func(t *testing.T) {
			s := NewComparison(nil, 10)
			if err := s.Display(0, c.key, c.value); err != nil {
				t.Fatal(err)
			}
			if got := s.compare(10).counts[Unreadable]; got != c.unread {
				t.Errorf("%d unreadable, want %d", got, c.unread)
			}
		})
	}
}

func TestFactsThatAreNone(t *testing.T) {
	for name, c := range map[string]struct {
		facts []Fact
		class Class
	}{
		"bad id":        {[]Fact{{topology.Relation{Kind: topology.Like, Target: "V1"}, topology.Liked, 1, 1, topology.Hiding{}}}, Unreadable},
		"foreign state": {[]Fact{{u1V1, topology.Following, 1, 1, topology.Hiding{}}}, Unreadable},
		"twice (I1)":    {[]Fact{{u1V1, topology.Liked, 1, 1, topology.Hiding{}}, {u1V1, topology.Liked, 1, 1, topology.Hiding{}}}, Conflict},
		"never changed": {[]Fact{{u1V1, topology.Unliked, 0, 0, topology.Hiding{}}}, ""},
	} {
		s := NewComparison(nil, 10)
		for _, f := range c.facts {
			if err := s.Fact(f); err != nil {
				t.Fatal(err)
			}
		}
		if got := s.compare(10).counts; (c.class == "") != (len(got) == 0) || c.class != "" && got[c.class] == 0 {
			t.Errorf("%s: %v, want %s", name, got, c.class)
		}
	}
}

// Many differences are counted all, and described only so many, the largest
// counts and the first names, the same ones each time.
func TestExamplesAreBounded(t *testing.T) {
	s := NewComparison(nil, 10_000)
	for i := range 1000 {
		r := topology.Relation{Kind: topology.Like, User: fmt.Sprintf("u%04d", i), Target: fmt.Sprintf("V%04d", i%100)}
		if err := s.Fact(Fact{r, topology.Liked, 1, 1, topology.Hiding{}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Fact(Fact{topology.Relation{Kind: topology.Like, User: "u9999", Target: "V0042"}, topology.Liked, 1, 1, topology.Hiding{}}); err != nil {
		t.Fatal(err)
	}
	got := s.compare(3)
	if got.counts[Count] != 100 || got.counts[RelationBelow] != 1001 || len(got.differences) != 6 {
		t.Fatalf("%v, %d described", got.counts, len(got.differences))
	}
	var shown []string
	for _, d := range got.differences {
		shown = append(shown, string(d.Class)+" "+d.Target+" "+d.User)
	}
	want := "count V0042 |count V0000 |count V0001 |relation-below V0000 u0000|relation-below V0001 u0001|relation-below V0002 u0002"
	if strings.Join(shown, "|") != want {
		t.Errorf("shown %s", strings.Join(shown, "|"))
	}
}

// Reports of long or hostile keys stay short and on their line.
func TestUnreadableTextIsBounded(t *testing.T) {
	s := NewComparison(nil, 10)
	for range 200 {
		if err := s.Projection(0, "a\nb"+strings.Repeat("x", 10_000), nil); err != nil {
			t.Fatal(err)
		}
	}
	got := s.compare(1000)
	if got.counts[Unreadable] != 200 || len(got.differences) != maxTexts {
		t.Fatalf("%v, %d described", got.counts, len(got.differences))
	}
	if reason := got.differences[0].Reason; len(reason) > 300 || strings.Contains(reason, "\n") {
		t.Errorf("reason of %d bytes: %s", len(reason), reason)
	}
}

func TestUnreadableLikerRows(t *testing.T) {
	g := topology.NewReverseGeneration(1, worldPartitions, 16)
	place := g.Place(u1V1)
	at, key := int(place.Partition), topology.LikerKey(place, u1V1.Key())
	watermark := value(t, &tidemarkv1.LikerRow{Body: &tidemarkv1.LikerRow_Watermark{Watermark: &tidemarkv1.SourceWatermark{Shard: 3}}})
	for _, c := range []struct {
		name      string
		partition int
		key       string
		value     []byte
		unread    int64
	}{
		{"relation", at, key, value(t, likerRow(topology.Liked, 1, 5)), 0},
		{"watermark", 1, topology.WatermarkKey(1, 3), watermark, 0},
		{"tombstone", at, key, nil, 1},
		{"no protobuf", at, key, []byte{0xff}, 1},
		{"empty", at, key, []byte{}, 1},
		{"version 0", at, key, value(t, likerRow(topology.Liked, 0, 5)), 1},
		{"foreign state", at, key, value(t, likerRow(topology.Following, 1, 5)), 1},
		{"liked at no time", at, key, value(t, likerRow(topology.Liked, 1, 0)), 1},
		{"ended, with a time", at, key, value(t, likerRow(topology.Unliked, 2, 5)), 1},
		{"no liker key", at, "like:u1:V1", value(t, likerRow(topology.Liked, 1, 5)), 1},
		{"watermark of another shard", 1, topology.WatermarkKey(1, 2), watermark, 1},
		{"watermark of another partition", 2, topology.WatermarkKey(1, 3), watermark, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := NewComparison(nil, 10)
			s.CompareLists(g)
			if err := s.Likers(c.partition, c.key, c.value); err != nil {
				t.Fatal(err)
			}
			if got := s.compare(20); got.counts[Unreadable] != c.unread {
				t.Errorf("%v: %+v", got.counts, got.differences)
			}
		})
	}
}

// The bytes per relation of the package comment.
func TestMemoryPerRelation(t *testing.T) {
	if testing.Short() {
		t.Skip("short")
	}
	t.Run("counts", func(t *testing.T) { memoryPerRelation(t, false, 300, "250") })
	t.Run("and lists", func(t *testing.T) { memoryPerRelation(t, true, 400, "250, and 130 for lists") })
}

func memoryPerRelation(t *testing.T, lists bool, most float64, comment string) {
	const n = 200_000
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	s := NewComparison(nil, n)
	g := topology.NewReverseGeneration(1, worldPartitions, 16)
	if lists {
		s.CompareLists(g)
	}
	liker := value(t, likerRow(topology.Liked, 1, 1))
	row := value(t, relationRow(Fact{State: topology.Liked, Version: 1}, 1, &tidemarkv1.BucketCount{Active: 1, Seq: 1}))
	for i := range n {
		r := topology.Relation{Kind: topology.Like, User: fmt.Sprint("u", i%50_000), Target: fmt.Sprint("V", i/5)}
		if err := s.Projection(0, topology.CountedKey(0, i%1024, r), row); err != nil {
			t.Fatal(err)
		}
		if err := s.Fact(Fact{r, topology.Liked, 1, 1, topology.Hiding{}}); err != nil {
			t.Fatal(err)
		}
		if !lists {
			continue
		}
		place := g.Place(r)
		if err := s.Likers(int(place.Partition), topology.LikerKey(place, r.Key()), liker); err != nil {
			t.Fatal(err)
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	each := float64(after.HeapAlloc-before.HeapAlloc) / n
	t.Logf("%.0f bytes per relation", each)
	if each > most {
		t.Errorf("%.0f bytes per relation, the package comment says about %s", each, comment)
	}
	runtime.KeepAlive(s)
}

func TestProgressIsTold(t *testing.T) {
	config := smallWorld().config()
	config.Quiet = func(context.Context) error { return nil }
	var told []string
	config.Progress = func(p Progress) { told = append(told, fmt.Sprint(p.Stage, " ", p.Rows)) }
	Run(t.Context(), config)
	if got := strings.Join(told, ", "); got != "quiet 0, projection 4, likers 4, facts 3, display 6" {
		t.Errorf("told %s", got)
	}
}

// No key or value that a broker can hold ends the comparison.
func FuzzRows(f *testing.F) {
	row, _ := relationRow(Fact{State: topology.Liked, Version: 1}, 1, &tidemarkv1.BucketCount{Active: 1, Seq: 1}).MarshalVT()
	f.Add(topology.CountedKey(1, 2, u1V1), row, 1)
	f.Add("like:V1", []byte{0x0a, 0x00}, 0)
	f.Add(topology.ProgressKey(0, 5), []byte{0x12, 0x00}, 0)
	f.Fuzz(func(t *testing.T, key string, value []byte, partition int) {
		s := NewComparison(nil, 10)
		for range 2 {
			if err := s.Projection(partition, key, value); err != nil {
				t.Fatal(err)
			}
			if err := s.Display(partition, key, value); err != nil {
				t.Fatal(err)
			}
		}
		for _, d := range s.compare(10).differences {
			if d.Reason == "" {
				t.Errorf("a difference without a reason: %+v", d)
			}
		}
	})
}
