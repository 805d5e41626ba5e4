package privacy

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// ErrInvalid says that an event makes no sense, whatever is stored. Its message
// names fields and numbers and holds nothing else of the event.
var ErrInvalid = errors.New("invalid privacy event")

// What can be wrong with a field of an ErrInvalid.
var (
	ErrID      = errors.New("bad id")
	ErrVersion = errors.New("bad version")
	ErrValue   = errors.New("unknown value")
)

// AccountStatus is whether an account is in use.
type AccountStatus string

// The account statuses.
const (
	Active AccountStatus = "ACTIVE"
	Closed AccountStatus = "CLOSED" // by its owner; also a deleted one
	Banned AccountStatus = "BANNED"
)

// VideoStatus is whether a video is there for others.
type VideoStatus string

// The video statuses.
const (
	Public      VideoStatus = "PUBLIC"
	FriendsOnly VideoStatus = "FRIENDS"    // for its author and the author's friends (Friends)
	Private     VideoStatus = "PRIVATE"    // for its author only
	Removed     VideoStatus = "REMOVED"    // for nobody: deleted or taken down, it is not said which
	TakenDown   VideoStatus = "TAKEN_DOWN" // for nobody, by the platform
	Deleted     VideoStatus = "DELETED"    // for nobody, by its author
)

// Audience is who may see the users related to a video.
type Audience string

// The audiences.
const (
	Everyone Audience = "EVERYONE"
	Author   Audience = "AUTHOR"
	Nobody   Audience = "NOBODY"
)

// Event is what is now so of one account, video or block: an Account, a Video
// or a Block.
type Event interface {
	// check tells what is wrong with the event.
	check() error
	// key is its key in stream privacy-events.
	key() string
	// message is its value in that stream.
	message() *tidemarkv1.PrivacyEvent
	// upsert is the statement that stores it over any lower version.
	upsert() (sql string, args []any)
}

// Account is all that holds for an account from a version on.
type Account struct {
	ID      string        `json:"accountId"`
	Version uint64        `json:"version"`
	Status  AccountStatus `json:"status"`
	// Private accounts stand in nobody else's view of a list, and show none.
	Private bool `json:"private"`
	// Lists that others may see.
	ShowLikes     bool `json:"showLikes"`
	ShowFavorites bool `json:"showFavorites"`
	ShowFollowing bool `json:"showFollowing"`
	ShowFollowers bool `json:"showFollowers"`
}

// Video is all that holds for a video from a version on.
type Video struct {
	ID         string      `json:"videoId"`
	Version    uint64      `json:"version"`
	Author     string      `json:"authorId"`
	Status     VideoStatus `json:"status"`
	Likers     Audience    `json:"likers"`
	Favoriters Audience    `json:"favoriters"`
}

// Block says whether a user blocks another from a version on.
type Block struct {
	Blocker string `json:"blockerId"`
	Blocked string `json:"blockedId"`
	Version uint64 `json:"version"`
	Active  bool   `json:"active"` // false: lifted
}

func (a Account) check() error {
	return errors.Join(checkID("accountId", a.ID), checkVersion(a.Version),
		oneOf("status", a.Status, Active, Closed, Banned))
}

func (v Video) check() error {
	return errors.Join(checkID("videoId", v.ID), checkID("authorId", v.Author), checkVersion(v.Version),
		oneOf("status", v.Status, Public, FriendsOnly, Private, Removed, TakenDown, Deleted),
		oneOf("likers", v.Likers, Everyone, Author, Nobody), oneOf("favoriters", v.Favoriters, Everyone, Author, Nobody))
}

func (b Block) check() error {
	err := errors.Join(checkID("blockerId", b.Blocker), checkID("blockedId", b.Blocked), checkVersion(b.Version))
	if b.Blocker == b.Blocked {
		err = errors.Join(err, fmt.Errorf("%w: blockedId is blockerId: nobody blocks themselves", ErrID))
	}
	return err
}

func checkID(field, id string) error {
	if err := topology.CheckID(id); err != nil {
		return fmt.Errorf("%w: %s %w", ErrID, field, err)
	}
	return nil
}

func checkVersion(v uint64) error {
	if v == 0 || v > math.MaxInt64 {
		return fmt.Errorf("%w: version %d is not in 1..%d", ErrVersion, v, int64(math.MaxInt64))
	}
	return nil
}

func oneOf[T ~string](field string, have T, all ...T) error {
	if !slices.Contains(all, have) {
		return fmt.Errorf("%w: %s is not one of %v", ErrValue, field, all)
	}
	return nil
}

func (a Account) upsert() (string, []any) {
	return `
		INSERT INTO privacy_account AS stored (account_id, version, status, private, show_likes, show_favorites, show_following, show_followers)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
		ON CONFLICT (account_id) DO UPDATE
		SET version = $2, status = $3, private = $4, show_likes = $5, show_favorites = $6, show_following = $7, show_followers = $8
		WHERE stored.version < $2`,
		[]any{a.ID, int64(a.Version), string(a.Status), a.Private, a.ShowLikes, a.ShowFavorites, a.ShowFollowing, a.ShowFollowers}
}

func (v Video) upsert() (string, []any) {
	return `
		INSERT INTO privacy_video AS stored (video_id, version, author_id, status, likers, favoriters) VALUES ($1, $2, $3, $4, $5, $6)
		ON CONFLICT (video_id) DO UPDATE SET version = $2, author_id = $3, status = $4, likers = $5, favoriters = $6
		WHERE stored.version < $2`,
		[]any{v.ID, int64(v.Version), v.Author, string(v.Status), string(v.Likers), string(v.Favoriters)}
}

func (b Block) upsert() (string, []any) {
	return `
		INSERT INTO privacy_block AS stored (blocker_id, blocked_id, version, active) VALUES ($1, $2, $3, $4)
		ON CONFLICT (blocker_id, blocked_id) DO UPDATE SET version = $3, active = $4
		WHERE stored.version < $3`,
		[]any{b.Blocker, b.Blocked, int64(b.Version), b.Active}
}
