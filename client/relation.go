package client

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Kind says what sort of relation it is.
type Kind string

// State is the absolute state of a relation; "" is not known.
type State string

// The kinds and their states. The first of each kind is that of a relation
// that never was or has ended.
const (
	KindLike     Kind = "like"
	KindFavorite Kind = "favorite"
	KindFollow   Kind = "follow"

	Unliked     State = "UNLIKED"
	Liked       State = "LIKED"
	Disliked    State = "DISLIKED"
	Unfavorited State = "UNFAVORITED"
	Favorited   State = "FAVORITED"
	Unfollowed  State = "UNFOLLOWED"
	Following   State = "FOLLOWING"
)

// maxIDBytes bounds an id, as the API does.
const maxIDBytes = 256

// kinds has of each kind the path of its resource around the target's id, and
// its states.
var kinds = map[Kind]struct {
	before, after string
	states        []State
}{
	KindLike:     {"/v1/videos/", "/like-relation", []State{Unliked, Liked, Disliked}},
	KindFavorite: {"/v1/videos/", "/favorite-relation", []State{Unfavorited, Favorited}},
	KindFollow:   {"/v1/users/", "/follow-relation", []State{Unfollowed, Following}},
}

// Relation names what the client's user has to a target.
type Relation struct {
	Kind   Kind   `json:"kind"`
	Target string `json:"target"` // a video, or a user for follow
}

// Like is the user's like of a video.
func Like(video string) Relation { return Relation{KindLike, video} }

// Favorite tells whether a video is among the user's favorites.
func Favorite(video string) Relation { return Relation{KindFavorite, video} }

// Follow tells whether the user follows another.
func Follow(user string) Relation { return Relation{KindFollow, user} }

func (r Relation) check() error {
	_, ok := kinds[r.Kind]
	switch {
	case !ok:
		return fmt.Errorf("%w: %q is no kind of relation", ErrInvalid, r.Kind)
	case r.Target == "" || len(r.Target) > maxIDBytes || !utf8.ValidString(r.Target):
		return fmt.Errorf("%w: the target's id must be 1 to %d bytes of UTF-8", ErrInvalid, maxIDBytes)
	}
	return nil
}

// checkState is for what is sent; what a newer server tells may be a state that
// this code does not know.
func (r Relation) checkState(s State) error {
	if err := r.check(); err != nil {
		return err
	}
	if !slices.Contains(kinds[r.Kind].states, s) {
		return fmt.Errorf("%w: %q is not a state of a %s", ErrInvalid, s, r.Kind)
	}
	return nil
}

// path is the relation's resource. An id of dots alone would mean a folder.
func (r Relation) path() string {
	id := url.PathEscape(r.Target)
	if strings.Trim(id, ".") == "" {
		id = strings.ReplaceAll(id, ".", "%2E")
	}
	k := kinds[r.Kind]
	return k.before + id + k.after
}

// Confirmed is a relation as the server committed it.
type Confirmed struct {
	State   State  `json:"state"`
	Version uint64 `json:"relationVersion"` // 0: there never was a relation
	// StateChangedAt is the time of the transaction that made the state; nil
	// for version 0, and where it was not told.
	StateChangedAt *time.Time `json:"stateChangedAt,omitempty"`
}

// View is what an app shows of a relation.
type View struct {
	Relation Relation
	// State is what the user wants, or, when nothing is pending, what is
	// confirmed; "" when neither is known.
	State     State
	Pending   bool // State is not confirmed yet
	Confirmed Confirmed
	Known     bool // Confirmed has been told by the server
	// Err says why the last Set did not become State: a *ConflictError, a
	// *Problem of the server's, or ErrExpired. The next Set clears it.
	Err error
}
