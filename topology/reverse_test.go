package topology

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// I15: a relation of the reverse index lies where any other client computes.
func TestI15ReverseVectors(t *testing.T) {
	c := DefaultConfig()
	g := NewReverseGeneration(1, c.LikerPartitions, c.ReverseShards)
	if g.Spread != 4 {
		t.Fatalf("generation 1 is spread over %d partitions, the vectors are of 4", g.Spread)
	}
	for _, v := range readHashVectors(t).Reverse {
		kind, err := ParseKind(v.Kind)
		if err != nil {
			t.Fatal(err)
		}
		p := g.Place(Relation{Kind: kind, User: v.User, Target: v.Target})
		if p.ReverseShard != v.Shard || p.Partition != v.Partition || p.Generation != 1 {
			t.Errorf("%s of %s by %s is at %v, want shard %d on partition %d", v.Kind, v.Target, v.User, p, v.Shard, v.Partition)
		}
	}
}

// Every reverse shard of a target lies on one partition, which a page asks;
// there are Spread of those.
func TestReverseShardsOfATarget(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := NewReverseGeneration(1, rapid.IntRange(1, 64).Draw(t, "partitions"), rapid.IntRange(1, 64).Draw(t, "shards"))
		r := drawRelation(t)
		on := g.ShardsByPartition(r.Kind, r.Target)
		if len(on) != g.Spread {
			t.Fatalf("%d partitions have shards of a target, the spread is %d", len(on), g.Spread)
		}
		seen := 0
		for p, shards := range on {
			for _, shard := range shards {
				if g.Partition(r.Kind, r.Target, shard) != p {
					t.Fatalf("shard %d is not on partition %d", shard, p)
				}
				seen++
			}
		}
		if seen != g.Shards() {
			t.Fatalf("%d shards of %d", seen, g.Shards())
		}
		p := g.Place(r)
		if int(p.Partition) != g.Partition(r.Kind, r.Target, g.Shard(r.User)) || int(p.Partition) >= g.Partitions() || int(p.ReverseShard) >= g.Shards() {
			t.Fatalf("placed at %v", p)
		}
	})
}

func TestLikerKeysReadBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := NewReverseGeneration(uint32(rapid.IntRange(1, MaxPartitions-1).Draw(t, "id")), rapid.IntRange(1, 4096).Draw(t, "partitions"), rapid.IntRange(1, 1024).Draw(t, "shards"))
		r := drawRelation(t)
		p := g.Place(r)
		key := LikerKey(p, r.Key())
		got, gr, err := ParseLikerKey(key)
		if err != nil || gr != r || !got.EqualVT(p) {
			t.Fatalf("%q reads back as %v %+v, %v", key, got, gr, err)
		}
		if at, err := PartitionOf(key, g.Partitions()); err != nil || at != int(p.Partition) {
			t.Fatalf("%q goes to %d, %v", key, at, err)
		}
	})
	for _, key := range []string{"", "like:u:V", "0001|like:u:V", "0001|0001|like:u:V", "0001|0001|0001|", WatermarkKey(1, 2), "0001|0001|0001|like:u:V:x"} {
		if _, _, err := ParseLikerKey(key); err == nil {
			t.Errorf("%q is taken for a liker key", key)
		}
	}
}

func TestReverseGenerationCheck(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*ReverseGeneration)
		wrong  string
	}{
		{"as made", func(*ReverseGeneration) {}, ""},
		{"algorithm", func(g *ReverseGeneration) { g.Users.Algorithm = "crc32" }, `reverse generation 1: hash contract: algorithm "crc32"`},
		{"encoding", func(g *ReverseGeneration) { g.Targets.Encoding = "lp2" }, `key encoding "lp2"`},
		{"id 0", func(g *ReverseGeneration) { g.ID = 0 }, "its id is not"},
		{"id too high", func(g *ReverseGeneration) { g.ID = MaxPartitions }, "its id is not"},
		{"spread 0", func(g *ReverseGeneration) { g.Spread = 0 }, "spread 0"},
		{"spread too wide", func(g *ReverseGeneration) { g.Spread = 9 }, "spread 9 is not in 1..8"},
		{"other partitions", func(g *ReverseGeneration) { g.Targets.Modulus = 9 }, "liker partitions is configured as 8, but it was made for 9"},
		{"other R", func(g *ReverseGeneration) { g.Users.Modulus = 32 }, "reverse shards is configured as 16, but it was made for 32"},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := NewReverseGeneration(1, 8, 16)
			c.change(&g)
			expectError(t, g.Check(8, 16), c.wrong)
		})
	}
	for _, c := range []struct{ partitions, shards, spread int }{{1, 16, 1}, {2, 16, 2}, {64, 16, 4}, {8, 1, 1}} {
		if g := NewReverseGeneration(1, c.partitions, c.shards); g.Spread != c.spread || g.Check(c.partitions, c.shards) != nil {
			t.Errorf("%d partitions, %d shards: spread %d, %v", c.partitions, c.shards, g.Spread, g.Check(c.partitions, c.shards))
		}
	}
}

func TestReversePlaceAllocatesOnlyItsResult(t *testing.T) {
	g := NewReverseGeneration(1, 8, 16)
	r := Relation{Kind: Like, User: strings.Repeat("u", 36), Target: strings.Repeat("v", 36)}
	if n := testing.AllocsPerRun(1000, func() { g.Place(r) }); n > 1 {
		t.Errorf("%v allocations", n)
	}
}
