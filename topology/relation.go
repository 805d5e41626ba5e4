package topology

import (
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// Kind says what sort of relation a user has to a target. Its numbers are
// those of the protobuf enum and of the relation table.
type Kind uint8

// The kinds.
const (
	Like     = Kind(tidemarkv1.Kind_KIND_LIKE)
	Favorite = Kind(tidemarkv1.Kind_KIND_FAVORITE)
	Follow   = Kind(tidemarkv1.Kind_KIND_FOLLOW)
)

// Kinds lists every kind.
func Kinds() []Kind { return []Kind{Like, Favorite, Follow} }

// State is the absolute state of a relation, never a toggle. Its numbers are
// those of the protobuf enum and of the relation table.
type State uint8

// The states. Each kind has one initial state (no relation yet, or ended) and
// one counted state; a like may also be DISLIKED.
const (
	Unliked     = State(tidemarkv1.State_STATE_UNLIKED)
	Liked       = State(tidemarkv1.State_STATE_LIKED)
	Disliked    = State(tidemarkv1.State_STATE_DISLIKED)
	Unfavorited = State(tidemarkv1.State_STATE_UNFAVORITED)
	Favorited   = State(tidemarkv1.State_STATE_FAVORITED)
	Unfollowed  = State(tidemarkv1.State_STATE_UNFOLLOWED)
	Following   = State(tidemarkv1.State_STATE_FOLLOWING)
)

var kindNames = [...]string{Like: "like", Favorite: "favorite", Follow: "follow"}

var stateNames = [...]string{
	Unliked: "UNLIKED", Liked: "LIKED", Disliked: "DISLIKED",
	Unfavorited: "UNFAVORITED", Favorited: "FAVORITED",
	Unfollowed: "UNFOLLOWED", Following: "FOLLOWING",
}

var stateKinds = [...]Kind{
	Unliked: Like, Liked: Like, Disliked: Like,
	Unfavorited: Favorite, Favorited: Favorite,
	Unfollowed: Follow, Following: Follow,
}

// Valid tells whether k is one of the kinds.
func (k Kind) Valid() bool { return k >= Like && k <= Follow }

// String gives the kind as keys and APIs write it: like, favorite, follow.
func (k Kind) String() string {
	if !k.Valid() {
		return fmt.Sprintf("kind(%d)", uint8(k))
	}
	return kindNames[k]
}

// Initial is the state of a relation that never was or has ended; 0 for an
// invalid kind.
func (k Kind) Initial() State {
	if !k.Valid() {
		return 0
	}
	return [...]State{0, Unliked, Unfavorited, Unfollowed}[k]
}

// Active is the state that the kind's public count counts; 0 for an invalid
// kind.
func (k Kind) Active() State {
	if !k.Valid() {
		return 0
	}
	return [...]State{0, Liked, Favorited, Following}[k]
}

// ParseKind reads like, favorite or follow.
func ParseKind(s string) (Kind, error) {
	for _, k := range Kinds() {
		if kindNames[k] == s {
			return k, nil
		}
	}
	return 0, fmt.Errorf("kind %q is not one of like, favorite, follow", clip(s))
}

// Valid tells whether s is one of the states.
func (s State) Valid() bool { return s >= Unliked && s <= Following }

// Kind is the kind that the state belongs to; 0 for an invalid state.
func (s State) Kind() Kind {
	if !s.Valid() {
		return 0
	}
	return stateKinds[s]
}

// String gives the state's name as APIs and events write it, such as LIKED.
func (s State) String() string {
	if !s.Valid() {
		return fmt.Sprintf("STATE(%d)", uint8(s))
	}
	return stateNames[s]
}

// ParseState reads a state's name and checks that it belongs to kind k.
func ParseState(k Kind, name string) (State, error) {
	for s := Unliked; s <= Following; s++ {
		if stateNames[s] == name && stateKinds[s] == k {
			return s, nil
		}
	}
	return 0, fmt.Errorf("state %q is not a state of a %s", clip(name), k)
}

// Relation names one (kind, user, target).
type Relation struct {
	Kind   Kind
	User   string
	Target string
}

// MaxIDBytes is the longest user or target id.
const MaxIDBytes = 256

// Errors of CheckID.
var (
	ErrIDEmpty   = errors.New("is empty")
	ErrIDLong    = fmt.Errorf("is longer than %d bytes", MaxIDBytes)
	ErrIDNotUTF8 = errors.New("is not UTF-8")
	ErrIDControl = errors.New("has a control character")
)

// CheckID refuses an id that is empty, too long, not UTF-8 or has control
// characters. Its errors read after the field's name.
func CheckID(id string) error {
	switch {
	case id == "":
		return ErrIDEmpty
	case len(id) > MaxIDBytes:
		return ErrIDLong
	case !utf8.ValidString(id):
		return ErrIDNotUTF8
	}
	for i := range len(id) {
		if id[i] < 0x20 || id[i] == 0x7f {
			return ErrIDControl
		}
	}
	return nil
}

// Check refuses a relation with an unknown kind or a bad id, by field.
func (r Relation) Check() error {
	if !r.Kind.Valid() {
		return fmt.Errorf("kind %d is unknown", r.Kind)
	}
	if err := CheckID(r.User); err != nil {
		return fmt.Errorf("user id %w", err)
	}
	if err := CheckID(r.Target); err != nil {
		return fmt.Errorf("target id %w", err)
	}
	return nil
}

// clip keeps foreign text short enough for an error.
func clip(s string) string {
	if len(s) > 40 {
		return s[:40] + "…"
	}
	return s
}
