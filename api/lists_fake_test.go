package api

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidemark/tidemark/internal/pagetoken"
	"github.com/tidemark/tidemark/privacy"
	"github.com/tidemark/tidemark/relations"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/views"
)

// fakeLists are the lists of everyone, and the rules of privacy, in memory. Of
// user lists it has one, of whomever is asked; so of targets.
type fakeLists struct {
	facts []relations.Fact // newest first, of one time by descending target

	likers     []views.Liker
	generation uint32 // 0 is as 1
	asOf       []views.ShardAsOf
	staleness  time.Duration
	likersErr  error
	asked      []views.LikersQuery

	open       map[string]bool           // users whose lists are shown
	access     map[string]privacy.Access // of videos; Shown if missing
	hidden     map[string]bool           // users and videos
	privacyErr error
}

var pageKey = []byte("page-token-key-page-token-key-32")

func (f *fakeLists) sources(t testing.TB, counts CountReader) ListSources {
	t.Helper()
	tokens, err := pagetoken.NewSigner(pageKey)
	if err != nil {
		t.Fatal(err)
	}
	return ListSources{Users: f, Targets: f, Privacy: f, Counts: counts, Tokens: tokens}
}

func (f *fakeLists) List(_ context.Context, q relations.ListQuery) (relations.ListPage, error) {
	page := relations.ListPage{AsOf: relations.ListAsOf{Shard: 2, At: testTime.Add(time.Minute), Seal: 9, SealedAt: testTime}}
	for _, fact := range f.facts {
		before := cmp.Or(q.After.ChangedAt.Compare(fact.StateChangedAt), cmp.Compare(q.After.Target, fact.Relation.Target))
		if q.After != (relations.ListPosition{}) && before <= 0 {
			continue
		}
		if page.More = len(page.Facts) == q.Limit; page.More {
			break
		}
		page.Facts = append(page.Facts, fact)
	}
	return page, nil
}

// fakeReverseShards is R.
const fakeReverseShards = 4

func fakeShard(user string) uint32 {
	h := uint32(0)
	for _, c := range []byte(user) {
		h = h*31 + uint32(c)
	}
	return h % fakeReverseShards
}

func (f *fakeLists) Page(_ context.Context, q views.LikersQuery) (views.LikersPage, error) {
	f.asked = append(f.asked, q)
	generation := max(f.generation, 1)
	switch {
	case f.likersErr != nil:
		return views.LikersPage{}, f.likersErr
	case q.Generation != 0 && q.Generation != generation:
		return views.LikersPage{}, views.ErrGenerationGone
	case q.Limit < 1 || q.Limit > views.MaxLikersPage:
		return views.LikersPage{}, views.ErrLikersQuery
	}
	told := map[uint32]views.ShardPosition{}
	for _, p := range q.Frontier {
		told[p.Shard] = p
	}
	page := views.LikersPage{Generation: generation, Done: true, AsOf: f.asOf, Staleness: f.staleness}
	slices.SortFunc(f.likers, func(a, b views.Liker) int {
		return cmp.Or(b.LikedAt.Compare(a.LikedAt), strings.Compare(a.User, b.User))
	})
	for _, l := range f.likers {
		shard := fakeShard(l.User)
		at, ok := told[shard]
		if ok && (l.LikedAt.UnixMicro() > at.LikedAtUs || l.LikedAt.UnixMicro() == at.LikedAtUs && l.User <= at.User) {
			continue
		}
		if page.Done = len(page.Entries) < q.Limit; !page.Done {
			break
		}
		page.Entries = append(page.Entries, l)
		told[shard] = views.ShardPosition{Shard: shard, LikedAtUs: l.LikedAt.UnixMicro(), User: l.User}
	}
	for shard := range uint32(fakeReverseShards) {
		if p, ok := told[shard]; ok {
			page.Frontier = append(page.Frontier, p)
		}
	}
	return page, nil
}

func (f *fakeLists) UserList(_ context.Context, viewer, owner string, _ privacy.List) (bool, error) {
	return viewer == owner || f.open[owner], f.privacyErr
}

func (f *fakeLists) VideoList(_ context.Context, _, video string, _ topology.Kind) (privacy.Access, error) {
	if access, ok := f.access[video]; ok {
		return access, f.privacyErr
	}
	return privacy.Shown, f.privacyErr
}

func (f *fakeLists) Users(_ context.Context, _ string, users []string) ([]bool, error) {
	if f.privacyErr != nil {
		return nil, f.privacyErr
	}
	shown := make([]bool, len(users))
	for i, id := range users {
		shown[i] = !f.hidden[id]
	}
	return shown, nil
}

func (f *fakeLists) Videos(ctx context.Context, viewer string, videos []string) ([]bool, error) {
	return f.Users(ctx, viewer, videos)
}
