package privacy

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/tidemark/tidemark/internal/control"
	"github.com/tidemark/tidemark/internal/testenv"
	"github.com/tidemark/tidemark/topology"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func open(t testing.TB) *Store {
	t.Helper()
	url := testenv.Postgres(t)
	if err := control.Migrate(context.Background(), url); err != nil {
		t.Fatal(err)
	}
	s, err := Open(context.Background(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func apply(t testing.TB, s *Store, events ...Event) {
	t.Helper()
	for _, e := range events {
		if _, err := s.Apply(context.Background(), e); err != nil {
			t.Fatal(err)
		}
	}
}

// openAccount shows all it can.
func openAccount(id string) Account {
	return Account{ID: id, Version: 1, Status: Active, ShowLikes: true, ShowFavorites: true, ShowFollowing: true, ShowFollowers: true}
}

func (a Account) with(change func(*Account)) Account { change(&a); return a }

func TestUserList(t *testing.T) {
	s := open(t)
	apply(t, s,
		openAccount("open"),
		openAccount("likes-only").with(func(a *Account) { a.ShowFavorites, a.ShowFollowing, a.ShowFollowers = false, false, false }),
		openAccount("private").with(func(a *Account) { a.Private = true }),
		openAccount("closed").with(func(a *Account) { a.Status = Closed }),
		openAccount("banned").with(func(a *Account) { a.Status = Banned }),
		openAccount("blocks"), Block{"blocks", "viewer", 1, true},
		openAccount("blocked"), Block{"viewer", "blocked", 1, true},
		openAccount("lifted"), Block{"lifted", "viewer", 2, false},
	)
	for owner, want := range map[string]string{
		"open": "YYYY", "likes-only": "Y...", "private": "....", "closed": "....", "banned": "....",
		"blocks": "....", "blocked": "....", "lifted": "YYYY", "never spoken of": "....", "viewer": "YYYY",
	} {
		got := ""
		for _, list := range []List{Likes, Favorites, Following, Followers} {
			ok, err := s.UserList(context.Background(), "viewer", owner, list)
			if err != nil {
				t.Fatal(err)
			}
			got += map[bool]string{true: "Y", false: "."}[ok]
		}
		if got != want {
			t.Errorf("lists of %q: %s, want %s", owner, got, want)
		}
	}
}

// friendsOf are the friends of one user.
func friendsOf(user string, friends ...string) Friends {
	return func(_ context.Context, a string, others []string) ([]bool, error) {
		are := make([]bool, len(others))
		for i, b := range others {
			are[i] = a == user && slices.Contains(friends, b) || b == user && slices.Contains(friends, a)
		}
		return are, nil
	}
}

func TestVideoList(t *testing.T) {
	s := open(t)
	video := func(id string, status VideoStatus, likers, favoriters Audience) Video {
		return Video{ID: id, Version: 1, Author: "author", Status: status, Likers: likers, Favoriters: favoriters}
	}
	apply(t, s,
		video("open", Public, Everyone, Everyone), video("likers", Public, Everyone, Author), video("author", Public, Author, Nobody),
		video("private", Private, Everyone, Everyone), video("removed", Removed, Everyone, Everyone), Block{"author", "enemy", 1, true},
		video("friends", FriendsOnly, Everyone, Author), video("taken down", TakenDown, Everyone, Everyone), video("deleted", Deleted, Everyone, Everyone))
	s.UseFriends(friendsOf("author", "friend", "enemy"))
	name := map[Access]string{Shown: "shown", Withheld: "withheld", Unknown: "unknown"}
	for _, c := range []struct{ video, viewer, likers, favoriters string }{
		{"never spoken of", "viewer", "shown", "shown"},
		{"open", "viewer", "shown", "shown"},
		{"open", "enemy", "unknown", "unknown"},
		{"likers", "viewer", "shown", "withheld"},
		{"likers", "author", "shown", "shown"},
		{"author", "viewer", "withheld", "withheld"},
		{"author", "author", "shown", "withheld"},
		{"private", "viewer", "unknown", "unknown"},
		{"private", "author", "shown", "shown"},
		{"removed", "viewer", "unknown", "unknown"},
		{"removed", "author", "unknown", "unknown"},
		{"friends", "viewer", "unknown", "unknown"},
		{"friends", "friend", "shown", "withheld"},
		{"friends", "enemy", "unknown", "unknown"}, // blocked and a friend
		{"friends", "author", "shown", "shown"},
		{"taken down", "author", "unknown", "unknown"},
		{"deleted", "friend", "unknown", "unknown"},
	} {
		likers, err := s.VideoList(context.Background(), c.viewer, c.video, topology.Like)
		if err != nil {
			t.Fatal(err)
		}
		favoriters, err := s.VideoList(context.Background(), c.viewer, c.video, topology.Favorite)
		if err != nil || name[likers] != c.likers || name[favoriters] != c.favoriters {
			t.Errorf("%s to %s: likers %s, favoriters %s, want %s, %s, %v", c.video, c.viewer, name[likers], name[favoriters], c.likers, c.favoriters, err)
		}
	}
}

func TestUsersAndVideos(t *testing.T) {
	s := open(t)
	apply(t, s,
		openAccount("open"), openAccount("private").with(func(a *Account) { a.Private = true }),
		openAccount("closed").with(func(a *Account) { a.Status = Closed }), openAccount("banned").with(func(a *Account) { a.Status = Banned }),
		openAccount("viewer").with(func(a *Account) { a.Private = true }),
		Block{"blocks", "viewer", 1, true}, Block{"viewer", "blocked", 1, true}, Block{"other", "another", 1, true},
		Video{"private", 1, "someone", Private, Everyone, Everyone}, Video{"mine", 1, "viewer", Private, Nobody, Nobody},
		Video{"removed", 1, "viewer", Removed, Everyone, Everyone}, Video{"public", 1, "someone", Public, Nobody, Nobody},
		Video{"enemy's", 1, "blocks", Public, Everyone, Everyone},
		Video{"friend's", 1, "friend", FriendsOnly, Everyone, Everyone}, Video{"stranger's", 1, "someone", FriendsOnly, Everyone, Everyone},
		Video{"blocked friend's", 1, "blocks", FriendsOnly, Everyone, Everyone}, Video{"for mine", 1, "viewer", FriendsOnly, Everyone, Everyone},
		Video{"taken", 1, "viewer", TakenDown, Everyone, Everyone}, Video{"deleted", 1, "viewer", Deleted, Everyone, Everyone})
	users := strings.Fields("open private stranger closed viewer banned blocks blocked other open")
	got, err := s.Users(context.Background(), "viewer", users)
	if want := []bool{true, false, true, false, true, false, false, false, true, true}; err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("users %v, %v, want %v", got, err, want)
	}
	videos := strings.Fields("private mine removed public unheard mine enemy's")
	got, err = s.Videos(context.Background(), "viewer", videos)
	if want := []bool{false, true, false, true, true, true, false}; err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("videos %v, %v, want %v", got, err, want)
	}
	videos = []string{"friend's", "stranger's", "public", "blocked friend's", "for mine", "taken", "friend's", "deleted"}
	for _, c := range []struct {
		friends Friends
		want    []bool
	}{
		{nil, []bool{false, false, true, false, true, false, false, false}},
		{friendsOf("viewer", "friend", "blocks"), []bool{true, false, true, false, true, false, true, false}},
	} {
		s.UseFriends(c.friends)
		if got, err := s.Videos(context.Background(), "viewer", videos); err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("videos of friends %v, %v, want %v", got, err, c.want)
		}
	}
	s.UseFriends(func(context.Context, string, []string) ([]bool, error) { return nil, errors.New("away") })
	if got, err := s.Videos(context.Background(), "viewer", videos); err == nil {
		t.Errorf("friends cannot be asked: %v", got)
	}
	if got, err := s.Users(context.Background(), "viewer", nil); err != nil || len(got) != 0 {
		t.Errorf("of nobody: %v, %v", got, err)
	}
}

