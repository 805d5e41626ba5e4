package views

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"connectrpc.com/connect/v2"
	"golang.org/x/sync/errgroup"

	"github.com/tidemark/tidemark/internal/newest"
	"github.com/tidemark/tidemark/internal/owners"
	"github.com/tidemark/tidemark/internal/pause"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
	"github.com/tidemark/tidemark/topology/tidemarkv1/tidemarkv1connect"
)

// ListAt names a target's list as it was at a barrier.
type ListAt struct {
	Barrier string // id
	Kind    topology.Kind
	Target  string
}

// ErrListGone says that what a list was at a barrier is not known any more: a
// partition's owner is a new one, or has forgotten it. It must be opened anew,
// for another barrier.
var ErrListGone = errors.New("the list at the barrier is gone")

// LikersAt reads lists as they were at a barrier, from the owners of the reverse
// index's partitions. Open comes before the barrier is taken: from its passage
// on, the owners remember what changes. They do so until Close, until nobody has
// read for ten minutes, or until they lose the partition.
type LikersAt struct {
	reverse  topology.ReverseGeneration
	group    string
	patience time.Duration
	owners   directory
	client   func(address string) tidemarkv1connect.LikersServiceClient
	close    func()
}

// DefaultPatienceAt is how long LikersAt waits for a partition that is not
// served, or that the barrier has not passed, by default.
const DefaultPatienceAt = time.Minute

// NewLikersAt checks the configuration, of which it takes no metrics; it does
// not talk to anybody yet.
func NewLikersAt(cfg LikersConfig) (*LikersAt, error) {
	if err := cfg.Reverse.Check(cfg.Topology.Config.LikerPartitions, cfg.Topology.Config.ReverseShards); err != nil {
		return nil, fmt.Errorf("lists at a barrier: %w", err)
	}
	if cfg.Patience == 0 {
		cfg.Patience = DefaultPatienceAt
	}
	d, err := owners.New(owners.Config{
		Brokers: cfg.Client.Brokers, Access: cfg.Client.Access,
		Group: cfg.Topology.Group(topology.LikersGroup).ID, Topic: cfg.Topology.Topic(topology.LikerChanges),
	}, nil)
	if err != nil {
		return nil, err
	}
	c := newOwnerClients(cfg.TLS)
	return &LikersAt{
		reverse: cfg.Reverse, group: cfg.Topology.Group(topology.LikersGroup).ID, patience: cfg.Patience,
		owners: d, client: c.client, close: func() { c.close(); d.Close() },
	}, nil
}

// Stop ends the connections.
func (l *LikersAt) Stop() { l.close() }

// Reverse is the reverse generation that lists are read in.
func (l *LikersAt) Reverse() topology.ReverseGeneration { return l.reverse }

// Open has the owners wait for the barrier, which must not be taken yet.
func (l *LikersAt) Open(ctx context.Context, list ListAt) error {
	return l.everywhere(ctx, list, func(ctx context.Context, c tidemarkv1connect.LikersServiceClient, of *tidemarkv1.ExportOf) error {
		_, err := c.OpenExport(ctx, &tidemarkv1.OpenExportRequest{Export: of})
		return err
	})
}

// Close has the owners forget the list.
func (l *LikersAt) Close(ctx context.Context, list ListAt) error {
	return l.everywhere(ctx, list, func(ctx context.Context, c tidemarkv1connect.LikersServiceClient, of *tidemarkv1.ExportOf) error {
		_, err := c.CloseExport(ctx, &tidemarkv1.CloseExportRequest{Export: of})
		return err
	})
}

type question func(context.Context, tidemarkv1connect.LikersServiceClient, *tidemarkv1.ExportOf) error

// everywhere asks the owner of each partition that the target lies on.
func (l *LikersAt) everywhere(ctx context.Context, list ListAt, q question) error {
	g, ctx := errgroup.WithContext(ctx)
	for partition := range l.reverse.ShardsByPartition(list.Kind, list.Target) {
		g.Go(func() error { return l.ask(ctx, list, partition, q) })
	}
	return g.Wait()
}

// askAtTimeout bounds one question.
const askAtTimeout = 10 * time.Second

// ask asks a partition's owner until it answers, for at most patience.
func (l *LikersAt) ask(ctx context.Context, list ListAt, partition int, q question) error {
	ctx, cancel := context.WithTimeout(ctx, l.patience)
	defer cancel()
	for wait := firstPause; ; wait = min(2*wait, maxPause) {
		err := l.askOnce(ctx, list, partition, q)
		if err == nil || !errors.Is(err, errAskAgain) {
			return err
		}
		if !pause.For(ctx, wait) {
			return fmt.Errorf("partition %d of the reverse index did not answer within %v: %w", partition, l.patience, err)
		}
	}
}

