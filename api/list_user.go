package api

import (
	"context"
	"net/http"
	"time"

	"github.com/tidemark/tidemark/internal/pagetoken"
	"github.com/tidemark/tidemark/relations"
	"github.com/tidemark/tidemark/topology"
)

// user answers with a page of what owner is in a state to.
func (l *lists) user(w http.ResponseWriter, r *http.Request, u userList, owner string) *Problem {
	q, p := l.pageQueryOf(r, u.name, owner)
	if p != nil {
		return p
	}
	ctx, viewer := r.Context(), q.bound.Viewer
	switch ok, err := l.Privacy.UserList(ctx, viewer, owner, u.shown); {
	case err != nil:
		return l.privacyProblem(ctx, err)
	case !ok:
		return withheld()
	}
	items, end, p := l.page(ctx, q, newFactWalk(l, u.state, owner, q.after), l.shownTargets(u, viewer, owner))
	if p != nil {
		return p
	}
	writeJSON(w, u.answer(items, end))
	return nil
}

// shownTargets tells which targets of owner's list a viewer may be shown. Whom
// one follows is one's own to see, whatever became of them: otherwise it could
// not be undone.
func (l *lists) shownTargets(u userList, viewer, owner string) func(context.Context, []string) ([]bool, error) {
	switch {
	case u.state.Kind() != topology.Follow:
		return func(ctx context.Context, ids []string) ([]bool, error) { return l.Privacy.Videos(ctx, viewer, ids) }
	case viewer == owner:
		return all
	}
	return func(ctx context.Context, ids []string) ([]bool, error) { return l.Privacy.Users(ctx, viewer, ids) }
}

// factWalk goes along a user's facts. Its place is one position.
type factWalk struct {
	lists *lists
	q     relations.ListQuery
	asOf  *relations.ListAsOf // of the first batch, and so the oldest
}

func newFactWalk(l *lists, state topology.State, owner string, after *pagetoken.Place) *factWalk {
	w := &factWalk{lists: l, q: relations.ListQuery{User: owner, State: state}}
	if after != nil && len(after.Positions) == 1 {
		at := after.Positions[0]
		w.q.After = relations.ListPosition{ChangedAt: time.UnixMicro(at.AtUs), Target: at.ID}
	}
	return w
}

func (w *factWalk) next(ctx context.Context, limit int) ([]listed, bool, *Problem) {
	w.q.Limit = limit
	page, err := w.lists.Users.List(ctx, w.q)
	if err != nil {
		return nil, false, w.lists.api.storeProblem(ctx, err, "relations cannot be read now: try again")
	}
	if w.asOf == nil {
		w.asOf = &page.AsOf
	}
	entries := make([]listed, len(page.Facts))
	for i, f := range page.Facts {
		entries[i] = listed{f.Relation.Target, f.StateChangedAt.UTC()}
		w.q.After = relations.ListPosition{ChangedAt: f.StateChangedAt, Target: f.Relation.Target}
	}
	return entries, page.More, nil
}

func (w *factWalk) place() pagetoken.Place {
	return pagetoken.Place{Positions: []pagetoken.Position{{AtUs: w.q.After.ChangedAt.UnixMicro(), ID: w.q.After.Target}}}
}

func (w *factWalk) end() listEnd {
	end := listEnd{asOf: timeOrNull(w.asOf.At), watermarks: []ListWatermark{}}
	if w.asOf.Seal > 0 {
		end.watermarks = append(end.watermarks, ListWatermark{w.asOf.Shard, w.asOf.Seal, w.asOf.SealedAt.UTC()})
	}
	return end
}
