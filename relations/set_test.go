package relations

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/tidemark/tidemark/topology"
)

var v9001 = relation(topology.Like, "u7", "V9001")

func TestSetFollowsTheSeedsScenario(t *testing.T) {
	urls := migrated(t, 1)
	s := openAt(t, urls, nil)
	first := mustSet(t, s, command("op-101", v9001, topology.Liked))
	wantResult(t, first, Applied, topology.Liked, 1)
	wantFact(t, first.Current, topology.Liked, 1)
	second := mustSet(t, s, based(command("op-102", v9001, topology.Unliked), 1))
	wantResult(t, second, Applied, topology.Unliked, 2)

	// A3: the late retry gives its own result and, apart, the current relation.
	late := mustSet(t, s, command("op-101", v9001, topology.Liked))
	wantResult(t, late, Applied, topology.Liked, 1)
	wantFact(t, late.Current, topology.Unliked, 2)
	if !late.Replayed || first.Replayed || late.Operation != first.Operation {
		t.Errorf("the retry is %+v, the first answer was %+v", late, first)
	}
	op, err := s.Operation(context.Background(), "u7", "op-101")
	if err != nil {
		t.Fatal(err)
	}
	if op.Result != first.Operation || op.Current != late.Current || !op.Command.same(command("op-101", v9001, topology.Liked)) {
		t.Errorf("A4: operation is %+v", op)
	}
	checkHistory(t, s, urls)
}

func TestSetEveryKindAndState(t *testing.T) {
	urls := migrated(t, 2)
	s := openAt(t, urls, nil)
	for _, tc := range []struct {
		kind   topology.Kind
		states []topology.State
	}{
		{topology.Like, []topology.State{topology.Liked, topology.Disliked, topology.Liked, topology.Unliked}},
		{topology.Favorite, []topology.State{topology.Favorited, topology.Unfavorited, topology.Favorited}},
		{topology.Follow, []topology.State{topology.Following, topology.Unfollowed}},
	} {
		r := relation(tc.kind, "用户:1", "目|标%")
		for i, state := range tc.states {
			id := tc.kind.String() + string(rune('a'+i))
			wantResult(t, mustSet(t, s, command(id, r, state)), Applied, state, uint64(i+1))
		}
	}
	checkHistory(t, s, urls)
}

func TestI4CancelOnCancelledAndI5LikeOnLikedChangeNothing(t *testing.T) {
	urls := migrated(t, 1)
	s := openAt(t, urls, nil)
	wantResult(t, mustSet(t, s, command("a", v9001, topology.Unliked)), Unchanged, topology.Unliked, 0)
	if n := len(facts(t, s, 0)); n != 0 {
		t.Errorf("cancelling what never was made %d facts", n)
	}
	liked := mustSet(t, s, command("b", v9001, topology.Liked))
	again := mustSet(t, s, command("c", v9001, topology.Liked))
	wantResult(t, again, Unchanged, topology.Liked, 1)
	if again.Current != liked.Current {
		t.Errorf("A6: liking again changed %+v to %+v", liked.Current, again.Current)
	}
	mustSet(t, s, command("d", v9001, topology.Unliked))
	wantResult(t, mustSet(t, s, command("e", v9001, topology.Unliked)), Unchanged, topology.Unliked, 2)
	if n := len(outbox(t, urls[0])); n != 2 {
		t.Errorf("%d events for 2 transitions", n)
	}
	wantResult(t, mustSet(t, s, command("c", v9001, topology.Liked)), Unchanged, topology.Liked, 1)
	checkHistory(t, s, urls)
}

func TestI2RetriesNeverChangeTheVersionAgain(t *testing.T) {
	urls := migrated(t, 1)
	s := openAt(t, urls, nil)
	for range 5 {
		wantResult(t, mustSet(t, s, command("a", v9001, topology.Liked)), Applied, topology.Liked, 1)
	}
	mustSet(t, s, command("b", v9001, topology.Unliked))
	for range 5 {
		r := mustSet(t, s, command("a", v9001, topology.Liked))
		wantFact(t, r.Current, topology.Unliked, 2)
	}
	if n := len(outbox(t, urls[0])); n != 2 {
		t.Errorf("%d events for 2 operations", n)
	}
}

func TestStaleBaseVersions(t *testing.T) {
	urls := migrated(t, 1)
	stores := map[StaleBasePolicy]*Store{
		RejectStale:    openAt(t, urls, nil),
		LastCommitWins: openAt(t, urls, func(c *Config) { c.StaleBase = LastCommitWins }),
	}
	for i, tc := range []struct {
		policy  StaleBasePolicy
		base    uint64
		outcome Outcome
		version uint64
	}{
		{RejectStale, 2, Applied, 3},
		{RejectStale, 1, Rejected, 2},
		{RejectStale, 0, Rejected, 2},
		{RejectStale, 9, Rejected, 2},
		{LastCommitWins, 1, Applied, 3},
		{LastCommitWins, 9, Applied, 3},
	} {
		s := stores[tc.policy]
		r := relation(topology.Like, "u", fmt.Sprintf("v%d", i))
		id := func(name string) string { return fmt.Sprintf("%s%d", name, i) }
		mustSet(t, s, based(command(id("a"), r, topology.Liked), 0))
		mustSet(t, s, based(command(id("b"), r, topology.Disliked), 1))
		got := mustSet(t, s, based(command(id("c"), r, topology.Liked), tc.base))
		state := topology.Liked
		if tc.outcome == Rejected {
			state = topology.Disliked
		}
		wantResult(t, got, tc.outcome, state, tc.version)
		wantFact(t, got.Current, state, tc.version)
		// The retry of a refused command is refused alike, whatever came since.
		mustSet(t, s, command(id("d"), r, topology.Unliked))
		wantResult(t, mustSet(t, s, based(command(id("c"), r, topology.Liked), tc.base)), tc.outcome, state, tc.version)
	}
	checkHistory(t, stores[RejectStale], urls)
}

