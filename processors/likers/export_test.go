package likers

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/tidemark/tidemark/internal/gokakit"
	"github.com/tidemark/tidemark/internal/newest"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// exportedList is one reverse shard of a target, its changes and an export of
// it.
type exportedList struct {
	*export
	rows    map[string]*tidemarkv1.LikerRow
	shown   []map[string]Entry // the list after each change
	atLast  int                // place in shown where the barrier has passed for all source shards
	barrier map[string]Entry   // the list at the barrier
	clock   int64
}

const exportSources = 2

func newExportedList() *exportedList {
	reverse := topology.NewReverseGeneration(1, 1, 1)
	e := newExport(ExportQuery{Barrier: "b1", Generation: 1, Kind: topology.Like, Target: "V1"}, reverse)
	return &exportedList{export: e, rows: map[string]*tidemarkv1.LikerRow{}, shown: []map[string]Entry{{}}, barrier: map[string]Entry{}}
}

func sourceOf(user string) int { return int(user[len(user)-1]) % exportSources }

// change toggles a user, or likes again with a later time.
func (l *exportedList) change(user string, s topology.State) {
	old := l.rows[user]
	if old == nil {
		old = &tidemarkv1.LikerRow{}
	}
	l.clock++
	c := change(old.GetRelation().GetVersion()+1, s)
	c.UserId, c.TargetId, c.Kind, c.StateChangedAtUs = user, "V1", tidemarkv1.Kind(topology.Like), 1+l.clock/3
	c.Position = &tidemarkv1.SourcePosition{Shard: uint32(sourceOf(user))}
	body := &tidemarkv1.LikerChange{Body: &tidemarkv1.LikerChange_Relation{Relation: c}}
	row := next(old, body)
	l.note(body, old, row)
	l.rows[user] = row
	list := maps.Clone(l.shown[len(l.shown)-1])
	delete(list, user)
	if at := row.GetRelation().CurrentLikedAtUs; at != 0 {
		list[user] = Entry{User: user, LikedAtUs: at, Version: row.GetRelation().Version}
	}
	l.shown = append(l.shown, list)
}

// pass has the barrier pass for a source shard.
func (l *exportedList) pass(source int, barrier string) {
	_, again := l.passed[source]
	w := &tidemarkv1.SourceWatermark{Shard: uint32(source), Seal: 7, BarrierId: barrier}
	l.note(&tidemarkv1.LikerChange{Body: &tidemarkv1.LikerChange_Watermark{Watermark: w}}, &tidemarkv1.LikerRow{}, nil)
	if barrier != l.query.Barrier || again {
		return
	}
	l.atLast = len(l.shown) - 1
	for user, e := range l.shown[l.atLast] {
		if sourceOf(user) == source {
			l.barrier[user] = e
		}
	}
}

// read reads a page from the list as it stood after some change.
func (l *exportedList) read(place int, after Frontier, limit int) (ExportPage, error) {
	all := slices.SortedFunc(maps.Values(l.shown[place]), newest.Compare)
	all = slices.DeleteFunc(all, func(e Entry) bool {
		return after != (Frontier{}) && newest.Compare(e, Entry{User: after.User, LikedAtUs: after.LikedAtUs}) <= 0
	})
	return l.at(0, newest.Part{Entries: all[:min(limit, len(all))], More: len(all) > limit}, after, limit)
}

// Whatever changes before, between and after the passages of a barrier, and
// while the pages are read, they tell the list at the barrier: each relation
// that was in it then, once, in order, and no other.
func TestAnExportIsTheListAtTheBarrier(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := newExportedList()
		l.pass(0, "another barrier")
		churn := func(name string) {
			for range rapid.IntRange(0, 25).Draw(t, name) {
				user := fmt.Sprintf("u%d", rapid.IntRange(0, 15).Draw(t, "user"))
				l.change(user, rapid.SampledFrom([]topology.State{topology.Liked, topology.Unliked}).Draw(t, "state"))
			}
		}
		churn("before")
		for source := range exportSources {
			l.pass(source, "b1")
			churn("between")
		}
		l.pass(0, "b1") // again, as after a replay
		var told []Entry
		for after, more := (Frontier{}), true; more; {
			churn("while reading")
			page, err := l.read(rapid.IntRange(l.atLast, len(l.shown)-1).Draw(t, "shown"), after, rapid.IntRange(1, 6).Draw(t, "limit"))
			if err != nil {
				t.Fatal(err)
			}
			told, after, more = append(told, page.Entries...), page.Next, page.More
		}
		if want := slices.SortedFunc(maps.Values(l.barrier), newest.Compare); !slices.Equal(told, want) {
			t.Fatalf("told %v\nwant %v", told, want)
		}
	})
}

// The list that is read behind the barrier without what changed is another one:
// the test above would see it.
func TestAListReadAfterTheBarrierIsAnother(t *testing.T) {
	l := newExportedList()
	l.change("u0", topology.Liked)
	l.change("u1", topology.Liked)
	l.pass(0, "b1")
	l.pass(1, "b1")
	l.change("u0", topology.Unliked)
	l.change("u2", topology.Liked)
	page, err := l.read(len(l.shown)-1, Frontier{}, 10)
	if err != nil {
		t.Fatal(err)
	}
	now := slices.SortedFunc(maps.Values(l.shown[len(l.shown)-1]), newest.Compare)
	if len(page.Entries) != 2 || slices.Equal(page.Entries, now) {
		t.Errorf("at the barrier %v, now %v", page.Entries, now)
	}
}

// An export that would remember too much says so; it does not tell a list
// without it.
func TestAnExportThatRemembersTooMuchIsGone(t *testing.T) {
	l := newExportedList()
	l.limit = 3
	l.pass(0, "b1")
	l.pass(1, "b1")
	for i := range 4 {
		l.change(fmt.Sprintf("u%d", i), topology.Liked)
	}
	if _, err := l.read(len(l.shown)-1, Frontier{}, 10); !errors.Is(err, ErrExportGone) {
		t.Errorf("read: %v", err)
	}
}

// An export that nobody reads is forgotten, and a partition has so many at once.
func TestExportsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var x exports
		part := &gokakit.Partition{}
		for i := range maxExports {
			if err := x.begin(part, newExport(ExportQuery{Barrier: fmt.Sprint(i)}, topology.ReverseGeneration{})); err != nil {
				t.Fatal(err)
			}
		}
		if err := x.begin(part, newExport(ExportQuery{Barrier: "one more"}, topology.ReverseGeneration{})); !errors.Is(err, errTooManyExports) {
			t.Errorf("one more: %v", err)
		}
		kept := x.get(part, "0")
		time.Sleep(exportPatience / 2)
		if _, err := kept.seals(0); err != nil {
			t.Fatal(err)
		}
		forgotten := x.get(part, "1")
		time.Sleep(exportPatience/2 + 1)
		if x.get(part, "0") != kept || x.get(part, "1") != nil || x.any.Load() != 1 {
			t.Errorf("%d are open", x.any.Load())
		}
		if _, err := forgotten.at(0, newest.Part{}, Frontier{}, 1); !errors.Is(err, ErrExportGone) {
			t.Errorf("a reader of a forgotten one: %v", err)
		}
		x.endAll(part)
		if x.any.Load() != 0 || len(x.open) != 0 {
			t.Errorf("%d are open", x.any.Load())
		}
	})
}
