package likers

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tidemark/tidemark/internal/newest"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// Errors of exports, beside those of Page.
var (
	// ErrBarrierAhead says that the barrier has not passed the partition, or is
	// not yet in what pages show: another moment may answer.
	ErrBarrierAhead = errors.New("the barrier has not passed here yet")
	// ErrExportGone says that what the list was at the barrier is not known here,
	// and never will be.
	ErrExportGone = errors.New("the list at the barrier is gone")
)

// Bounds of what exports may cost.
const (
	// exportPatience is how long an export stays open that nobody reads.
	exportPatience = 10 * time.Minute
	// maxExports are open on a partition at once.
	maxExports = 16
	// maxChanged is how many relations an export remembers of one partition: some
	// 50 MB with ids of 20 bytes.
	maxChanged = 250_000
)

// ExportQuery names an export on one partition.
type ExportQuery struct {
	Barrier    string // id
	Generation uint32
	Kind       topology.Kind
	Target     string
	Partition  int
}

// ExportPage is a part of a reverse shard as it was at a barrier.
type ExportPage struct {
	Entries []Entry // newest first
	// Next is where to read on when there is More: what stands between it and the
	// last entry was not in the list at the barrier.
	Next Frontier
	More bool
}

// export remembers what a target's relations on one partition were when a
// barrier passed it, so that the list can be told as it was then while it goes
// on. Only what changes afterwards is remembered: what was not changed is read
// from the list itself.
//
//	list at the barrier = list now, without the users who have changed since,
//	                      and with what those were
//
// That is exact at any later moment if the list is read first and the changes
// after it: they are then at least those that the list shows. And it may be read
// in pages: a user who has not changed stands where it stood, and one who
// changes later is told at the place where it stood at the barrier, by the one
// reading or the other.
//
// A barrier passes for each source shard at an offset of its own. Until then the
// shard's changes are of before it.
type export struct {
	query   ExportQuery
	reverse topology.ReverseGeneration
	limit   int // of changed

	mu      sync.Mutex
	gone    string         // why nothing can be told any more
	passed  map[int]uint64 // seal that is the barrier's, by source shard
	changed map[string]struct{}
	were    map[int]*were // by reverse shard
	expire  *time.Timer
}

// were has what changed users were at the barrier, if they were in the list.
type were struct {
	sorted []Entry
	fresh  []Entry // not among sorted yet
}

func newExport(q ExportQuery, reverse topology.ReverseGeneration) *export {
	return &export{query: q, reverse: reverse, limit: maxChanged, passed: map[int]uint64{}, changed: map[string]struct{}{}, were: map[int]*were{}}
}

// note tells of a change before anybody sees it. changes is nil for one that
// alters nothing.
func (e *export) note(change *tidemarkv1.LikerChange, old *tidemarkv1.LikerRow, changes *tidemarkv1.LikerRow) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if w := change.GetWatermark(); w != nil {
		if _, again := e.passed[int(w.Shard)]; w.BarrierId == e.query.Barrier && !again {
			e.passed[int(w.Shard)] = w.Seal
		}
		return
	}
	c := change.GetRelation()
	if changes == nil || e.gone != "" || c.TargetId != e.query.Target || topology.Kind(c.Kind) != e.query.Kind {
		return
	}
	if _, after := e.passed[int(c.GetPosition().GetShard())]; !after {
		return
	}
	if _, known := e.changed[c.UserId]; known {
		return
	}
	e.remember(strings.Clone(c.UserId), old.GetRelation())
}

func (e *export) remember(user string, r *tidemarkv1.LikerRelation) {
	if len(e.changed) == e.limit {
		e.end(fmt.Sprintf("more than %d relations have changed since the barrier", e.limit))
		return
	}
	e.changed[user] = struct{}{}
	if r.GetCurrentLikedAtUs() == 0 {
		return
	}
	shard := e.reverse.Shard(user)
	if e.were[shard] == nil {
		e.were[shard] = &were{}
	}
	w := e.were[shard]
	w.fresh = append(w.fresh, Entry{User: user, LikedAtUs: r.CurrentLikedAtUs, Version: r.Version})
}

// end forgets everything; the lock is held.
func (e *export) end(why string) {
	e.gone, e.changed, e.were = why, nil, nil
}

// seals are those with which the barrier passed, when it has for every shard.
func (e *export) seals(shards int) (map[int]uint64, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.expire.Reset(exportPatience)
	switch {
	case e.gone != "":
		return nil, fmt.Errorf("partition %d: %w: %s", e.query.Partition, ErrExportGone, e.gone)
	case len(e.passed) < shards:
		return nil, fmt.Errorf("partition %d: %w: it has passed for %d of %d source shards", e.query.Partition, ErrBarrierAhead, len(e.passed), shards)
	}
	return maps.Clone(e.passed), nil
}

// at gives the part of a reverse shard behind after as it was at the barrier.
// live is the list's part there, read before.
func (e *export) at(shard int, live newest.Part, after Frontier, limit int) (ExportPage, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.gone != "" {
		return ExportPage{}, fmt.Errorf("partition %d: %w: %s", e.query.Partition, ErrExportGone, e.gone)
	}
	var end *Entry // what stands behind it is not in live
	if n := len(live.Entries); live.More && n > 0 {
		end = &live.Entries[n-1]
	}
	stayed := make([]Entry, 0, len(live.Entries))
	for _, entry := range live.Entries {
		if _, changed := e.changed[entry.User]; !changed {
			stayed = append(stayed, entry)
		}
	}
	page := newest.Merge([]newest.Part{{Entries: stayed}, {Entries: e.were[shard].between(after, end)}}, limit)
	out := ExportPage{Entries: page.Entries, More: page.More || end != nil}
	switch {
	case page.More:
		last := page.Entries[len(page.Entries)-1]
		out.Next = Frontier{last.LikedAtUs, last.User}
	case end != nil:
		out.Next = Frontier{end.LikedAtUs, end.User}
	}
	return out, nil
}

// between gives the entries behind after, up to end.
func (w *were) between(after Frontier, end *Entry) []Entry {
	if w == nil {
		return nil
	}
	if len(w.fresh) > 0 {
		slices.SortFunc(w.fresh, newest.Compare)
		w.sorted, w.fresh = merge(w.sorted, w.fresh), nil
	}
	from, to := 0, len(w.sorted)
	if after != (Frontier{}) {
		var found bool
		if from, found = slices.BinarySearchFunc(w.sorted, Entry{LikedAtUs: after.LikedAtUs, User: after.User}, newest.Compare); found {
			from++
		}
	}
	if end != nil {
		var found bool
		if to, found = slices.BinarySearchFunc(w.sorted, *end, newest.Compare); found {
			to++
		}
	}
	return w.sorted[from:max(from, to)]
}

func merge(a, b []Entry) []Entry {
	return newest.Merge([]newest.Part{{Entries: a}, {Entries: b}}, len(a)+len(b)).Entries
}
