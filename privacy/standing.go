package privacy

import "github.com/tidemark/tidemark/topology"

// audience is for whom a video is there, by its status.
type audience uint8

const (
	everyone audience = iota
	friendsOnly
	authorOnly
	nobody
)

// audience is that of the status; a status that this version does not know is
// for nobody.
func (s VideoStatus) audience() audience {
	switch s {
	case Public:
		return everyone
	case FriendsOnly:
		return friendsOnly
	case Private:
		return authorOnly
	}
	return nobody
}

// Verdict is what becomes of a command that would begin a relation.
type Verdict uint8

// The verdicts.
const (
	// NoTarget refuses: for this user there is no such target. Whether it was
	// deleted, is private, is for friends, was never heard of, or whether someone
	// blocks someone is not told apart, since each would tell what is not the
	// user's to know.
	NoTarget Verdict = iota
	// NoAccount refuses: the user's own account is closed or banned.
	NoAccount
	// Allowed lets the command through.
	Allowed
)

// subject is what events said last of one account, video or pair of users; its
// zero value stands for one that nobody spoke of.
type subject struct {
	known bool
	// undecided: nothing is known, since the control database does not answer.
	undecided bool
	account   AccountStatus
	video     VideoStatus
	author    string // of a video
	blocked   bool   // of a pair: either blocks the other
}

// status is the subject's as the setting strong_check names it.
func (s subject) status() string {
	switch {
	case !s.known:
		return UnknownTarget
	case s.video != "":
		return string(s.video)
	}
	return string(s.account)
}

// UnknownTarget is in strong_check what no event spoke of.
const UnknownTarget = "UNKNOWN"

// ended tells whether the subject is an account that is not in use.
func (s subject) ended() bool { return s.known && s.account != "" && s.account != Active }

// Policy is what a deployment chooses about commands.
type Policy struct {
	// RefuseUnknown refuses targets that no event spoke of.
	RefuseUnknown bool
	// AllowBlocked lets users who block each other relate to each other and to
	// each other's videos.
	AllowBlocked bool
	// RefuseUndecided refuses while the control database does not answer and
	// nothing is remembered of the target; else the command goes through.
	RefuseUndecided bool
	// Strong are the statuses of accounts and videos, or UnknownTarget, for which
	// the database is asked at every command, whatever is remembered.
	Strong []string
}

// standing is all that a command's verdict depends on.
type standing struct {
	kind        topology.Kind
	user        string
	own, target subject // account of the user; video, or account for follow
	apart       bool    // the user and the target's user, or author, are blocked
	befriended  bool    // the user and the author are friends
}

// judge gives the verdict on a command that would begin a relation (I7).
func (p Policy) judge(s standing) Verdict {
	switch {
	case s.own.ended():
		return NoAccount
	case s.target.ended() || s.apart && !p.AllowBlocked:
		return NoTarget
	case !s.target.known:
		return verdict(!p.RefuseUnknown || s.target.undecided)
	case s.kind == topology.Follow:
		return Allowed
	}
	to := s.target.video.audience()
	switch {
	case to == nobody:
		return NoTarget
	case s.target.author == s.user:
		return Allowed
	case to == authorOnly:
		return NoTarget
	}
	return verdict(to == everyone || s.befriended)
}

func verdict(allowed bool) Verdict {
	if allowed {
		return Allowed
	}
	return NoTarget
}

// Withdrawal is why a target's public count is not shown.
type Withdrawal string

// The withdrawals, beside the statuses of a video that is there for nobody and
// of an account that is not in use, which are their own reasons.
const (
	// CountShown is no withdrawal.
	CountShown Withdrawal = ""
	// CountHidden is that of a video which is private, or for friends, to a viewer
	// who is neither its author nor a friend: the count is as that of a video that
	// never was, and no reason is told.
	CountHidden Withdrawal = "HIDDEN"
)

// withdrawn tells why the target's count is not shown to a viewer (J3).
// friendly is asked for videos that are for friends only.
func withdrawn(target subject, viewer string, friendly func(author string) bool) Withdrawal {
	switch {
	case !target.known:
		return CountShown
	case target.ended():
		return Withdrawal(target.account)
	case target.video == "":
		return CountShown
	}
	switch to := target.video.audience(); {
	case to == nobody:
		return Withdrawal(target.video)
	case to == everyone || target.author == viewer:
		return CountShown
	case to == friendsOnly && friendly(target.author):
		return CountShown
	}
	return CountHidden
}