// TestOrderOfEvents applies the versions of one account, video and block in any
// order, some twice: the highest wins.
func TestOrderOfEvents(t *testing.T) {
	s := open(t)
	const versions = 6
	for seed := range uint64(5) {
		rng := rand.New(rand.NewPCG(seed, 7))
		id := func(what string) string { return fmt.Sprint(what, seed) }
		var events []Event
		for v := range uint64(versions) {
			last := v == versions-1
			a := openAccount(id("account")).with(func(a *Account) {
				if a.Version = v + 1; last {
					a.Status = Closed
				}
			})
			video := Video{id("video"), v + 1, "author", Public, Everyone, Everyone}
			if last {
				video.Status = Removed
			}
			events = append(events, a, video, Block{id("blocker"), "viewer", v + 1, last})
		}
		events = append(events, events[:versions]...)
		rng.Shuffle(len(events), func(i, j int) { events[i], events[j] = events[j], events[i] })
		apply(t, s, events...)
		users, err := s.Users(context.Background(), "viewer", []string{id("account"), id("blocker")})
		if err != nil || users[0] || users[1] {
			t.Errorf("seed %d: users %v, %v after their last versions", seed, users, err)
		}
		if access, err := s.VideoList(context.Background(), "viewer", id("video"), topology.Like); err != nil || access != Unknown {
			t.Errorf("seed %d: the removed video is %d, %v", seed, access, err)
		}
	}
	for _, c := range []struct {
		version uint64
		applied bool
	}{{8, true}, {8, false}, {7, false}, {11, true}} {
		if applied, err := s.Apply(context.Background(), openAccount("u").with(func(a *Account) { a.Version = c.version })); err != nil || applied != c.applied {
			t.Errorf("version %d: applied %t, %v, want %t", c.version, applied, err, c.applied)
		}
	}
}

