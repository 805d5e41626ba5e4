package views

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"github.com/tidemark/tidemark/internal/gokakit"
	"github.com/tidemark/tidemark/internal/newest"
	"github.com/tidemark/tidemark/internal/owners"
	"github.com/tidemark/tidemark/internal/pause"
	"github.com/tidemark/tidemark/internal/tlsfiles"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// LikersConfig says how the owners of the reverse index are found and asked.
type LikersConfig struct {
	Client   gokakit.Client
	Topology *topology.Topology
	// Reverse is the active reverse generation.
	Reverse topology.ReverseGeneration
	// TLS for asking owners; nil: HTTP/2 without TLS.
	TLS *tlsfiles.Client
	// MaxStandbyStaleness is how old the answer of a process that keeps a
	// partition warm may be, by its oldest seal, while the owner does not answer;
	// 0: nobody but owners is asked.
	MaxStandbyStaleness time.Duration
	// Patience is how long a page waits for a partition that is not served now,
	// such as while its owner changes; default DefaultPatience. The caller's
	// context may end earlier.
	Patience time.Duration
	// Heads of hot lists; nil: every page asks the owners.
	Heads      *LikersHeads
	Registerer prometheus.Registerer // optional
	Now        func() time.Time      // for Staleness; default time.Now
	// Weakness switches mechanisms off, for drills that must be able to fail.
	Weakness gokakit.Weakness
}

// DefaultPatience is the default of LikersConfig.Patience.
const DefaultPatience = time.Second

// retryAfter is what a NotReadyError advises. A partition that moves is back
// within about that; one whose owner died takes the session's length more.
const retryAfter = time.Second

// Likers answers pages of who likes, favorites or follows a target, from the
// processes that own the reverse index's partitions.
//
// A target's reverse shards lie on a few partitions
// (topology.ReverseGeneration). Each is asked once for the newest entries of
// its shards behind their positions, and the answers are merged. A position
// moves past popped entries only: what was fetched and not popped counts as
// never read, and a shard that gave nothing keeps its position. So a page costs
// the same however deep it lies, and pages that follow each other tell every
// entry that stays exactly once, whatever else comes and goes.
type Likers struct {
	reverse  topology.ReverseGeneration
	group    string // consumer group of the owners
	shards   int    // of the relation store
	patience time.Duration
	maxStale time.Duration // of standbys; 0: they are not asked
	now      func() time.Time
	owners   directory
	ask      asker
	heads    *heads // nil: every page asks the owners
	metrics  *likersMetrics
	weak     gokakit.Weakness
	close    func()
}

// directory knows the owners of partitions; see owners.Directory.
type directory interface {
	Owner(ctx context.Context, partition int) (address string, err error)
	Forget(partition int, address string)
	Others(address string) []string
}

// asker asks the process at an address.
type asker func(ctx context.Context, address string, req *tidemarkv1.ListLikersRequest) (*tidemarkv1.ListLikersResponse, error)

// NewLikers checks the configuration; it does not talk to anybody yet.
func NewLikers(cfg LikersConfig) (*Likers, error) {
	l, err := newLikers(cfg)
	if err != nil {
		return nil, err
	}
	d, err := owners.New(owners.Config{
		Brokers: cfg.Client.Brokers, Access: cfg.Client.Access,
		Group: cfg.Topology.Group(topology.LikersGroup).ID, Topic: cfg.Topology.Topic(topology.LikerChanges),
	}, cfg.Registerer)
	if err != nil {
		return nil, err
	}
	c := newOwnerClients(cfg.TLS)
	l.owners, l.ask = d, c.ask
	l.close = func() { c.close(); d.Close() }
	return l, nil
}

