package api

import (
	"context"
	"net/http"
	"reflect"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tidemark/tidemark/internal/pagetoken"
	"github.com/tidemark/tidemark/privacy"
	"github.com/tidemark/tidemark/relations"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/views"
)

// UserLister reads what a user is in a state to; *relations.Store is one.
type UserLister interface {
	List(ctx context.Context, q relations.ListQuery) (relations.ListPage, error)
}

// TargetLister reads who is in the counted state to a target; *views.Likers is
// one. An error never stands for an empty list.
type TargetLister interface {
	Page(ctx context.Context, q views.LikersQuery) (views.LikersPage, error)
}

// Privacy decides, at each read, what may be shown to whom; *privacy.Store is
// one. While it does not answer nothing is shown.
type Privacy interface {
	UserList(ctx context.Context, viewer, owner string, list privacy.List) (bool, error)
	VideoList(ctx context.Context, viewer, video string, kind topology.Kind) (privacy.Access, error)
	Users(ctx context.Context, viewer string, users []string) ([]bool, error)
	Videos(ctx context.Context, viewer string, videos []string) ([]bool, error)
}

// ListSources are what lists are answered from. All are required.
type ListSources struct {
	Users   UserLister
	Targets TargetLister
	Privacy Privacy
	Counts  CountReader // of the summary
	Tokens  *pagetoken.Signer
}

// lists serves the lists.
type lists struct {
	ListSources
	api *API
}

// Limits of a list.
const (
	MaxPageSize     = 200
	DefaultPageSize = 20
	// scanRounds is how often a page asks for more in place of entries that may
	// not be shown. Then it ends short, and the next one goes on.
	scanRounds = 5
)

// A listed is an entry of any list.
type listed struct {
	id string
	at time.Time
}

// userList is a list of what a user is in a state to.
type userList struct {
	name   string // in paths and page tokens
	what   string
	state  topology.State
	shown  privacy.List
	result reflect.Type
	answer func([]listed, listEnd) any
}

var userLists = []userList{
	{name: "likes", what: "Videos that %s liked", state: topology.Liked, shown: privacy.Likes, result: reflect.TypeFor[ListAnswer[LikedVideo]](),
		answer: answerOf(func(e listed) LikedVideo { return LikedVideo{e.id, e.at} })},
	{name: "favorites", what: "Videos that %s favorited", state: topology.Favorited, shown: privacy.Favorites, result: reflect.TypeFor[ListAnswer[FavoritedVideo]](),
		answer: answerOf(func(e listed) FavoritedVideo { return FavoritedVideo{e.id, e.at} })},
	{name: "following", what: "Users that %s followed", state: topology.Following, shown: privacy.Following, result: reflect.TypeFor[ListAnswer[FollowedUser]](),
		answer: answerOf(func(e listed) FollowedUser { return FollowedUser{e.id, e.at} })},
}

// targetList is a list of who is in the counted state to a target.
type targetList struct {
	name, path, what string
	kind             topology.Kind
	result           reflect.Type
	answer           func([]listed, listEnd) any
}

var targetLists = []targetList{
	{name: "likers", path: "/v1/videos/{id}/likers", what: "Users who like a video", kind: topology.Like, result: reflect.TypeFor[ListAnswer[Liker]](),
		answer: answerOf(func(e listed) Liker { return Liker{e.id, e.at} })},
	{name: "favoriters", path: "/v1/videos/{id}/favoriters", what: "Users who have a video as a favorite", kind: topology.Favorite, result: reflect.TypeFor[ListAnswer[Favoriter]](),
		answer: answerOf(func(e listed) Favoriter { return Favoriter{e.id, e.at} })},
	{name: "followers", path: "/v1/users/{id}/followers", what: "Users who follow a user", kind: topology.Follow, result: reflect.TypeFor[ListAnswer[Follower]](),
		answer: answerOf(func(e listed) Follower { return Follower{e.id, e.at} })},
}

const listDescription = "A live list, newest first. What privacy, blocks and account states hide is left out at each read, " +
	"so a page may be short, or empty, and still have a nextPageToken: only null ends the list. "

// listProblems are those of every list.
var listProblems = []problemKind{kindPageTokenExpired, kindPrivacyUnavailable}

// RegisterLists adds the lists and the summary of a video's likers. Once per
// API.
func RegisterLists(a *API, s ListSources) {
	l := &lists{ListSources: s, api: a}
	for _, u := range userLists {
		l.addUserList(u, "/v1/me/"+u.name, "list-my-"+u.name, "I", nil, func(r *http.Request) (string, *Problem) {
			return IdentityOf(r.Context()).User, nil
		})
		id := idParam("id", "The user's id")
		l.addUserList(u, "/v1/users/{id}/"+u.name, "list-"+u.name, "a user", id, func(r *http.Request) (string, *Problem) {
			return pathID(r, "id")
		})
	}
	for _, t := range targetLists {
		a.add(operation{
			method: http.MethodGet, path: t.path, id: "list-" + t.name, tag: "lists", summary: t.what,
			description: listDescription + "It follows the facts and may lag behind them and behind the count: asOf and watermarks say how far it is.",
			params:      append([]*huma.Param{idParam("id", "The id whose list it is")}, pageParams()...),
			result:      t.result,
			problems:    append([]problemKind{kindListWithheld, kindListGenerationGone, kindListsUnavailable}, listProblems...),
			handle:      func(w http.ResponseWriter, r *http.Request) *Problem { return l.target(w, r, t) },
		})
	}
	l.addSummary()
}

func (l *lists) addUserList(u userList, path, id, who string, param *huma.Param, owner func(*http.Request) (string, *Problem)) {
	op := operation{
		method: http.MethodGet, path: path, id: id, tag: "lists",
		summary:     strings.Replace(u.what, "%s", who, 1),
		description: listDescription + "Its entries are committed facts as of asOf.",
		params:      pageParams(),
		result:      u.result,
		problems:    append([]problemKind{kindStoreUnavailable}, listProblems...),
		handle: func(w http.ResponseWriter, r *http.Request) *Problem {
			user, p := owner(r)
			if p != nil {
				return p
			}
			return l.user(w, r, u, user)
		},
	}
	if param != nil {
		op.params = append([]*huma.Param{param}, op.params...)
		op.problems = append([]problemKind{kindListWithheld}, op.problems...)
	}
	l.api.add(op)
}

// withheld is the answer for a list that is not the viewer's to see. It is the
// same whether there is such a user or not.
func withheld() *Problem {
	return newProblem(kindListWithheld, "this list is not shown to you: whether there is one is not told")
}

func (l *lists) privacyProblem(ctx context.Context, err error) *Problem {
	l.api.quiet.warn(ctx, "privacy rules cannot be asked", err)
	return unavailable(kindPrivacyUnavailable, "what may be shown to you cannot be decided now: try again")
}