func TestA3AnOperationIDIsBoundToItsFirstCommand(t *testing.T) {
	urls := migrated(t, 1)
	s := openAt(t, urls, nil)
	mustSet(t, s, based(command("op", v9001, topology.Liked), 0))
	for name, c := range map[string]Command{
		"target":  based(command("op", relation(topology.Like, "u7", "V9002"), topology.Liked), 0),
		"kind":    based(command("op", relation(topology.Favorite, "u7", "V9001"), topology.Favorited), 0),
		"state":   based(command("op", v9001, topology.Unliked), 0),
		"base":    based(command("op", v9001, topology.Liked), 1),
		"no base": command("op", v9001, topology.Liked),
	} {
		if _, err := s.Set(context.Background(), c); !errors.Is(err, ErrOperationConflict) {
			t.Errorf("another %s: %v", name, err)
		}
	}
	if n := len(outbox(t, urls[0])); n != 1 {
		t.Errorf("%d events", n)
	}
	// The binding lasts longer than a partition: move it three weeks back.
	conn := dial(t, urls[0])
	now := time.Now()
	if err := ensurePartitions(context.Background(), conn, 0, now.Add(-21*day)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(context.Background(), "UPDATE command SET created_at = created_at - interval '21 days'"); err != nil {
		t.Fatal(err)
	}
	r := mustSet(t, s, based(command("op", v9001, topology.Liked), 0))
	if !r.Replayed {
		t.Error("a retry after three weeks was decided anew")
	}
	if _, err := s.Set(context.Background(), command("op", relation(topology.Like, "u7", "V3"), topology.Liked)); !errors.Is(err, ErrOperationConflict) {
		t.Errorf("another target after three weeks: %v", err)
	}
}

func TestOperationBelongsToItsUser(t *testing.T) {
	s := open(t, 1, nil)
	mustSet(t, s, command("op", v9001, topology.Liked))
	for _, tc := range [][2]string{{"u8", "op"}, {"u7", "other"}} {
		if _, err := s.Operation(context.Background(), tc[0], tc[1]); !errors.Is(err, ErrOperationNotFound) {
			t.Errorf("%v: %v", tc, err)
		}
	}
}

func TestSetRefusesBadCommandsByField(t *testing.T) {
	s := open(t, 1, nil)
	long := strings.Repeat("x", topology.MaxIDBytes+1)
	for name, tc := range map[string]struct {
		cmd  Command
		want string
	}{
		"no operation":      {command("", v9001, topology.Liked), "operation id is empty"},
		"long operation":    {command(long, v9001, topology.Liked), "operation id is longer"},
		"control":           {command("a\x00b", v9001, topology.Liked), "operation id has a control"},
		"no user":           {command("a", relation(topology.Like, "", "v"), topology.Liked), "user id is empty"},
		"target not UTF-8":  {command("a", relation(topology.Like, "u", "\xff"), topology.Liked), "target id is not UTF-8"},
		"kind":              {command("a", relation(9, "u", "v"), topology.Liked), "kind 9"},
		"state of a follow": {command("a", v9001, topology.Following), "FOLLOWING is not a state of a like"},
		"no state":          {command("a", v9001, 0), "not a state of a like"},
		"hidden why":        {hiddenCommand("a", v9001, topology.Hiding{By: topology.HiddenByRisk}), "the reason of a hiding"},
		"base version":      {based(command("a", v9001, topology.Liked), math.MaxUint64), "base version"},
	} {
		_, err := s.Set(context.Background(), tc.cmd)
		if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, ids := range [][2]string{{"", "a"}, {"a", ""}} {
		if _, err := s.Operation(context.Background(), ids[0], ids[1]); !errors.Is(err, ErrInvalid) {
			t.Errorf("operation %q of %q: %v", ids[1], ids[0], err)
		}
	}
}

func TestA6ChangeTimesRiseThoughTheClockStepsBack(t *testing.T) {
	urls := migrated(t, 1)
	s := openAt(t, urls, nil)
	var offset time.Duration
	s.shards[0].clock = func(at time.Time) time.Time { return at.Add(offset) }
	var times []time.Time
	for i, step := range []time.Duration{0, -time.Hour, -400 * day, 0, 400 * day, 0} {
		offset = step
		state := []topology.State{topology.Liked, topology.Unliked}[i%2]
		r := mustSet(t, s, command(string(rune('a'+i)), v9001, state))
		wantResult(t, r, Applied, state, uint64(i+1))
		times = append(times, r.Current.StateChangedAt)
	}
	for i := 1; i < len(times); i++ {
		if !times[i].After(times[i-1]) {
			t.Errorf("v%d changed at %v, v%d at %v", i+1, times[i], i, times[i-1])
		}
	}
	if got := times[1].Sub(times[0]); got != time.Microsecond {
		t.Errorf("a clock that steps back moves the time by %v, want 1µs", got)
	}
	checkHistory(t, s, urls)
}
