package topology

import (
	"strings"
	"testing"

	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

func TestKindsAndStates(t *testing.T) {
	for _, c := range []struct {
		kind            Kind
		name            string
		initial, active State
		states          string
	}{
		{Like, "like", Unliked, Liked, "UNLIKED LIKED DISLIKED"},
		{Favorite, "favorite", Unfavorited, Favorited, "UNFAVORITED FAVORITED"},
		{Follow, "follow", Unfollowed, Following, "UNFOLLOWED FOLLOWING"},
	} {
		if c.kind.String() != c.name || c.kind.Initial() != c.initial || c.kind.Active() != c.active {
			t.Errorf("%v: initial %v, active %v", c.kind, c.kind.Initial(), c.kind.Active())
		}
		if k, err := ParseKind(c.name); err != nil || k != c.kind {
			t.Errorf("ParseKind(%q) = %v, %v", c.name, k, err)
		}
		var states []string
		for s := State(0); s < 20; s++ {
			if s.Kind() == c.kind {
				states = append(states, s.String())
				if got, err := ParseState(c.kind, s.String()); err != nil || got != s {
					t.Errorf("ParseState(%v, %v) = %v, %v", c.kind, s, got, err)
				}
			} else if got, err := ParseState(c.kind, s.String()); err == nil {
				t.Errorf("ParseState(%v, %v) = %v", c.kind, s, got)
			}
		}
		if got := strings.Join(states, " "); got != c.states {
			t.Errorf("states of %v are %s, want %s", c.kind, got, c.states)
		}
	}
}

func TestInvalidKindsAndStates(t *testing.T) {
	for _, k := range []Kind{0, 4, 255} {
		if k.Valid() || k.Initial() != 0 || k.Active() != 0 || !strings.HasPrefix(k.String(), "kind(") {
			t.Errorf("kind %d passes: %v %v %v", k, k, k.Initial(), k.Active())
		}
		if err := (Relation{Kind: k, User: "u", Target: "t"}).Check(); err == nil {
			t.Errorf("a relation of kind %d passes", k)
		}
	}
	for _, s := range []State{0, 8, 255} {
		if s.Valid() || s.Kind() != 0 || !strings.HasPrefix(s.String(), "STATE(") {
			t.Errorf("state %d passes: %v of %v", s, s, s.Kind())
		}
	}
	for _, name := range []string{"", "Like", "LIKE", "likes", strings.Repeat("x", 100)} {
		if k, err := ParseKind(name); err == nil {
			t.Errorf("ParseKind(%q) = %v", name, k)
		}
	}
}

// Kind and State are the numbers of the protobuf enums, all of them.
func TestEnumsEqualProtobuf(t *testing.T) {
	for n, name := range tidemarkv1.Kind_name {
		if k := Kind(n); n != 0 && "KIND_"+strings.ToUpper(k.String()) != name {
			t.Errorf("kind %d is %v, protobuf says %s", n, k, name)
		}
	}
	for n, name := range tidemarkv1.State_name {
		if s := State(n); n != 0 && "STATE_"+s.String() != name {
			t.Errorf("state %d is %v, protobuf says %s", n, s, name)
		}
	}
	if len(tidemarkv1.Kind_name) != len(Kinds())+1 || len(tidemarkv1.State_name) != int(Following)+1 {
		t.Error("protobuf has kinds or states that the code does not know")
	}
}

func TestRelationCheckNamesTheField(t *testing.T) {
	expectError(t, Relation{Kind: Like, User: "", Target: "t"}.Check(), "user id is empty")
	expectError(t, Relation{Kind: Like, User: "u", Target: "a\nb"}.Check(), "target id has a control character")
	expectError(t, Relation{Kind: 9, User: "u", Target: "t"}.Check(), "kind 9 is unknown")
	expectError(t, Relation{Kind: Follow, User: "u", Target: "u"}.Check(), "")
}
