package likers

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/tidemark/tidemark/internal/gokakit"
	"github.com/tidemark/tidemark/internal/newest"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// Errors of Page.
var (
	// ErrNotReady says that this process cannot answer for the list's partition
	// now: another one owns it, or it is being read from its log. It is never
	// an empty list.
	ErrNotReady = errors.New("the list's partition is not served here now")
	// ErrGeneration says that the question was made under another reverse
	// generation: its frontiers mean nothing in this one.
	ErrGeneration = errors.New("another reverse generation")
	// ErrQuery says that no list has such a page.
	ErrQuery = errors.New("no such page")
)

// MaxPage is the most entries of a page of one reverse shard.
const MaxPage = 1000

// Frontier is a place in a list: behind the entry that it names. Its zero value
// stands before the newest one.
type Frontier struct {
	LikedAtUs int64
	User      string
}

// Query asks for a page of one reverse shard of a target.
type Query struct {
	Generation   uint32
	Kind         topology.Kind
	Target       string
	ReverseShard int
	After        Frontier
	Limit        int // 1..MaxPage
}

// Entry is a user who is in the list.
type Entry = newest.Entry

// Page is a part of a list as it was at one moment.
type Page struct {
	Generation uint32
	Entries    []Entry // newest first; of one time, by user
	Next       Frontier
	More       bool // entries stand behind Next
	// AsOf has, per source shard, the newest seal up to which every change is
	// in the list; seal 0 when none has come.
	AsOf []*tidemarkv1.SourceWatermark
	// Offset of the table's log that the page includes.
	Offset int64
}

// item orders a list: newest first, of one time by user.
func (f Frontier) item() string {
	if f == (Frontier{}) {
		return ""
	}
	b := make([]byte, 8, 8+len(f.User))
	binary.BigEndian.PutUint64(b, ^uint64(f.LikedAtUs))
	return string(append(b, f.User...))
}

// parseItem reads what item made.
func parseItem(item string) (Frontier, bool) {
	if len(item) < 8 {
		return Frontier{}, false
	}
	return Frontier{int64(^binary.BigEndian.Uint64([]byte(item[:8]))), item[8:]}, true
}

// Page answers from the partition's store. It costs a seek and Limit entries,
// however deep it lies.
func (l *Likers) Page(q Query) (page Page, err error) {
	defer l.observe()(&err)
	if err := l.checkQuery(q); err != nil {
		return Page{}, err
	}
	partition := l.cfg.Reverse.Partition(q.Kind, q.Target, q.ReverseShard)
	err = l.snapshot(l.served(partition), partition, func(s *gokakit.Snapshot, asOf []*tidemarkv1.SourceWatermark, offset int64) error {
		part, err := readPart(s, q)
		page = Page{Generation: q.Generation, Next: q.After, AsOf: asOf, Offset: offset, More: part.More}
		if n := len(part.Entries); n > 0 {
			page.Entries, page.Next = part.Entries, Frontier{part.Entries[n-1].LikedAtUs, part.Entries[n-1].User}
		}
		return err
	})
	if err != nil {
		return Page{}, err
	}
	return page, nil
}

// observe begins to measure an answer; what it returns ends that.
func (l *Likers) observe() func(*error) {
	start := time.Now()
	return func(err *error) {
		switch {
		case *err == nil:
			l.pages.Observe(time.Since(start).Seconds())
		case errors.Is(*err, ErrNotReady):
			l.notReady.Inc()
		}
	}
}

// snapshot lets read see one moment of a partition that is served here, and
// what it includes. Whatever goes wrong is ErrNotReady: the partition was lost
// meanwhile, or its store has failed and is built anew. part is nil when it is
// not served here.
func (l *Likers) snapshot(part *gokakit.Partition, partition int, read func(s *gokakit.Snapshot, asOf []*tidemarkv1.SourceWatermark, offset int64) error) error {
	if part == nil {
		return fmt.Errorf("partition %d: %w", partition, ErrNotReady)
	}
	err := part.Snapshot(func(s *gokakit.Snapshot) error {
		offset, err := s.Offset()
		if err != nil {
			return err
		}
		asOf, err := l.asOf(s, partition)
		if err != nil {
			return err
		}
		return read(s, asOf, offset)
	})
	if err != nil {
		return fmt.Errorf("partition %d: %w: %w", partition, ErrNotReady, err)
	}
	return nil
}

func (l *Likers) checkQuery(q Query) error {
	switch {
	case q.Generation != l.cfg.Reverse.ID:
		return fmt.Errorf("generation %d is asked, this is generation %d: %w", q.Generation, l.cfg.Reverse.ID, ErrGeneration)
	case q.Limit < 1 || q.Limit > MaxPage:
		return fmt.Errorf("limit %d is not in 1..%d: %w", q.Limit, MaxPage, ErrQuery)
	case q.ReverseShard < 0 || q.ReverseShard >= l.cfg.Reverse.Shards():
		return fmt.Errorf("reverse shard %d is not in 0..%d: %w", q.ReverseShard, l.cfg.Reverse.Shards()-1, ErrQuery)
	case !q.Kind.Valid() || topology.CheckID(q.Target) != nil:
		return fmt.Errorf("kind or target is invalid: %w", ErrQuery)
	}
	return nil
}

// readPart takes the entries of a reverse shard behind the query's frontier
// from a snapshot.
func readPart(s *gokakit.Snapshot, q Query) (part newest.Part, err error) {
	group := list(topology.Hex4(int(q.Generation)), topology.TargetKey(q.Kind, q.Target), topology.Hex4(q.ReverseShard))
	var bad error
	err = s.Ascend(group, q.After.item(), func(item string, value []byte) bool {
		if len(part.Entries) == q.Limit {
			part.More = true
			return false
		}
		at, ok := parseItem(item)
		version, n := binary.Uvarint(value)
		if !ok || n <= 0 {
			bad = fmt.Errorf("an entry of list %s cannot be read", group)
			return false
		}
		part.Entries = append(part.Entries, newest.Entry{User: at.User, LikedAtUs: at.LikedAtUs, Version: version})
		return true
	})
	return part, errors.Join(err, bad)
}

// asOf reads the watermarks beside the list.
func (l *Likers) asOf(s *gokakit.Snapshot, partition int) ([]*tidemarkv1.SourceWatermark, error) {
	marks := make([]*tidemarkv1.SourceWatermark, l.cfg.Topology.Config.Shards)
	for shard := range marks {
		value, err := s.Get(topology.WatermarkKey(partition, shard))
		if err != nil {
			return nil, err
		}
		var row tidemarkv1.LikerRow
		if err := decodeRow(value, &row); err != nil {
			return nil, err
		}
		if marks[shard] = row.GetWatermark(); marks[shard] == nil {
			marks[shard] = &tidemarkv1.SourceWatermark{Shard: uint32(shard)}
		}
	}
	return marks, nil
}
