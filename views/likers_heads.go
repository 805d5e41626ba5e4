package views

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidemark/tidemark/internal/cache"
	"github.com/tidemark/tidemark/internal/newest"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// HeadsReader reads parts of heads; *cache.Client does.
type HeadsReader interface {
	Heads(ctx context.Context, g cache.Generation, reads []cache.HeadRead) []cache.HeadPart
}

// LikersHeads says where heads of hot lists are.
type LikersHeads struct {
	Cache HeadsReader
	// Active is the generation to read; ok is false while none may be read.
	Active func() (g cache.Generation, ok bool)
	// Timeout after which a page is read from the owners; default
	// cache.DefaultTimeout.
	Timeout time.Duration
}

// heads reads pages of hot lists from Redis in place of their owners.
//
// Only the owners know which lists are hot: each says with its answer whether
// its part of the list's head stands. So lists that are not hot cost Redis
// nothing, and of those that are, some pages still ask the owners, who learn from
// them how many were read from the head meanwhile.
//
// A head is used when all of its parts can be, and each is as new as what the
// owner answered here last: a list never goes back within a process. What is
// read passes through the same checks as owners' answers, and gives the same
// page, or none.
type heads struct {
	LikersHeads
	restUntil atomic.Int64 // Unix ns; Redis did not answer

	mu    sync.Mutex
	known map[string]*knownHead // by target key
}

// knownHead is a list that is hot.
type knownHead struct {
	least    []int64 // offsets that parts must have, in the order of partitions
	reads    uint32  // pages from the head since the owners were asked
	askedAt  time.Time
	goodTill time.Time
}

const (
	// headReads is how many pages of a list are read from its head before the
	// owners are asked again, and headAsk the time after which they are in any
	// case.
	headReads = 31
	headAsk   = 5 * time.Second
	// headKnown is how long it is believed that a list is hot.
	headKnown = 30 * time.Second
	// maxKnownHeads bounds what is remembered of hot lists.
	maxKnownHeads = 8192
	// headRest is how long Redis is not asked after it did not answer.
	headRest = time.Second
	// headSlack is how many entries are read beyond a page of which the reader was
	// told before: shards are not told equally far.
	headSlack = 256
)

// Where a page came from, or why not from a head: values of the metric's label.
const (
	fromHead        = "head"
	headCold        = "cold"        // the owners have not said that it is hot
	headTurn        = "turn"        // the owners' turn, so that they see how hot it is
	headNoGen       = "generation"  // no generation may be read
	headMissing     = "missing"     // a part is not there, or is of an earlier owner
	headOlder       = "older"       // a part is older than what the owner has answered
	headBelowCut    = "below_cut"   // the page goes beyond what the parts have
	headUnavailable = "unavailable" // Redis did not answer in time, or rests after that
	headInvalid     = "invalid"     // what Redis has is no list
)

var headResults = []string{fromHead, headCold, headTurn, headNoGen, headMissing, headOlder, headBelowCut, headUnavailable, headInvalid}

func newHeads(cfg *LikersHeads) *heads {
	if cfg == nil {
		return nil
	}
	h := &heads{LikersHeads: *cfg, known: map[string]*knownHead{}}
	if h.Timeout == 0 {
		h.Timeout = cache.DefaultTimeout
	}
	return h
}

// choose tells where a page of a list is read: least is set when that is the head.
// Otherwise reads are what the owners are told.
func (h *heads) choose(list string, now time.Time) (least []int64, reads uint32, why string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	k := h.known[list]
	switch {
	case k == nil || now.After(k.goodTill):
		return nil, 0, headCold
	case k.reads >= headReads || now.Sub(k.askedAt) >= headAsk:
		reads, k.reads, k.askedAt = k.reads, 0, now
		return nil, reads, headTurn
	}
	k.reads++
	return k.least, 0, fromHead
}

// learn takes from the owners' answers whether a list is hot.
func (h *heads) learn(list string, answers []*tidemarkv1.ListLikersResponse, now time.Time) {
	if h == nil {
		return
	}
	hot := !slices.ContainsFunc(answers, func(a *tidemarkv1.ListLikersResponse) bool { return !a.GetHead() })
	h.mu.Lock()
	defer h.mu.Unlock()
	k := h.known[list]
	if !hot {
		delete(h.known, list)
		return
	}
	if k == nil {
		if k = h.room(now); k == nil {
			return
		}
		k.least, k.askedAt = make([]int64, len(answers)), now
		h.known[list] = k
	}
	least := slices.Clone(k.least) // readers have the old one
	for i, a := range answers {
		least[i] = max(least[i], a.Offset)
	}
	k.least, k.goodTill = least, now.Add(headKnown)
}

// room is for another list, if there is any; the lock is held.
func (h *heads) room(now time.Time) *knownHead {
	if len(h.known) >= maxKnownHeads {
		for list, k := range h.known {
			if now.After(k.goodTill) {
				delete(h.known, list)
			}
		}
	}
	if len(h.known) >= maxKnownHeads {
		return nil
	}
	return &knownHead{}
}

