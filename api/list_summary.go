package api

import (
	"net/http"
	"reflect"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tidemark/tidemark/privacy"
	"github.com/tidemark/tidemark/topology"
)

// A summary looks at the newest summaryScan likers and shows up to summaryShown.
const (
	summaryScan  = 50
	summaryShown = 5
)

func (l *lists) addSummary() {
	l.api.add(operation{
		method: http.MethodGet, path: "/v1/videos/{id}/liker-summary", id: "get-liker-summary", tag: "lists",
		summary:     "The newest likers of a video who may be shown, and the count",
		description: "For the row of avatars beside a video: one look at a bounded set, without pages. It is shown to whom the list of likers is.",
		params:      []*huma.Param{idParam("id", "The video's id")},
		result:      reflect.TypeFor[LikerSummaryAnswer](),
		problems:    []problemKind{kindListWithheld, kindListsUnavailable, kindCountsUnavailable, kindPrivacyUnavailable},
		handle:      l.summary,
	})
}

func (l *lists) summary(w http.ResponseWriter, r *http.Request) *Problem {
	id, p := pathID(r, "id")
	if p != nil {
		return p
	}
	ctx, viewer := r.Context(), IdentityOf(r.Context()).User
	access, p := l.access(ctx, viewer, topology.Like, id)
	if p != nil {
		return p
	}
	count, err := l.Counts.Count(topology.Like, id)
	if err != nil {
		return l.api.countsProblem(ctx, err)
	}
	walk := newLikerWalk(l, topology.Like, id, nil)
	newest, _, p := walk.next(ctx, summaryScan)
	if p != nil {
		return p
	}
	end := walk.end()
	answer := LikerSummaryAnswer{VideoID: id, UserIDs: []string{}, AsOf: end.asOf, Watermarks: end.watermarks, Standby: end.standby}
	if access == privacy.Shown {
		answer.DisplayCount, answer.CountSnapshotAt = count.Counts.Display(), timeOrNull(count.GeneratedAt)
		shown, err := l.Privacy.Users(ctx, viewer, ids(newest))
		if err != nil {
			return l.privacyProblem(ctx, err)
		}
		for i, e := range newest {
			if shown[i] && len(answer.UserIDs) < summaryShown {
				answer.UserIDs = append(answer.UserIDs, e.id)
			}
		}
	}
	writeJSON(w, answer)
	return nil
}