func (l *LikersAt) askOnce(ctx context.Context, list ListAt, partition int, q question) error {
	address, err := l.owners.Owner(ctx, partition)
	if err != nil {
		return fmt.Errorf("finding the owner: %w: %w", errAskAgain, err)
	}
	asked, cancel := context.WithTimeout(ctx, askAtTimeout)
	defer cancel()
	err = q(asked, l.client(address), &tidemarkv1.ExportOf{
		Group: l.group, Partition: uint32(partition), Generation: l.reverse.ID,
		Kind: tidemarkv1.Kind(list.Kind), TargetId: list.Target, BarrierId: list.Barrier,
	})
	if err == nil {
		return nil
	}
	switch connect.CodeOf(err) {
	case connect.CodeNotFound:
		err = fmt.Errorf("%w: %w", ErrListGone, err)
	case connect.CodeInvalidArgument, connect.CodeInternal:
	case connect.CodeAborted, connect.CodeResourceExhausted: // there, later
		err = fmt.Errorf("%w: %w", errAskAgain, err)
	default:
		l.owners.Forget(partition, address)
		err = fmt.Errorf("%w: %w", errAskAgain, err)
	}
	return fmt.Errorf("asking the owner at %s: %w", address, err)
}

// Walk tells a list newest first, of one time by user, behind after; nil begins
// with the newest. It waits until the barrier has passed. It stops at do's first
// error and returns it. do must not keep the slice.
func (l *LikersAt) Walk(ctx context.Context, list ListAt, after *Liker, do func([]Liker) error) error {
	w := listWalk{LikersAt: l, list: list, parts: make([]newest.Part, l.reverse.Shards()), next: make([]*tidemarkv1.ReverseShardPosition, l.reverse.Shards())}
	for shard := range w.parts {
		w.parts[shard].More = true
		if after != nil {
			w.next[shard] = &tidemarkv1.ReverseShardPosition{ReverseShard: uint32(shard), LikedAtUs: after.LikedAt.UnixMicro(), UserId: after.User}
		}
	}
	for {
		if err := w.fill(ctx); err != nil {
			return err
		}
		popped := w.pop()
		if len(popped) == 0 {
			return nil
		}
		if err := do(popped); err != nil {
			return err
		}
	}
}

// listWalk is how far each reverse shard has been read and popped.
type listWalk struct {
	*LikersAt
	list  ListAt
	parts []newest.Part // by reverse shard: read, not popped yet
	next  []*tidemarkv1.ReverseShardPosition
}

// fill reads on where little is left, so that a part that has more has entries.
func (w *listWalk) fill(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for shard := range w.parts {
		g.Go(func() error {
			for p := &w.parts[shard]; p.More && len(p.Entries) < MaxLikersPage/2; {
				if err := w.read(ctx, shard); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return g.Wait()
}

func (w *listWalk) read(ctx context.Context, shard int) error {
	var resp *tidemarkv1.ReadExportResponse
	partition := w.reverse.Partition(w.list.Kind, w.list.Target, shard)
	err := w.ask(ctx, w.list, partition, func(ctx context.Context, c tidemarkv1connect.LikersServiceClient, of *tidemarkv1.ExportOf) (err error) {
		resp, err = c.ReadExport(ctx, &tidemarkv1.ReadExportRequest{Export: of, ReverseShard: uint32(shard), After: w.next[shard], Limit: MaxLikersPage})
		return err
	})
	if err != nil {
		return err
	}
	last := newest.Entry{User: w.next[shard].GetUserId(), LikedAtUs: w.next[shard].GetLikedAtUs()}
	begun := w.next[shard] != nil
	p := &w.parts[shard]
	p.Entries = slices.Clone(p.Entries) // what was popped is not kept
	for i, e := range resp.Entries {
		entry := newest.Entry{User: e.GetUserId(), LikedAtUs: e.GetLikedAtUs(), Version: e.GetVersion()}
		if w.reverse.Shard(entry.User) != shard || begun && !last.Before(entry) {
			return fmt.Errorf("reverse shard %d is told with a list that is none: entry %d is out of order, or of another shard", shard, i)
		}
		p.Entries = append(p.Entries, entry)
		last, begun = entry, true
	}
	p.More, w.next[shard] = resp.Next != nil, resp.Next
	return nil
}

// pop takes the newest entries, as far as it is known which those are.
func (w *listWalk) pop() []Liker {
	popped := newest.Merge(w.parts, len(w.parts)*2*MaxLikersPage).Entries
	out := make([]Liker, len(popped))
	for i, e := range popped {
		p := &w.parts[w.reverse.Shard(e.User)]
		p.Entries = p.Entries[1:]
		out[i] = Liker{User: e.User, LikedAt: time.UnixMicro(e.LikedAtUs).UTC(), Version: e.Version}
	}
	return out
}
