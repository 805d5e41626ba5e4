package relations

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tidemark/tidemark/topology"
)

// Two users with one operation id are two operations, on one shard as on two,
// in one transaction as in two, and neither sees the other's (A3).
func TestA3TwoUsersWithOneOperationID(t *testing.T) {
	for _, shards := range []int{1, 2} {
		urls := migrated(t, shards)
		s := openAt(t, urls, nil)
		done := make(chan error)
		const users = 16
		for i := range users {
			go func() {
				r := relation(topology.Like, fmt.Sprint("u", i), "V9001")
				first, err := s.Set(context.Background(), command("op", r, topology.Liked))
				if err == nil && (first.Replayed || first.Operation.Version != 1) {
					err = fmt.Errorf("user %s was answered %+v", r.User, first)
				}
				done <- err
			}()
		}
		for range users {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		for i := range users {
			user := fmt.Sprint("u", i)
			if r := mustSet(t, s, command("op", relation(topology.Like, user, "V9001"), topology.Liked)); !r.Replayed {
				t.Errorf("the retry of %s was decided anew", user)
			}
			op, err := s.Operation(context.Background(), user, "op")
			if err != nil || op.Command.Relation.User != user {
				t.Errorf("%s is told of %+v, error %v", user, op, err)
			}
		}
		checkHistory(t, s, urls)
	}
}

func idOf(t *testing.T, at time.Time) string {
	t.Helper()
	id, err := uuid.NewV7()
	if err != nil {
		t.Fatal(err)
	}
	ms := at.UnixMilli()
	for i := range 6 {
		id[i] = byte(ms >> (40 - 8*i))
	}
	return id.String()
}

// An id that says that it is older than operations are kept is not decided
// again, however it comes; one that is still known is answered as ever (I2).
func TestAnOperationThatMayBeForgottenIsNotDecidedAgain(t *testing.T) {
	urls := migrated(t, 1)
	s := openAt(t, urls, nil)
	mustSet(t, s, command("op-1", v9001, topology.Disliked))
	now := time.Now()
	old, young := idOf(t, now.Add(-7*day-time.Minute)), idOf(t, now.Add(-7*day+time.Hour))
	r, err := s.Set(context.Background(), command(old, v9001, topology.Liked))
	if !errors.Is(err, ErrOperationExpired) {
		t.Errorf("an old id: %+v, error %v", r, err)
	}
	wantFact(t, r.Current, topology.Disliked, 1)
	if _, err := s.Operation(context.Background(), "u7", old); !errors.Is(err, ErrOperationExpired) {
		t.Errorf("looking it up: %v", err)
	}
	if _, err := s.Operation(context.Background(), "u7", young); !errors.Is(err, ErrOperationNotFound) {
		t.Errorf("looking up one that is not that old: %v", err)
	}
	wantResult(t, mustSet(t, s, command(young, v9001, topology.Liked)), Applied, topology.Liked, 2)
	// Its partition is still there: it is known, and answered.
	if _, err := dial(t, urls[0]).Exec(context.Background(), "UPDATE command SET operation_id = $1 WHERE operation_id = $2", old, young); err != nil {
		t.Fatal(err)
	}
	if r := mustSet(t, s, command(old, v9001, topology.Liked)); !r.Replayed {
		t.Error("a known operation was decided again")
	}
	// Ids that tell no time, or tell it in another form, are never expired.
	for _, id := range []string{"op-2", uuid.NewString(), "{" + old + "}", old[:35]} {
		if expired(id, time.Hour, now) {
			t.Errorf("%q is taken for one that tells its time", id)
		}
	}
	checkHistory(t, s, urls)
}

func TestStaleBasePolicyByKind(t *testing.T) {
	urls := migrated(t, 1)
	s := openAt(t, urls, func(c *Config) {
		c.StaleBaseByKind = map[topology.Kind]StaleBasePolicy{topology.Follow: LastCommitWins}
	})
	stale := func(id string, r topology.Relation, desired topology.State) Result {
		return mustSet(t, s, based(command(id, r, desired), 9))
	}
	wantResult(t, stale("op-1", v9001, topology.Liked), Rejected, topology.Unliked, 0)
	wantResult(t, stale("op-2", relation(topology.Follow, "u7", "u8"), topology.Following), Applied, topology.Following, 1)
	wantResult(t, stale("op-3", relation(topology.Favorite, "u7", "V1"), topology.Favorited), Rejected, topology.Unfavorited, 0)
	_, err := Open(context.Background(), Config{URLs: urls, Map: topology.NewShardMap(1, 1), StaleBaseByKind: map[topology.Kind]StaleBasePolicy{topology.Like: "toggle"}})
	if err == nil {
		t.Error("an unknown policy was taken")
	}
}
