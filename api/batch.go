package api

import (
	"context"
	"net/http"
	"reflect"
	"strconv"
	"sync"
	"time"

	"github.com/tidemark/tidemark/relations"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/views"
)

// batch serves the batch query of one kind. It is the hot path: the body is
// read and the answer written without reflection, and TestBatchAnswer holds
// the answer to the documented types.
type batch struct {
	kind          topology.Kind
	idsName       string // of the query's ids
	itemName      string // of an item's id
	query, answer reflect.Type

	api    *API
	facts  RelationReader
	counts CountReader
}

var batches = []batch{
	{kind: topology.Like, idsName: "videoIds", itemName: "videoId", query: reflect.TypeFor[VideosQuery](), answer: reflect.TypeFor[VideosAnswer]()},
	{kind: topology.Favorite, idsName: "videoIds", itemName: "videoId", query: reflect.TypeFor[VideosQuery](), answer: reflect.TypeFor[VideosAnswer]()},
	{kind: topology.Follow, idsName: "userIds", itemName: "userId", query: reflect.TypeFor[UsersQuery](), answer: reflect.TypeFor[UsersAnswer]()},
}

func (b batch) serve(w http.ResponseWriter, r *http.Request) *Problem {
	text, p := readBody(w, r)
	if p != nil {
		return p
	}
	query, p := decodeBatch(text, b.idsName)
	if p != nil {
		return p
	}
	ctx := r.Context()
	// Counts first: they are local, and without them there is no answer.
	counts, err := b.counts.Counts(b.kind, query.unique)
	if err != nil {
		return b.api.countsProblem(ctx, err)
	}
	withdrawn, p := b.api.withdrawn(ctx, b.kind, query.unique)
	if p != nil {
		return p
	}
	facts, err := b.states(ctx, query)
	if err != nil {
		return b.api.storeProblem(ctx, err, "relations cannot be read now: try again")
	}
	b.write(w, query, facts, counts, withdrawn)
	return nil
}

// leastReader is a RelationReader that may be late, but never below a version.
type leastReader interface {
	StatesAtLeast(ctx context.Context, user string, kind topology.Kind, targets []string, least []uint64) ([]relations.Fact, error)
}

func (b batch) states(ctx context.Context, q batchBody) ([]relations.Fact, error) {
	user := IdentityOf(ctx).User
	if r, ok := b.facts.(leastReader); ok {
		return r.StatesAtLeast(ctx, user, b.kind, q.unique, q.least)
	}
	return b.facts.States(ctx, user, b.kind, q.unique)
}

var answers = sync.Pool{New: func() any { return new([]byte) }}

func (b batch) write(w http.ResponseWriter, q batchBody, facts []relations.Fact, counts []views.Count, withdrawn withdrawals) {
	buf := answers.Get().(*[]byte)
	defer answers.Put(buf)
	out := (*buf)[:0]
	out = append(out, `{"items":[`...)
	for i, id := range q.ids {
		if i > 0 {
			out = append(out, ',')
		}
		at := q.place[i]
		out = b.appendItem(out, id, facts[at], withdrawn.shown(at, counts[at]), withdrawn.reason(at), q.least != nil && facts[at].Version < q.least[at])
	}
	out = append(out, "]}\n"...)
	*buf = out
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Length", strconv.Itoa(len(out)))
	_, _ = w.Write(out)
}

// appendItem appends a VideoItem or UserItem.
//
// A fact below the client's minimum is not a stale read, since what is below it in
// a cache is read from where it is committed: it is the truth, marked.
func (b batch) appendItem(out []byte, id string, f relations.Fact, c views.Count, withdrawn string, below bool) []byte {
	out = append(append(append(out, `{"`...), b.itemName...), `":`...)
	out = appendString(out, id)
	out = append(append(append(out, `,"myState":"`...), f.State.String()...), `","relationVersion":`...)
	out = strconv.AppendUint(out, f.Version, 10)
	out = append(out, `,"displayCount":`...)
	out = strconv.AppendInt(out, c.Counts.Display(), 10)
	out = append(out, `,"countSnapshotAt":`...)
	if c.GeneratedAt.IsZero() {
		out = append(out, "null"...)
	} else {
		out = append(out, '"')
		out = append(c.GeneratedAt.UTC().AppendFormat(out, time.RFC3339Nano), '"')
	}
	if withdrawn != "" {
		out = append(append(append(out, `,"withdrawn":"`...), withdrawn...), '"')
	}
	if below {
		out = append(out, `,"belowMinimum":true`...)
	}
	return append(out, '}')
}