// newLikers builds everything but the ways to the owners.
func newLikers(cfg LikersConfig) (*Likers, error) {
	if err := cfg.Reverse.Check(cfg.Topology.Config.LikerPartitions, cfg.Topology.Config.ReverseShards); err != nil {
		return nil, fmt.Errorf("likers view: %w", err)
	}
	if cfg.Patience == 0 {
		cfg.Patience = DefaultPatience
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	l := &Likers{reverse: cfg.Reverse, group: cfg.Topology.Group(topology.LikersGroup).ID, shards: cfg.Topology.Config.Shards, patience: cfg.Patience, maxStale: cfg.MaxStandbyStaleness, now: cfg.Now, weak: cfg.Weakness, heads: newHeads(cfg.Heads), close: func() {}}
	var err error
	if l.metrics, err = newLikersMetrics(cfg.Registerer); err != nil {
		return nil, fmt.Errorf("likers view: registering metrics: %w", err)
	}
	return l, nil
}

// Close ends the connections. Page must not be called after it.
func (l *Likers) Close() { l.close() }

// Generation is the reverse generation that pages are read in.
func (l *Likers) Generation() uint32 { return l.reverse.ID }

// Page answers a page. It waits while a partition is not served and then
// answers NotReadyError; it never leaves a partition out.
func (l *Likers) Page(ctx context.Context, q LikersQuery) (LikersPage, error) {
	start := time.Now()
	page, err := l.page(ctx, q)
	l.metrics.observe(time.Since(start), err)
	return page, err
}

func (l *Likers) page(ctx context.Context, q LikersQuery) (LikersPage, error) {
	if err := l.check(q); err != nil {
		return LikersPage{}, err
	}
	reqs := l.requests(q)
	if page, ok := l.headPage(ctx, q, reqs); ok {
		return page, nil
	}
	answers := make([]*tidemarkv1.ListLikersResponse, len(reqs))
	parts := make([]newest.Part, len(reqs))
	g, gctx := errgroup.WithContext(ctx)
	for i, req := range reqs {
		g.Go(func() (err error) {
			if answers[i], err = l.answer(gctx, req); err != nil {
				return err
			}
			parts[i], err = l.part(req, answers[i])
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return LikersPage{}, err
	}
	l.heads.learn(topology.TargetKey(q.Kind, q.Target), answers, time.Now())
	page := l.assemble(q, parts)
	l.date(&page, answers)
	return page, nil
}

// date says what a page that was made of answers includes.
func (l *Likers) date(page *LikersPage, answers []*tidemarkv1.ListLikersResponse) {
	page.AsOf = l.leastOfAll(answers)
	page.Standby = slices.ContainsFunc(answers, (*tidemarkv1.ListLikersResponse).GetStandby)
	page.Staleness = staleness(l.now(), oldest(page.AsOf, l.shards))
}

// check refuses what no owner would answer.
func (l *Likers) check(q LikersQuery) error {
	switch {
	case q.Limit < 1 || q.Limit > MaxLikersPage:
		return fmt.Errorf("limit %d is not in 1..%d: %w", q.Limit, MaxLikersPage, ErrLikersQuery)
	case !q.Kind.Valid() || topology.CheckID(q.Target) != nil:
		return fmt.Errorf("kind or target is invalid: %w", ErrLikersQuery)
	case q.Generation == 0 && len(q.Frontier) == 0:
		return nil
	case q.Generation != l.reverse.ID:
		return fmt.Errorf("the frontier is of generation %d, the index of generation %d: %w", q.Generation, l.reverse.ID, ErrGenerationGone)
	}
	for i, p := range q.Frontier {
		if i > 0 && p.Shard <= q.Frontier[i-1].Shard {
			return fmt.Errorf("the frontier's shards are not in order: %w", ErrLikersQuery)
		}
		if p.LikedAtUs <= 0 || topology.CheckID(p.User) != nil || l.reverse.Shard(p.User) != int(p.Shard) {
			return fmt.Errorf("the frontier's position in shard %d names no entry: %w", p.Shard, ErrLikersQuery)
		}
	}
	return nil
}

// requests are one for each partition that the target lies on, in order.
func (l *Likers) requests(q LikersQuery) (reqs []*tidemarkv1.ListLikersRequest) {
	on := map[int]*tidemarkv1.ListLikersRequest{}
	for partition := range l.reverse.ShardsByPartition(q.Kind, q.Target) {
		on[partition] = &tidemarkv1.ListLikersRequest{
			Group: l.group, Partition: uint32(partition), Generation: l.reverse.ID,
			Kind: tidemarkv1.Kind(q.Kind), TargetId: q.Target, Limit: uint32(q.Limit),
		}
		reqs = append(reqs, on[partition])
	}
	for _, p := range q.Frontier {
		req := on[l.reverse.Partition(q.Kind, q.Target, int(p.Shard))]
		req.After = append(req.After, &tidemarkv1.ReverseShardPosition{ReverseShard: p.Shard, LikedAtUs: p.LikedAtUs, UserId: p.User})
	}
	slices.SortFunc(reqs, func(a, b *tidemarkv1.ListLikersRequest) int { return int(a.Partition) - int(b.Partition) })
	return reqs
}

// Pauses before a partition that was not served is asked again.
const (
	firstPause = 20 * time.Millisecond
	maxPause   = 200 * time.Millisecond
)

// answer asks a partition's owner, and asks again where the owner is looked up
// anew while it is not served. A standby may answer instead.
func (l *Likers) answer(ctx context.Context, req *tidemarkv1.ListLikersRequest) (*tidemarkv1.ListLikersResponse, error) {
	partition := int(req.Partition)
	giveUp := time.Now().Add(l.patience)
	patient, cancel := context.WithDeadline(ctx, giveUp)
	defer cancel()
	for wait := firstPause; ; wait = min(2*wait, maxPause) {
		resp, address, err := l.askOwner(patient, req)
		if err == nil {
			return resp, nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if !errors.Is(err, errAskAgain) {
			return nil, err
		}
		if resp := l.askStandbys(patient, req, address); resp != nil {
			return resp, nil
		}
		if time.Until(giveUp) < wait || !pause.For(ctx, wait) {
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			return nil, &NotReadyError{Partition: partition, RetryAfter: retryAfter, Err: err}
		}
	}
}

// errAskAgain says that another moment or another owner may answer.
var errAskAgain = errors.New("not answered")

// askOwner asks the owner, whose address is empty while nobody knows it.
func (l *Likers) askOwner(ctx context.Context, req *tidemarkv1.ListLikersRequest) (resp *tidemarkv1.ListLikersResponse, address string, err error) {
	partition := int(req.Partition)
	if address, err = l.owners.Owner(ctx, partition); err != nil {
		return nil, "", fmt.Errorf("finding the owner: %w: %w", errAskAgain, err)
	}
	if resp, err = l.askOnce(ctx, address, req); err != nil {
		if errors.Is(err, errAskAgain) {
			l.owners.Forget(partition, address)
		}
		return nil, address, fmt.Errorf("asking the owner at %s: %w", address, err)
	}
	return resp, address, nil
}

func (l *Likers) askOnce(ctx context.Context, address string, req *tidemarkv1.ListLikersRequest) (*tidemarkv1.ListLikersResponse, error) {
	l.metrics.asked.Inc()
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	return l.ask(ctx, address, req)
}

// maxStandbys are asked in place of an owner that does not answer: each other
// member keeps every partition warm, or none does.
const maxStandbys = 2

// askStandbys asks others than the owner, beginning with another one for each
// partition. It gives nil when none has an answer that is young enough: a copy
// that is not read on any more says so by its seals.
func (l *Likers) askStandbys(ctx context.Context, req *tidemarkv1.ListLikersRequest, owner string) *tidemarkv1.ListLikersResponse {
	if l.maxStale <= 0 {
		return nil
	}
	others := l.owners.Others(owner)
	warm := proto.CloneOf(req)
	warm.Standby = true
	for i := range min(maxStandbys, len(others)) {
		resp, err := l.askOnce(ctx, others[(int(req.Partition)+i)%len(others)], warm)
		if err != nil {
			continue // the owner is asked again
		}
		if !resp.Standby { // it has become the owner
			return resp
		}
		asOf := l.leastOfAll([]*tidemarkv1.ListLikersResponse{resp})
		if age := staleness(l.now(), oldest(asOf, l.shards)); age == UnknownStaleness || age > l.maxStale {
			continue
		}
		l.metrics.standby.Inc()
		return resp
	}
	return nil
}

// askTimeout bounds one question, so that an owner that is silent is looked up
// anew within Patience.
const askTimeout = 500 * time.Millisecond

// part reads an answer and refuses one that is not of its question: out of
// order, of a shard that was not asked, not behind its position.
func (l *Likers) part(req *tidemarkv1.ListLikersRequest, resp *tidemarkv1.ListLikersResponse) (newest.Part, error) {
	wrong := func(format string, a ...any) (newest.Part, error) {
		return newest.Part{}, fmt.Errorf("partition %d answers generation %d with a list that is none: %s", req.Partition, req.Generation, fmt.Sprintf(format, a...))
	}
	after := map[int]newest.Entry{}
	for _, a := range req.After {
		after[int(a.ReverseShard)] = newest.Entry{User: a.UserId, LikedAtUs: a.LikedAtUs}
	}
	part := newest.Part{Entries: make([]newest.Entry, len(resp.Entries)), More: resp.More}
	for i, e := range resp.Entries {
		entry := newest.Entry{User: e.GetUserId(), LikedAtUs: e.GetLikedAtUs(), Version: e.GetVersion()}
		shard := l.reverse.Shard(entry.User)
		position, told := after[shard]
		switch {
		case l.reverse.Partition(topology.Kind(req.Kind), req.TargetId, shard) != int(req.Partition):
			return wrong("entry %d is of reverse shard %d, which lies elsewhere", i, shard)
		case told && !position.Before(entry):
			return wrong("entry %d is not behind its shard's position", i)
		case i > 0 && !part.Entries[i-1].Before(entry):
			return wrong("entry %d is out of order", i)
		}
		part.Entries[i] = entry
	}
	if part.More && len(part.Entries) == 0 || len(part.Entries) > int(req.Limit) {
		return wrong("%d entries, limit %d, more %v", len(part.Entries), req.Limit, part.More)
	}
	return part, nil
}

// assemble pops a page from what the partitions have.
func (l *Likers) assemble(q LikersQuery, parts []newest.Part) LikersPage {
	popped := newest.Merge(parts, q.Limit)
	page := LikersPage{Generation: l.reverse.ID, Done: !popped.More, Entries: make([]Liker, len(popped.Entries))}
	for i, e := range popped.Entries {
		page.Entries[i] = Liker{User: e.User, LikedAt: time.UnixMicro(e.LikedAtUs).UTC(), Version: e.Version}
	}
	page.Frontier = q.Frontier.advance(popped.Entries, l.reverse.Shard)
	if l.weak.Has(gokakit.WithoutPopping) {
		for _, p := range parts {
			page.Frontier = page.Frontier.advance(p.Entries, l.reverse.Shard)
		}
	}
	return page
}

// advance moves the positions of the shards that popped entries are of; the
// others stay.
func (f Frontier) advance(popped []newest.Entry, shardOf func(user string) int) Frontier {
	next := slices.Clone(f)
	for _, e := range popped {
		p := ShardPosition{Shard: uint32(shardOf(e.User)), LikedAtUs: e.LikedAtUs, User: e.User}
		at, found := slices.BinarySearchFunc(next, p.Shard, func(p ShardPosition, shard uint32) int { return int(p.Shard) - int(shard) })
		if found {
			next[at] = p
		} else {
			next = slices.Insert(next, at, p)
		}
	}
	return next
}

// leastOfAll is, per source shard, the least seal of all answers. A shard of
// which one knows none is missing.
func (l *Likers) leastOfAll(answers []*tidemarkv1.ListLikersResponse) (asOf []ShardAsOf) {
	for shard := range l.shards {
		var least *tidemarkv1.SourceWatermark
		for i, a := range answers {
			at := slices.IndexFunc(a.AsOf, func(w *tidemarkv1.SourceWatermark) bool { return int(w.GetShard()) == shard })
			if at < 0 || a.AsOf[at].Seal == 0 {
				least = nil
				break
			}
			if i == 0 || a.AsOf[at].Seal < least.Seal {
				least = a.AsOf[at]
			}
		}
		if least != nil {
			asOf = append(asOf, ShardAsOf{
				Shard: shard, Seal: least.Seal, PreviousCommitLSN: least.GetPosition().GetPreviousCommitLsn(), LSN: least.GetPosition().GetLsn(),
				SealedAt: time.UnixMicro(least.SealedAtUs).UTC(),
			})
		}
	}
	return asOf
}
