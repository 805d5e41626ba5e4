package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tidemark/tidemark/internal/pagetoken"
)

const (
	pageSizeName  = "pageSize"
	pageTokenName = "pageToken"
)

// pageParams document the parameters of every list.
func pageParams() []*huma.Param {
	return []*huma.Param{
		{Name: pageSizeName, In: "query", Schema: &huma.Schema{Type: huma.TypeInteger, Minimum: ptr(1.0), Maximum: ptr(float64(MaxPageSize)), Default: DefaultPageSize},
			Description: "The most items of the page; it may change from page to page"},
		{Name: pageTokenName, In: "query", Schema: &huma.Schema{Type: huma.TypeString, MinLength: ptr(1), MaxLength: ptr(pagetoken.MaxBytes)},
			Description: "nextPageToken of the page before; left out for the first page. It is opaque, good for a day, and only for this list and this user"},
	}
}

// pageQuery is what a request asks of a list.
type pageQuery struct {
	size  int
	bound pagetoken.Query
	after *pagetoken.Place // nil: the first page
}

// pageQueryOf reads the query of a request for a list of subject.
func (l *lists) pageQueryOf(r *http.Request, list, subject string) (q pageQuery, _ *Problem) {
	q.size = DefaultPageSize
	q.bound = pagetoken.Query{List: list, Subject: subject, Viewer: IdentityOf(r.Context()).User}
	values, p := queryValues(r.URL.RawQuery, pageSizeName, pageTokenName)
	if p != nil {
		return q, p
	}
	if text, given := values[pageSizeName]; given {
		if q.size, p = pageSize(text); p != nil {
			return q, p
		}
	}
	if token, given := values[pageTokenName]; given {
		place, err := l.Tokens.Open(q.bound, token)
		q.after = &place
		return q, tokenProblem(err)
	}
	return q, nil
}

func pageSize(text string) (int, *Problem) {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > MaxPageSize || text[0] == '+' {
		return 0, invalid("query."+pageSizeName, fmt.Sprintf("is not a whole number in 1..%d", MaxPageSize))
	}
	return n, nil
}

// tokenProblem says no more of a token that is not ours than that.
func tokenProblem(err error) *Problem {
	const again = "read the list from its first page, without a token"
	switch {
	case err == nil:
		return nil
	case errors.Is(err, pagetoken.ErrExpired):
		return newProblem(kindPageTokenExpired, "query.pageToken has expired: "+again)
	case errors.Is(err, pagetoken.ErrVersion):
		return newProblem(kindPageTokenExpired, "query.pageToken was made by an earlier version: "+again)
	}
	return invalid("query."+pageTokenName, "is not a page token of this list for you: "+again)
}

// A walk goes along a list. Its place is behind what next has given.
type walk interface {
	next(ctx context.Context, limit int) (entries []listed, more bool, p *Problem)
	place() pagetoken.Place
	// end says up to when all that next gave is complete.
	end() listEnd
}

// page reads up to size entries that may be shown. Every entry that the walk
// gives is either in the page or hidden, so the walk's place, which is behind
// the last entry scanned, neither repeats nor loses one; and a list whose
// entries are all hidden is still got through.
func (l *lists) page(ctx context.Context, q pageQuery, w walk, shown func(context.Context, []string) ([]bool, error)) ([]listed, listEnd, *Problem) {
	var items []listed
	more := true
	for round := 0; more && len(items) < q.size && round < scanRounds; round++ {
		var batch []listed
		var p *Problem
		if batch, more, p = w.next(ctx, q.size-len(items)); p != nil {
			return nil, listEnd{}, p
		}
		visible, err := shown(ctx, ids(batch))
		if err != nil {
			return nil, listEnd{}, l.privacyProblem(ctx, err)
		}
		for i, e := range batch {
			if visible[i] {
				items = append(items, e)
			}
		}
	}
	end := w.end()
	if more {
		token, err := l.seal(q.bound, w.place())
		if err != nil { // a level place always fits
			return nil, listEnd{}, newProblem(kindInternal, "the place in the list cannot be told")
		}
		end.next = &token
	}
	return items, end, nil
}

// seal makes a page token. A place that is too long for one, with very many
// reverse shards or very long ids, is told by its last entry alone.
func (l *lists) seal(q pagetoken.Query, p pagetoken.Place) (string, error) {
	token, err := l.Tokens.Seal(q, p)
	if errors.Is(err, pagetoken.ErrTooLong) {
		token, err = l.Tokens.Seal(q, level(p))
	}
	return token, err
}

// level moves every shard that has told something to the last entry told of
// all. Nothing stood between when the page was read, since entries are told in
// one order; but an entry that reaches its shard late, and belongs there, is
// not told any more. The places of the shards themselves would still tell it.
func level(p pagetoken.Place) pagetoken.Place {
	out := pagetoken.Place{Generation: p.Generation, Positions: make([]pagetoken.Position, len(p.Positions))}
	var last pagetoken.Position
	for i, at := range p.Positions {
		if i == 0 || at.AtUs < last.AtUs || at.AtUs == last.AtUs && at.ID > last.ID {
			last = at
		}
	}
	for i, at := range p.Positions {
		out.Positions[i] = pagetoken.Position{Shard: at.Shard, AtUs: last.AtUs, ID: last.ID}
	}
	return out
}

func ids(entries []listed) []string {
	out := make([]string, len(entries))
	for i, e := range entries {
		out[i] = e.id
	}
	return out
}

// all shows everything.
func all(_ context.Context, ids []string) ([]bool, error) {
	shown := make([]bool, len(ids))
	for i := range shown {
		shown[i] = true
	}
	return shown, nil
}