// page reads a page from the list's head. Where it cannot, why says so, and the
// owners are to be asked and told of reads.
func (l *Likers) headPage(ctx context.Context, q LikersQuery, reqs []*tidemarkv1.ListLikersRequest) (page LikersPage, ok bool) {
	if l.heads == nil {
		return page, false
	}
	least, reads, why := l.heads.choose(topology.TargetKey(q.Kind, q.Target), time.Now())
	if least != nil {
		page, why = l.readHead(ctx, q, reqs, least)
	}
	l.metrics.heads.WithLabelValues(why).Inc()
	for _, req := range reqs {
		req.HeadReads = reads
	}
	return page, why == fromHead
}

func (l *Likers) readHead(ctx context.Context, q LikersQuery, reqs []*tidemarkv1.ListLikersRequest, least []int64) (page LikersPage, why string) {
	g, ok := l.heads.Active()
	if !ok {
		return page, headNoGen
	}
	answers, why := l.heads.read(ctx, g, l.headQuestions(q, reqs))
	if why != fromHead {
		return page, why
	}
	for i, a := range answers {
		if a.Offset < least[i] {
			return page, headOlder
		}
	}
	parts := make([]newest.Part, len(reqs))
	resps := make([]*tidemarkv1.ListLikersResponse, len(reqs))
	for i, req := range reqs {
		resps[i] = l.behind(req, answers[i])
		if resps[i].More && len(resps[i].Entries) == 0 {
			return page, headBelowCut
		}
		var err error
		if parts[i], err = l.part(req, resps[i]); err != nil {
			return page, headInvalid
		}
	}
	page = l.assemble(q, parts)
	if !page.Done && len(page.Entries) < q.Limit {
		return page, headBelowCut
	}
	l.date(&page, resps)
	return page, fromHead
}

// headQuestions ask each part for what stands behind the positions of all its
// shards: from the newest of them on, or from the beginning where a shard has
// none.
func (l *Likers) headQuestions(q LikersQuery, reqs []*tidemarkv1.ListLikersRequest) []cache.HeadRead {
	shards := l.reverse.ShardsByPartition(q.Kind, q.Target)
	reads := make([]cache.HeadRead, len(reqs))
	for i, req := range reqs {
		reads[i] = cache.HeadRead{
			HeadOf: cache.HeadOf{Kind: q.Kind, Target: q.Target, Reverse: l.reverse.ID, Partition: int(req.Partition)},
			Limit:  q.Limit + 1, // one more tells whether there is more
		}
		if len(req.After) == 0 {
			continue
		}
		reads[i].Limit += headSlack
		if len(req.After) == len(shards[int(req.Partition)]) {
			for _, p := range req.After {
				reads[i].FromUs = max(reads[i].FromUs, p.LikedAtUs)
			}
		}
	}
	return reads
}

// read asks Redis for all parts; why is fromHead when all may be used.
func (h *heads) read(ctx context.Context, g cache.Generation, reads []cache.HeadRead) (parts []cache.HeadPart, why string) {
	if time.Now().UnixNano() < h.restUntil.Load() {
		return nil, headUnavailable
	}
	limited, cancel := context.WithTimeout(ctx, h.Timeout)
	defer cancel()
	parts = h.Cache.Heads(limited, g, reads)
	why = fromHead
	for _, p := range parts {
		switch {
		case p.Err == nil:
		case errors.Is(p.Err, cache.ErrNoHead) || errors.Is(p.Err, cache.ErrStamp):
			why = headMissing
		default:
			if ctx.Err() == nil { // a client that has gone says nothing of Redis
				h.restUntil.Store(time.Now().Add(headRest).UnixNano())
			}
			return nil, headUnavailable
		}
	}
	return parts, why
}

// behind makes an owner's answer of a part: the entries behind the question's
// positions.
func (l *Likers) behind(req *tidemarkv1.ListLikersRequest, p cache.HeadPart) *tidemarkv1.ListLikersResponse {
	after := map[int]newest.Entry{}
	for _, a := range req.After {
		after[int(a.ReverseShard)] = newest.Entry{User: a.UserId, LikedAtUs: a.LikedAtUs}
	}
	resp := &tidemarkv1.ListLikersResponse{AsOf: p.AsOf, Offset: p.Offset, More: p.More}
	for _, e := range p.Entries {
		if position, told := after[l.reverse.Shard(e.User)]; told && !position.Before(e) {
			continue
		}
		if len(resp.Entries) == int(min(req.Limit, math.MaxInt32)) {
			resp.More = true
			break
		}
		resp.Entries = append(resp.Entries, &tidemarkv1.LikerEntry{UserId: e.User, LikedAtUs: e.LikedAtUs, Version: e.Version})
	}
	return resp
}
