package api

import (
	"context"
	"fmt"
	"net/http"
	"reflect"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tidemark/tidemark/relations"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/views"
)

// RelationReader reads a user's committed relations, in the order of targets;
// *relations.Store is one.
type RelationReader interface {
	States(ctx context.Context, user string, kind topology.Kind, targets []string) ([]relations.Fact, error)
}

// CountReader reads counts, in the order of targets; *views.Display is one.
// An error says that counts are not ready: no count is known then, not even 0.
type CountReader interface {
	Count(kind topology.Kind, target string) (views.Count, error)
	Counts(kind topology.Kind, targets []string) ([]views.Count, error)
}

// RegisterQueries adds the batch queries and the count of one target. Once per
// API.
func RegisterQueries(a *API, facts RelationReader, counts CountReader) {
	for _, b := range batches {
		b.api, b.facts, b.counts = a, facts, counts
		a.add(operation{
			method: http.MethodPost, path: "/v1/" + b.kind.String() + "-relations/batch-query", id: "query-" + b.kind.String() + "-relations", tag: "queries",
			summary:     "My relations to a page of targets, and their counts",
			description: fmt.Sprintf("One item for each of at most %d ids, in the query's order. myState is a committed fact. Where the deployment has a cache it may be late by as long as a change takes to get there, usually milliseconds: a client that has seen a version asks for it in minRelationVersions. displayCount is eventually consistent and never decides it; of a target that is deleted, taken down or closed it is withdrawn, with the reason. While counts are not ready the answer is 503, never a count of 0.", MaxBatch),
			body:        b.query, result: b.answer,
			problems: []problemKind{kindStoreUnavailable, kindCountsUnavailable, kindPrivacyUnavailable},
			handle:   b.serve,
		})
	}
	a.add(operation{
		method: http.MethodGet, path: "/v1/targets/{kind}/{id}/count", id: "get-count", tag: "queries",
		summary:     "A target's count and what it includes",
		description: "For each source shard the seal up to which the count is complete, and what made it. While counts are not ready the answer is 503, never 0.",
		params: []*huma.Param{
			{Name: "kind", In: "path", Required: true, Schema: enumSchema(topology.Kinds(), topology.Kind.String), Description: "The kind of relation counted"},
			idParam("id", "The video's id; the user's for follow"),
		},
		result:   reflect.TypeFor[CountAnswer](),
		problems: []problemKind{kindCountsUnavailable, kindPrivacyUnavailable},
		handle: func(w http.ResponseWriter, r *http.Request) *Problem {
			return a.count(w, r, counts)
		},
	})
}

func (a *API) count(w http.ResponseWriter, r *http.Request, counts CountReader) *Problem {
	kind, err := topology.ParseKind(r.PathValue("kind"))
	if err != nil {
		return invalid("path.kind", "is not one of like, favorite, follow")
	}
	id, p := pathID(r, "id")
	if p != nil {
		return p
	}
	c, err := counts.Count(kind, id)
	if err != nil {
		return a.countsProblem(r.Context(), err)
	}
	withdrawn, p := a.withdrawn(r.Context(), kind, []string{id})
	if p != nil {
		return p
	}
	c = withdrawn.count(0, c)
	answer := countAnswer(kind, id, c)
	who := IdentityOf(r.Context())
	if who.HasRole(OperatorRole) {
		answer.Raw, answer.RiskHidden, answer.PolicyHidden = ptr(c.Counts.Raw), ptr(c.Counts.RiskHidden), ptr(c.Counts.PolicyHidden)
	}
	writeJSON(w, withdrawn.from(who, answer))
	return nil
}

func countAnswer(kind topology.Kind, id string, c views.Count) CountAnswer {
	answer := CountAnswer{
		Kind: kind.String(), TargetID: id, Found: c.Found,
		Active: c.Counts.Display(), Disliked: c.Counts.Disliked, DisplayCount: c.Counts.Display(),
		GeneratedAt: timeOrNull(c.GeneratedAt), CommittedAt: timeOrNull(c.CommittedAt), Seq: c.Seq, Generation: c.Generation, ManifestID: c.ManifestID, Partials: c.Partials,
		AsOf: make([]CountAsOf, 0, len(c.AsOf)),
	}
	if c.Staleness != views.UnknownStaleness {
		answer.StalenessSeconds = ptr(c.Staleness.Round(time.Millisecond).Seconds())
	}
	for _, s := range c.AsOf {
		answer.AsOf = append(answer.AsOf, CountAsOf{
			Shard: s.Shard, Seal: s.Seal, SealedAt: s.SealedAt.UTC(),
			PreviousCommitLSN: lsn(s.PreviousCommitLSN), LSN: lsn(s.LSN),
		})
	}
	return answer
}

// lsn writes a log position as PostgreSQL does. As a JSON number it would lose
// digits in clients that read numbers as doubles.
func lsn(v uint64) string { return fmt.Sprintf("%X/%X", v>>32, uint32(v)) }

// countsProblem answers for counts that are not ready (G19).
func (a *API) countsProblem(ctx context.Context, err error) *Problem {
	a.quiet.warn(ctx, "the count view is not ready", err)
	return unavailable(kindCountsUnavailable, "counts are being recovered: try again")
}
