package main

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tidemark/tidemark/api"
)

// TestDeletedVideo likes a video, deletes it while a like is on its way, and
// restores it: the late like changes what is counted and nothing that is shown,
// verify finds facts and counts equal throughout, and the right number is back
// (I7, J3).
func TestDeletedVideo(t *testing.T) {
	s := theSystem(t)
	const video = "V-deleted"
	key, err := api.LoadKey(s.config(t).Auth.HS256KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	as := func(user, role string) *client {
		token, err := api.MintToken(key, user, role, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		return &client{t, s.endpoints(t).API, user, token}
	}
	root, fan, late := as("root", api.OperatorRole), as("deleted-fan", ""), as("deleted-late", "")
	say := func(version int, status string, applied bool) {
		t.Helper()
		var a api.PrivacyEventAnswer
		root.do(http.MethodPost, "/v1/privacy-events", "", map[string]any{
			"type": "video", "videoId": video, "version": version, "authorId": "deleted-author", "status": status, "likers": "EVERYONE", "favoriters": "EVERYONE",
		}, &a)
		if a.Applied != applied {
			t.Errorf("version %d: applied %t", version, a.Applied)
		}
	}
	count := func(c *client) (a api.CountAnswer) {
		t.Helper()
		c.do(http.MethodGet, "/v1/targets/like/"+video+"/count", "", nil, &a)
		return a
	}
	shows := func(n int64, withdrawn string) func() error {
		return func() error {
			if a := count(fan); a.DisplayCount != n || a.Active != n || a.Withdrawn != withdrawn {
				return fmt.Errorf("the count is %d, withdrawn %q", a.DisplayCount, a.Withdrawn)
			}
			return nil
		}
	}
	say(5, "PUBLIC", true)
	fan.like(video, "deleted-1")
	eventually(t, shows(1, ""))

	// Committed before the deletion, counted after it.
	must(t, exitOK, s.at("cdc", "pause")...)
	defer func() { call(t, s.at("cdc", "resume")...) }() // others use the system too
	late.like(video, "deleted-2")
	say(9, "DELETED", true)
	say(8, "PUBLIC", false)
	eventually(t, shows(0, "DELETED"))
	must(t, exitOK, s.at("cdc", "resume")...)
	eventually(t, func() error {
		if a := count(root); a.Active != 2 || a.DisplayCount != 0 || a.Withdrawn != "DELETED" {
			return fmt.Errorf("to an operator: %+v", a)
		}
		return nil
	})
	if err := shows(0, "DELETED")(); err != nil {
		t.Error("after the late like", err)
	}
	if got := fan.walk("/v1/videos/"+video+"/likers", 5); len(got) != 0 {
		t.Errorf("likers %v", got)
	}
	wantVerdict(t, exitOK, s.at()...)

	for path, state := range map[string]string{"videos/" + video + "/like-relation": "DISLIKED", "videos/" + video + "/favorite-relation": "FAVORITED"} {
		err := as("deleted-new", "").try(http.MethodPut, "/v1/"+path, "new-"+state, map[string]any{"desiredState": state}, nil)
		if err == nil || !strings.Contains(err.Error(), "status 404") || !strings.Contains(err.Error(), "target-unknown") {
			t.Errorf("%s: %v", state, err)
		}
	}
	fan.do(http.MethodPut, "/v1/videos/"+video+"/like-relation", "deleted-3", map[string]any{"desiredState": "UNLIKED"}, nil)
	say(12, "PUBLIC", true)
	eventually(t, shows(1, ""))
	if got := fan.walk("/v1/videos/"+video+"/likers", 5); len(got) != 1 || got[0] != "deleted-late" {
		t.Errorf("likers %v", got)
	}
	wantVerdict(t, exitOK, s.at()...)
}

// TestFriendsOnly: only who follows the author and is followed back may like a
// video for friends, and sees its count.
func TestFriendsOnly(t *testing.T) {
	s := theSystem(t)
	where := s.endpoints(t).API
	author, friend, fan := newClient(t, where, "ff-author", s.at()...), newClient(t, where, "ff-friend", s.at()...), newClient(t, where, "ff-fan", s.at()...)
	follow := func(c *client, other string) {
		c.do(http.MethodPut, "/v1/users/"+other+"/follow-relation", c.user+other, map[string]any{"desiredState": "FOLLOWING"}, nil)
	}
	follow(author, "ff-friend")
	follow(friend, "ff-author")
	follow(fan, "ff-author")
	events := filepath.Join(t.TempDir(), "events.jsonl")
	line := `{"type":"video","videoId":"V-ff","version":1,"authorId":"ff-author","status":"FRIENDS","likers":"EVERYONE","favoriters":"EVERYONE"}`
	if err := os.WriteFile(events, []byte(line), 0o600); err != nil {
		t.Fatal(err)
	}
	must(t, exitOK, s.at("privacy", "apply", events)...)
	like := func(c *client) error {
		return c.try(http.MethodPut, "/v1/videos/V-ff/like-relation", "ff-"+c.user, map[string]any{"desiredState": "LIKED"}, nil)
	}
	eventually(t, func() error {
		if err := like(fan); err == nil || !strings.Contains(err.Error(), "target-unknown") {
			return fmt.Errorf("one who only follows: %w", err)
		}
		return nil
	})
	for _, c := range []*client{friend, author} {
		if err := like(c); err != nil {
			t.Errorf("%s: %v", c.user, err)
		}
	}
	for c, want := range map[*client]int64{friend: 2, author: 2, fan: 0} {
		eventually(t, func() error {
			var a api.CountAnswer
			if c.do(http.MethodGet, "/v1/targets/like/V-ff/count", "", nil, &a); a.DisplayCount != want || a.Found != (want > 0) {
				return fmt.Errorf("%s sees %+v", c.user, a)
			}
			return nil
		})
	}
}
