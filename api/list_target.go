package api

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/tidemark/tidemark/internal/pagetoken"
	"github.com/tidemark/tidemark/privacy"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/views"
)

// target answers with a page of who is in the counted state to a target.
func (l *lists) target(w http.ResponseWriter, r *http.Request, t targetList) *Problem {
	id, p := pathID(r, "id")
	if p != nil {
		return p
	}
	q, p := l.pageQueryOf(r, t.name, id)
	if p != nil {
		return p
	}
	ctx := r.Context()
	access, p := l.access(ctx, q.bound.Viewer, t.kind, id)
	if p != nil {
		return p
	}
	walk := newLikerWalk(l, t.kind, id, q.after)
	if access == privacy.Unknown {
		end, p := walk.unknown(ctx)
		if p == nil {
			writeJSON(w, t.answer(nil, end))
		}
		return p
	}
	items, end, p := l.page(ctx, q, walk, func(ctx context.Context, users []string) ([]bool, error) {
		return l.Privacy.Users(ctx, q.bound.Viewer, users)
	})
	if p == nil {
		writeJSON(w, t.answer(items, end))
	}
	return p
}

// access tells whether a target's list is shown, or stands for a video that is
// not known.
func (l *lists) access(ctx context.Context, viewer string, kind topology.Kind, id string) (privacy.Access, *Problem) {
	access := privacy.Withheld
	var err error
	if kind == topology.Follow {
		var ok bool
		if ok, err = l.Privacy.UserList(ctx, viewer, id, privacy.Followers); ok {
			access = privacy.Shown
		}
	} else {
		access, err = l.Privacy.VideoList(ctx, viewer, id, kind)
	}
	switch {
	case err != nil:
		return access, l.privacyProblem(ctx, err)
	case access != privacy.Shown && access != privacy.Unknown:
		return access, withheld()
	}
	return access, nil
}

// likerWalk goes along a target's list. Its place is the frontier of its
// reverse shards: the reader moves a shard's only past entries that it gave, so
// what it has read ahead and not given is read again (F3).
type likerWalk struct {
	lists *lists
	q     views.LikersQuery
	read  bool
	asOf  []views.ShardAsOf // the least of every batch
	whole bool              // no shard is missing in it
	// standby says that some batch was not the owners' alone.
	standby bool
}

func newLikerWalk(l *lists, kind topology.Kind, target string, after *pagetoken.Place) *likerWalk {
	w := &likerWalk{lists: l, q: views.LikersQuery{Kind: kind, Target: target}}
	if after != nil && len(after.Positions) > 0 {
		w.q.Generation = after.Generation
		for _, at := range after.Positions {
			w.q.Frontier = append(w.q.Frontier, views.ShardPosition{Shard: at.Shard, LikedAtUs: at.AtUs, User: at.ID})
		}
	}
	return w
}

func (w *likerWalk) next(ctx context.Context, limit int) ([]listed, bool, *Problem) {
	w.q.Limit = limit
	page, err := w.lists.Targets.Page(ctx, w.q)
	if err != nil {
		return nil, false, w.lists.listProblem(ctx, err)
	}
	w.q.Generation, w.q.Frontier = page.Generation, page.Frontier
	w.include(page)
	entries := make([]listed, len(page.Entries))
	for i, e := range page.Entries {
		entries[i] = listed{e.User, e.LikedAt.UTC()}
	}
	return entries, !page.Done, nil
}

// include makes asOf the least of what it was and the page's.
func (w *likerWalk) include(page views.LikersPage) {
	w.standby = w.standby || page.Standby
	whole := page.Staleness != views.UnknownStaleness
	if !w.read {
		w.read, w.asOf, w.whole = true, page.AsOf, whole
		return
	}
	w.whole = w.whole && whole
	now := make(map[int]views.ShardAsOf, len(page.AsOf))
	for _, s := range page.AsOf {
		now[s.Shard] = s
	}
	var least []views.ShardAsOf
	for _, s := range w.asOf {
		n, known := now[s.Shard]
		if !known {
			continue
		}
		if n.Seal < s.Seal {
			s = n
		}
		least = append(least, s)
	}
	w.asOf = least
}

func (w *likerWalk) place() pagetoken.Place {
	p := pagetoken.Place{Generation: w.q.Generation}
	for _, at := range w.q.Frontier {
		p.Positions = append(p.Positions, pagetoken.Position{Shard: at.Shard, AtUs: at.LikedAtUs, ID: at.User})
	}
	return p
}

func (w *likerWalk) end() listEnd {
	end := listEnd{watermarks: make([]ListWatermark, 0, len(w.asOf)), standby: w.standby}
	var oldest time.Time
	for _, s := range w.asOf {
		end.watermarks = append(end.watermarks, ListWatermark{s.Shard, s.Seal, s.SealedAt.UTC()})
		if oldest.IsZero() || s.SealedAt.Before(oldest) {
			oldest = s.SealedAt
		}
	}
	if w.whole {
		end.asOf = timeOrNull(oldest)
	}
	return end
}

// unknown answers as for a target to which nobody has ever related. It reads as
// for that one, so that it says the same of the index, and is away with it.
func (w *likerWalk) unknown(ctx context.Context) (listEnd, *Problem) {
	_, _, p := w.next(ctx, 1)
	return w.end(), p
}

// listProblem is the one place that answers the reverse index's errors.
func (l *lists) listProblem(ctx context.Context, err error) *Problem {
	if errors.Is(err, views.ErrGenerationGone) {
		return newProblem(kindListGenerationGone, "query.pageToken was made before the list was built anew: read the list from its first page, without a token")
	}
	if !errors.Is(ctx.Err(), context.Canceled) {
		l.api.quiet.warn(ctx, "the reverse index did not answer", err)
	}
	p := unavailable(kindListsUnavailable, "a part of the list is moving or being recovered: try again")
	var notReady *views.NotReadyError
	if errors.As(err, &notReady) && notReady.RetryAfter > 0 {
		p.retryAfter = notReady.RetryAfter
	}
	return p
}
