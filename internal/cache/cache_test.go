package cache

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/tidemark/tidemark/internal/testenv"
	"github.com/tidemark/tidemark/topology"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// rig is a Redis of some sort, and what a test may do to it.
type rig struct {
	client *Client
	flush  func(t *testing.T)
}

func open(t *testing.T, url string) *Client {
	t.Helper()
	c, err := Open(Config{URL: url, Timeout: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func embeddedRig(t *testing.T) rig {
	c := open(t, testenv.Redis(t))
	return rig{c, func(t *testing.T) { flushAll(t, c) }}
}

func flushAll(t *testing.T, c *Client) {
	t.Helper()
	if err := c.eachMaster(t.Context(), flushOne); err != nil {
		t.Fatal(err)
	}
}

var gen7 = Generation{Family: Relations, ID: 7, Deployment: "d1", Buckets: 1}

var first = Owner{"3", 100}

func like(user, target string, version uint64) Relation {
	state := topology.Liked
	if version%2 == 0 {
		state = topology.Unliked
	}
	return Relation{topology.Relation{Kind: topology.Like, User: user, Target: target}, state, version}
}

func stamped(t *testing.T, r rig, g Generation) {
	t.Helper()
	if err := r.client.Stamp(t.Context(), g); err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, c *Client, g Generation, want int, relations ...Relation) {
	t.Helper()
	n, err := NewRelationWriter(c).Write(t.Context(), g, first, relations)
	if err != nil || n != want {
		t.Fatalf("wrote %d entries (%v), want %d", n, err, want)
	}
}

func read(t *testing.T, c *Client, g Generation, user string, targets ...string) []Cached {
	t.Helper()
	got, err := c.Relations(t.Context(), g, topology.Like, user, targets)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// conformance is what every sort of Redis must do. A server that does not pass
// it is no cache for tidemark.
var conformance = map[string]func(t *testing.T, r rig){
	"a higher version wins, an equal one may come again (I3)": func(t *testing.T, r rig) {
		stamped(t, r, gen7)
		write(t, r.client, gen7, 1, like("u7", "V1", 11))
		write(t, r.client, gen7, 1, like("u7", "V1", 12))
		write(t, r.client, gen7, 0, like("u7", "V1", 11))
		write(t, r.client, gen7, 1, like("u7", "V1", 12))
		if got := read(t, r.client, gen7, "u7", "V1")[0]; got != (Cached{Found: true, State: topology.Unliked, Version: 12}) {
			t.Errorf("read %+v", got)
		}
	},
	"versions of one batch may stand in any order": func(t *testing.T, r rig) {
		stamped(t, r, gen7)
		write(t, r.client, gen7, 3, like("u7", "V1", 9), like("u7", "V1", 10), like("u7", "V1", 8), like("u8", "V1", 3))
		if got := read(t, r.client, gen7, "u7", "V1")[0]; got.Version != 10 {
			t.Errorf("read %+v", got)
		}
	},
	"what was never written is not known": func(t *testing.T, r rig) {
		stamped(t, r, gen7)
		write(t, r.client, gen7, 2, like("u7", "V1", 1), like("u7", "V3", 2))
		got := read(t, r.client, gen7, "u7", "V3", "V2", "V1")
		if got[0] != (Cached{Found: true, State: topology.Unliked, Version: 2}) || got[1].Found || got[2] != (Cached{Found: true, State: topology.Liked, Version: 1}) {
			t.Errorf("read %+v", got)
		}
	},
	"a generation that was never stamped is refused": func(t *testing.T, r rig) {
		if _, err := NewRelationWriter(r.client).Write(t.Context(), gen7, first, []Relation{like("u7", "V1", 1)}); !errors.Is(err, ErrStamp) {
			t.Errorf("writing: %v", err)
		}
		if _, err := r.client.Relations(t.Context(), gen7, topology.Like, "u7", []string{"V1"}); !errors.Is(err, ErrStamp) {
			t.Errorf("reading: %v", err)
		}
		if err := r.client.Held(t.Context(), gen7); !errors.Is(err, ErrStamp) {
			t.Errorf("held: %v", err)
		}
	},
	"another deployment's generation is refused": func(t *testing.T, r rig) {
		stamped(t, r, gen7)
		other := gen7
		other.Deployment = "d2"
		if _, err := NewRelationWriter(r.client).Write(t.Context(), other, first, []Relation{like("u7", "V1", 1)}); !errors.Is(err, ErrStamp) {
			t.Errorf("writing: %v", err)
		}
		if _, err := r.client.Relations(t.Context(), other, topology.Like, "u7", []string{"V1"}); !errors.Is(err, ErrStamp) {
			t.Errorf("reading: %v", err)
		}
	},
	"nothing comes back into a flushed server": func(t *testing.T, r rig) {
		stamped(t, r, gen7)
		write(t, r.client, gen7, 1, like("u7", "V1", 12))
		r.flush(t)
		if _, err := NewRelationWriter(r.client).Write(t.Context(), gen7, first, []Relation{like("u7", "V1", 11)}); !errors.Is(err, ErrStamp) {
			t.Errorf("a late v11 was answered %v", err)
		}
		if _, err := r.client.Relations(t.Context(), gen7, topology.Like, "u7", []string{"V1"}); !errors.Is(err, ErrStamp) {
			t.Errorf("reading: %v", err)
		}
	},
	"a retired generation's late task writes nothing": func(t *testing.T, r rig) {
		stamped(t, r, gen7)
		write(t, r.client, gen7, 1, like("u7", "V1", 11))
		next := gen7
		next.ID = 8
		stamped(t, r, next)
		write(t, r.client, next, 1, like("u7", "V1", 12))
		keys, err := r.client.Drop(t.Context(), gen7, goOn)
		if err != nil || keys != 1 {
			t.Errorf("dropped %d keys: %v", keys, err)
		}
		if _, err := NewRelationWriter(r.client).Write(t.Context(), gen7, first, []Relation{like("u7", "V1", 13)}); !errors.Is(err, ErrStamp) {
			t.Errorf("the late task was answered %v", err)
		}
		if got := read(t, r.client, next, "u7", "V1")[0]; got.Version != 12 {
			t.Errorf("read %+v of the new generation", got)
		}
		if err := r.client.Held(t.Context(), next); err != nil {
			t.Error(err)
		}
	},
	"a paused owner that wakes brings nothing back, evicted or not": func(t *testing.T, r rig) {
		stamped(t, r, gen7)
		write(t, r.client, gen7, 1, like("u7", "V1", 11))
		w := NewRelationWriter(r.client)
		later := Owner{first.Name, first.Epoch + 1}
		if _, err := w.Write(t.Context(), gen7, later, []Relation{like("u7", "V1", 12)}); err != nil {
			t.Fatal(err)
		}
		if err := r.client.eachMaster(t.Context(), evict(gen7.relationKey(topology.Like, "u7", 0))); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(t.Context(), gen7, first, []Relation{like("u7", "V1", 11)}); !errors.Is(err, ErrFenced) {
			t.Errorf("the paused owner was answered %v", err)
		}
		if got := read(t, r.client, gen7, "u7", "V1")[0]; got.Found {
			t.Errorf("read %+v", got)
		}
		if _, err := w.Write(t.Context(), gen7, Owner{"4", 1}, []Relation{like("u7", "V1", 12)}); err != nil {
			t.Errorf("the owner of another partition: %v", err)
		}
	},
	"more than a pipeline, over buckets": func(t *testing.T, r rig) {
		g := gen7
		g.Buckets = 3
		stamped(t, r, g)
		const users = maxPipeline + 5
		var all []Relation
		for i := range users {
			for v := range 3 {
				all = append(all, like(fmt.Sprintf("u%d", i), fmt.Sprintf("V%d", v), uint64(i+1)))
			}
		}
		write(t, r.client, g, len(all), all...)
		for i := range users {
			for _, got := range read(t, r.client, g, fmt.Sprintf("u%d", i), "V0", "V1", "V2") {
				if got.Version != uint64(i+1) {
					t.Fatalf("user %d reads %+v", i, got)
				}
			}
		}
	},
	"odd ids": func(t *testing.T, r rig) {
		stamped(t, r, gen7)
		for i, id := range []string{"{", "}", "{}", "a{b}c", "u|7", "u:7", "用户", "%", "*", "[x]"} {
			write(t, r.client, gen7, 1, like(id, id, uint64(i+1)))
		}
		if got := read(t, r.client, gen7, "a{b}c", "a{b}c")[0]; got.Version != 4 {
			t.Errorf("read %+v", got)
		}
		if n, err := r.client.CountRelations(t.Context(), gen7); err != nil || n != 10 {
			t.Errorf("counted %d: %v", n, err)
		}
		seen := map[string]uint64{}
		if err := r.client.EachRelation(t.Context(), gen7, func(r Relation) error {
			if r.User != r.Target {
				t.Errorf("came upon %+v", r)
			}
			seen[r.User] = r.Version
			return nil
		}, func(b Bucket) { t.Errorf("%+v is whole", b) }); err != nil || len(seen) != 10 || seen["u|7"] != 5 || seen["{}"] != 3 {
			t.Errorf("came upon %v: %v", seen, err)
		}
	},
	"what a whole user does not have is known, until Redis forgets it": func(t *testing.T, r rig) {
		g := gen7
		g.Buckets = 3
		stamped(t, r, g)
		targets := []string{"V1", "V2", "V3", "V4", "V5", "V6"}
		all := UserRelations{Kind: topology.Like, User: "u7"}
		for i, target := range targets[:4] {
			all.Relations = append(all.Relations, like("u7", target, uint64(i+1)))
		}
		write(t, r.client, g, 1, like("u7", "V1", 7)) // newer than what is brought
		if err := NewRelationWriter(r.client).WriteUsers(t.Context(), g, first, []UserRelations{all, {Kind: topology.Like, User: "none"}}); err != nil {
			t.Fatal(err)
		}
		want := []uint64{7, 2, 3, 4, 0, 0}
		for i, got := range read(t, r.client, g, "u7", targets...) {
			if !got.Found || got.Version != want[i] || got.Version == 0 && got.State != topology.Unliked {
				t.Errorf("%s reads %+v", targets[i], got)
			}
		}
		if got := read(t, r.client, g, "none", "V1")[0]; !got.Found || got.Version != 0 {
			t.Errorf("of nothing: %+v", got)
		}
		write(t, r.client, g, 1, like("u7", "V5", 1)) // a first version wins over none
		if got := read(t, r.client, g, "u7", "V5")[0]; got.Version != 1 {
			t.Errorf("read %+v", got)
		}
		whole := map[Bucket]bool{}
		if err := r.client.EachRelation(t.Context(), g, func(Relation) error { return nil }, func(b Bucket) { whole[b] = true }); err != nil || len(whole) != 6 || !whole[Bucket{topology.Like, "none", 2}] {
			t.Errorf("whole are %v: %v", whole, err)
		}
		for b := range g.Buckets { // evicted, and written again in part
			if err := remove(t, r.client, g.relationKey(topology.Like, "u7", b).name); err != nil {
				t.Fatal(err)
			}
		}
		write(t, r.client, g, 1, like("u7", "V1", 8))
		if got := read(t, r.client, g, "u7", "V1", "V5", "V6"); got[0].Version != 8 || got[1].Found || got[2].Found {
			t.Errorf("read %+v", got)
		}
	},
	"a user with too many relations is told apart": func(t *testing.T, r rig) {
		stamped(t, r, gen7)
		write(t, r.client, gen7, 1, like("u7", "V1", 1))
		if err := NewRelationWriter(r.client).WriteUsers(t.Context(), gen7, first, []UserRelations{{Kind: topology.Like, User: "u7", Many: true}}); err != nil {
			t.Fatal(err)
		}
		if got := read(t, r.client, gen7, "u7", "V1", "V2"); got[0].Version != 1 || got[1] != (Cached{Many: true}) {
			t.Errorf("read %+v", got)
		}
	},
	"an earlier owner makes nobody whole": func(t *testing.T, r rig) {
		stamped(t, r, gen7)
		if _, err := NewRelationWriter(r.client).Write(t.Context(), gen7, Owner{first.Name, first.Epoch + 1}, []Relation{like("u7", "V1", 1)}); err != nil {
			t.Fatal(err)
		}
		if err := NewRelationWriter(r.client).WriteUsers(t.Context(), gen7, first, []UserRelations{{Kind: topology.Like, User: "u7"}}); !errors.Is(err, ErrFenced) {
			t.Errorf("it is answered %v", err)
		}
		if got := read(t, r.client, gen7, "u7", "V2")[0]; got.Found {
			t.Errorf("read %+v", got)
		}
	},
	"a version that Lua cannot hold is not cached": func(t *testing.T, r rig) {
		stamped(t, r, gen7)
		write(t, r.client, gen7, 1, like("u7", "V1", maxVersion), like("u7", "V2", maxVersion+1))
	},
	"a generation stamped anew after a loss is empty and works": func(t *testing.T, r rig) {
		stamped(t, r, gen7)
		write(t, r.client, gen7, 1, like("u7", "V1", 12))
		r.flush(t)
		next := gen7
		next.ID = 8
		stamped(t, r, next)
		if err := r.client.Held(t.Context(), next); err != nil {
			t.Fatal(err)
		}
		if got := read(t, r.client, next, "u7", "V1")[0]; got.Found {
			t.Errorf("read %+v", got)
		}
		write(t, r.client, next, 1, like("u7", "V1", 11)) // the new generation has a floor of its own
	},
}

// remove has the server forget a key, as when it evicts.
func remove(t *testing.T, c *Client, key string) error {
	t.Helper()
	return c.redis.Del(t.Context(), key).Err()
}

func conform(t *testing.T, make func(t *testing.T) rig) {
	for name, check := range conformance {
		t.Run(name, func(t *testing.T) { check(t, make(t)) })
	}
	for name, check := range countConformance {
		t.Run("counts: "+name, func(t *testing.T) { check(t, make(t)) })
	}
}

func TestEmbeddedRedisConforms(t *testing.T) { conform(t, embeddedRig) }
