package privacy

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/tidemark/tidemark/internal/config"
	"github.com/tidemark/tidemark/topology"
)

func TestJudge(t *testing.T) { // I7
	video := func(status VideoStatus) subject { return subject{known: true, video: status, author: "author"} }
	account := func(status AccountStatus) subject { return subject{known: true, account: status} }
	for name, c := range map[string]struct {
		policy Policy
		at     standing
		want   Verdict
	}{
		"unknown":                     {Policy{}, standing{}, Allowed},
		"unknown, refused":            {Policy{RefuseUnknown: true}, standing{}, NoTarget},
		"undecided":                   {Policy{RefuseUnknown: true}, standing{target: subject{undecided: true}}, Allowed},
		"public":                      {Policy{RefuseUnknown: true}, standing{target: video(Public)}, Allowed},
		"deleted":                     {Policy{}, standing{target: video(Deleted)}, NoTarget},
		"taken down":                  {Policy{}, standing{target: video(TakenDown)}, NoTarget},
		"removed":                     {Policy{}, standing{target: video(Removed)}, NoTarget},
		"deleted, to its author":      {Policy{}, standing{user: "author", target: video(Deleted)}, NoTarget},
		"private":                     {Policy{}, standing{target: video(Private)}, NoTarget},
		"private, to a friend":        {Policy{}, standing{target: video(Private), befriended: true}, NoTarget},
		"private, to its author":      {Policy{}, standing{user: "author", target: video(Private)}, Allowed},
		"friends":                     {Policy{}, standing{target: video(FriendsOnly)}, NoTarget},
		"friends, to one":             {Policy{}, standing{target: video(FriendsOnly), befriended: true}, Allowed},
		"friends, to a blocked one":   {Policy{}, standing{target: video(FriendsOnly), befriended: true, apart: true}, NoTarget},
		"friends, to its author":      {Policy{}, standing{user: "author", target: video(FriendsOnly)}, Allowed},
		"blocked":                     {Policy{}, standing{target: video(Public), apart: true}, NoTarget},
		"blocked, by rule allowed":    {Policy{AllowBlocked: true}, standing{target: video(Public), apart: true}, Allowed},
		"a status of a later time":    {Policy{}, standing{target: video("LOCKED")}, NoTarget},
		"by a closed account":         {Policy{}, standing{own: account(Closed), target: video(Public)}, NoAccount},
		"by a banned account":         {Policy{}, standing{own: account(Banned), target: video(Deleted)}, NoAccount},
		"by an active account":        {Policy{}, standing{own: account(Active), target: video(Public)}, Allowed},
		"follow":                      {Policy{}, standing{kind: topology.Follow, target: account(Active)}, Allowed},
		"follow, closed":              {Policy{}, standing{kind: topology.Follow, target: account(Closed)}, NoTarget},
		"follow, banned":              {Policy{}, standing{kind: topology.Follow, target: account(Banned)}, NoTarget},
		"follow, blocked":             {Policy{}, standing{kind: topology.Follow, target: account(Active), apart: true}, NoTarget},
		"follow, blocked and by rule": {Policy{AllowBlocked: true}, standing{kind: topology.Follow, target: account(Active), apart: true}, Allowed},
		"follow, blocked by one that nobody spoke of": {Policy{}, standing{kind: topology.Follow, apart: true}, NoTarget},
	} {
		if c.at.user == "" {
			c.at.user = "viewer"
		}
		if c.at.kind == 0 {
			c.at.kind = topology.Like
		}
		if got := c.policy.judge(c.at); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

// Whatever else holds: what is there for nobody is refused to everybody, what is
// private to all but its author, and a command is let through to nothing whose
// count is withdrawn from the same user, or hidden.
func TestJudgeProperties(t *testing.T) { // I7, J3
	rapid.Check(t, func(t *rapid.T) {
		flag := rapid.Bool()
		p := Policy{RefuseUnknown: flag.Draw(t, "refuseUnknown"), AllowBlocked: flag.Draw(t, "allowBlocked")}
		s := standing{
			kind: rapid.SampledFrom(topology.Kinds()).Draw(t, "kind"), user: rapid.SampledFrom([]string{"author", "viewer"}).Draw(t, "user"),
			apart: flag.Draw(t, "apart"), befriended: flag.Draw(t, "friends"),
		}
		accounts := rapid.SampledFrom([]AccountStatus{Active, Closed, Banned})
		if flag.Draw(t, "own known") {
			s.own = subject{known: true, account: accounts.Draw(t, "own")}
		}
		if s.kind == topology.Follow {
			s.target = subject{known: true, account: accounts.Draw(t, "target")}
		} else {
			s.target = subject{known: true, author: "author", video: rapid.SampledFrom([]VideoStatus{Public, FriendsOnly, Private, Removed, TakenDown, Deleted, "LOCKED"}).Draw(t, "target")}
		}
		got := p.judge(s)
		if s.own.ended() != (got == NoAccount) {
			t.Fatalf("%+v is %d", s, got)
		}
		count := withdrawn(s.target, s.user, func(string) bool { return s.befriended })
		if got == Allowed && count != CountShown {
			t.Fatalf("%+v is allowed, and its count %q", s, count)
		}
		if gone := s.target.ended() || s.kind != topology.Follow && s.target.video.audience() == nobody; gone != (count != CountShown && count != CountHidden) {
			t.Fatalf("the count of %+v is %q", s.target, count)
		}
		if s.target.video == Private && s.user != "author" && (got == Allowed || count != CountHidden) {
			t.Fatalf("%+v is %d, count %q", s, got, count)
		}
	})
}

// Every status may be marked as of high risk.
func TestStrongCheckKnowsEveryStatus(t *testing.T) {
	c := config.Default()
	c.Visibility.StrongCheck = []string{UnknownTarget}
	for _, s := range accountStatuses {
		c.Visibility.StrongCheck = append(c.Visibility.StrongCheck, string(s))
	}
	for _, s := range videoStatuses {
		c.Visibility.StrongCheck = append(c.Visibility.StrongCheck, string(s))
	}
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
}