func TestApplyRefusesWhatMakesNoSense(t *testing.T) {
	s := open(t)
	good := Video{"V1", 1, "u1", Public, Everyone, Everyone}
	for name, e := range map[string]Event{
		"accountId":              openAccount(""),
		"version 0":              openAccount("u").with(func(a *Account) { a.Version = 0 }),
		"version 18446744073709": openAccount("u").with(func(a *Account) { a.Version = 1<<64 - 1 }),
		"status":                 openAccount("u").with(func(a *Account) { a.Status = "active" }),
		"videoId":                Video{"V\n", 1, "u1", Public, Everyone, Everyone},
		"authorId":               Video{"V1", 1, "", Public, Everyone, Everyone},
		"likers":                 Video{"V1", 1, "u1", Public, "", Everyone},
		"favoriters":             Video{"V1", 1, "u1", Public, Everyone, "FRIENDS"},
		"blockedId is blockerId": Block{"u", "u", 1, true},
	} {
		if _, err := s.Apply(context.Background(), e); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), name) {
			t.Errorf("%+v: %v, want one that names %s", e, err, name)
		}
	}
	apply(t, s, good)
}

// TestOutage is an error, and never an answer.
func TestOutage(t *testing.T) {
	s := open(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if ok, err := s.UserList(ctx, "viewer", "u", Likes); ok || err == nil {
		t.Errorf("UserList: %t, %v", ok, err)
	}
	if access, err := s.VideoList(ctx, "viewer", "V1", topology.Like); access != Withheld || err == nil {
		t.Errorf("VideoList: %d, %v", access, err)
	}
	if got, err := s.Users(ctx, "viewer", []string{"u"}); got != nil || err == nil {
		t.Errorf("Users: %v, %v", got, err)
	}
	if got, err := s.Videos(ctx, "viewer", []string{"V1"}); got != nil || err == nil {
		t.Errorf("Videos: %v, %v", got, err)
	}
}
