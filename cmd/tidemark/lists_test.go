package main

import (
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidemark/tidemark/api"
	"github.com/tidemark/tidemark/internal/control"
)

// TestLists likes a video by many and reads who did, page by page, before and
// after some of them hide.
func TestLists(t *testing.T) {
	s := theSystem(t)
	key, err := api.LoadKey(s.config(t).Auth.HS256KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	as := func(user string) *client {
		token, err := api.MintToken(key, user, "", time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		return &client{t, s.endpoints(t).API, user, token}
	}
	const video = "V-lists"
	var newestFirst []string
	for i := range 30 {
		user := fmt.Sprintf("lister-%02d", i)
		as(user).like(video, "lists-"+user)
		newestFirst = append([]string{user}, newestFirst...)
	}
	viewer := as("viewer")
	likers := func(size int) []string { return viewer.walk("/v1/videos/"+video+"/likers", size) }
	eventually(t, func() error {
		if n := len(likers(200)); n != len(newestFirst) {
			return fmt.Errorf("%d of %d likers", n, len(newestFirst))
		}
		return nil
	})
	for _, size := range []int{1, 7, 200} {
		if got := likers(size); !slices.Equal(got, newestFirst) {
			t.Errorf("pages of %d: %v", size, got)
		}
	}
	one := as("lister-00")
	one.like(video+"2", "lists-second")
	if got := one.walk("/v1/me/likes", 1); !slices.Equal(got, []string{video + "2", video}) {
		t.Errorf("my likes right after the answer: %v", got)
	}
	if err := viewer.try(http.MethodGet, "/v1/users/lister-00/likes", "", nil, nil); err == nil || !strings.Contains(err.Error(), "status 403") {
		t.Errorf("another's likes: %v", err)
	}

	events := filepath.Join(t.TempDir(), "events.jsonl")
	account := `{"type":"account","accountId":%q,"version":1,"status":%q,"private":%t,"showLikes":true,"showFavorites":false,"showFollowing":false,"showFollowers":false}` + "\n"
	lines := fmt.Sprintf(account, "lister-00", "ACTIVE", false) + fmt.Sprintf(account, "lister-03", "ACTIVE", true) + fmt.Sprintf(account, "lister-04", "CLOSED", false) +
		`{"type":"block","blockerId":"lister-05","blockedId":"viewer","version":1,"active":true}` + "\n"
	if err := os.WriteFile(events, []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := must(t, exitOK, s.at("privacy", "apply", events, "--as", "ann", "--reason", "they asked")...); !strings.Contains(r.out, "4 events applied, 0 not newer") {
		t.Error(r)
	}
	s.wantAudit(t, "account:lister-03", control.Entry{Who: "ann", Action: "privacy.event", Reason: "they asked"})
	if r := must(t, exitOK, s.at("privacy", "apply", events, "--output", "json")...); !strings.Contains(r.out, `"passed": 4`) {
		t.Error(r)
	}
	hidden := []string{"lister-03", "lister-04", "lister-05"}
	want := slices.DeleteFunc(slices.Clone(newestFirst), func(u string) bool { return slices.Contains(hidden, u) })
	if got := likers(7); !slices.Equal(got, want) { // from the next read on
		t.Errorf("after some hid: %v", got)
	}
	if got := viewer.walk("/v1/users/lister-00/likes", 5); !slices.Equal(got, []string{video + "2", video}) {
		t.Errorf("likes that are shown: %v", got)
	}
	shown := fmt.Sprintf(account, "lister-03", "ACTIVE", false)
	shown = strings.Replace(shown, `"version":1`, `"version":3`, 1) + fmt.Sprintf(account, "lister-03", "CLOSED", false)
	if err := os.WriteFile(events, []byte(shown), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := must(t, exitOK, s.at("privacy", "publish", events)...); !strings.Contains(r.out, "2 events published") {
		t.Error(r)
	}
	hidden = hidden[1:]
	want = slices.DeleteFunc(slices.Clone(newestFirst), func(u string) bool { return slices.Contains(hidden, u) })
	eventually(t, func() error { // when role privacy has it
		if got := likers(7); !slices.Equal(got, want) {
			return fmt.Errorf("after one was shown again: %v", got)
		}
		return nil
	})
	if err := os.WriteFile(events, []byte(lines+`{"type":"block"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, verb := range []string{"apply", "publish"} {
		if r := must(t, exitError, s.at("privacy", verb, events)...); !strings.Contains(r.errOut, "line 5: invalid privacy event") {
			t.Error(r)
		}
	}
}

// wantAudit looks for the newest line of a subject.
func (s *system) wantAudit(t *testing.T, subject string, want control.Entry) {
	t.Helper()
	db, err := control.Open(t.Context(), s.config(t).Control)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	lines, err := db.Entries(t.Context(), subject, 1)
	if err != nil || len(lines) != 1 || lines[0].Who != want.Who || lines[0].Action != want.Action || lines[0].Reason != want.Reason {
		t.Errorf("the audit of %s has %+v, %v; want %+v", subject, lines, err, want)
	}
}

// walk reads a list to its end.
func (c *client) walk(path string, size int) (ids []string) {
	c.t.Helper()
	q := url.Values{"pageSize": {fmt.Sprint(size)}}
	for {
		var page struct {
			Items         []struct{ UserID, VideoID string }
			NextPageToken string
		}
		c.do(http.MethodGet, path+"?"+q.Encode(), "", nil, &page)
		for _, item := range page.Items {
			ids = append(ids, item.UserID+item.VideoID)
		}
		if page.NextPageToken == "" {
			return ids
		}
		q.Set("pageToken", page.NextPageToken)
	}
}
