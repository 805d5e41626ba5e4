package topology

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"testing"

	"github.com/cespare/xxhash/v2"
	"pgregory.net/rapid"
)

// hashVectors is testdata/hash_vectors.json. Its numbers were made by another
// implementation (testdata/check_hash_vectors.py checks them again) and never
// change: they are where relations live.
type hashVectors struct {
	Contracts map[string]struct {
		Algorithm string `json:"algorithm"`
		Seed      string `json:"seed"` // hexadecimal: JSON numbers are not exact
		Encoding  string `json:"encoding"`
		Modulus   int    `json:"modulus"`
	} `json:"contracts"`
	Slots []struct {
		Contract string   `json:"contract"`
		IDs      []string `json:"ids"`
		Bytes    string   `json:"bytes"`
		XXH64    string   `json:"xxh64"`
		Slot     int      `json:"slot"`
	} `json:"slots"`
	Partitions []struct {
		Key        string `json:"key"`
		Murmur2    int32  `json:"murmur2"` // as Java prints it
		Partitions int    `json:"partitions"`
		Partition  int    `json:"partition"`
	} `json:"partitions"`
	Reverse []struct {
		Kind      string `json:"kind"`
		Target    string `json:"target"`
		User      string `json:"user"`
		Shard     uint32 `json:"shard"`
		Partition uint32 `json:"partition"`
	} `json:"reverse"`
}

func readHashVectors(t *testing.T) hashVectors {
	t.Helper()
	data, err := os.ReadFile("testdata/hash_vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var v hashVectors
	if err := json.Unmarshal(data, &v); err != nil {
		t.Fatal(err)
	}
	if len(v.Slots) < 20 || len(v.Partitions) < 15 || len(v.Reverse) < 8 {
		t.Fatalf("only %d slots, %d partitions and %d reverse places in the file", len(v.Slots), len(v.Partitions), len(v.Reverse))
	}
	return v
}

// I15: the contracts in code are those that the vectors were made under.
func TestI15ContractsAreFrozen(t *testing.T) {
	vectors := readHashVectors(t)
	config := DefaultConfig()
	reverse := NewReverseGeneration(1, config.LikerPartitions, config.ReverseShards)
	for name, c := range map[string]HashContract{
		"bucket-space-1": DefaultBucketSpace(), "shard-map-1": DefaultShardContract(),
		"reverse-users-1": reverse.Users, "reverse-targets-1": reverse.Targets,
	} {
		want := vectors.Contracts[name]
		if c.Algorithm != want.Algorithm || fmt.Sprintf("%016x", c.Seed) != want.Seed || c.Encoding != want.Encoding || c.Modulus != want.Modulus {
			t.Errorf("%s is %+v, the vectors say %+v", name, c, want)
		}
	}
}

// I11, I15: a relation has the slot that any other client computes.
func TestI11I15HashVectors(t *testing.T) {
	vectors := readHashVectors(t)
	for _, v := range vectors.Slots {
		c := vectors.Contracts[v.Contract]
		seed, err := strconv.ParseUint(c.Seed, 16, 64)
		if err != nil {
			t.Fatal(err)
		}
		contract := HashContract{Algorithm: c.Algorithm, Seed: seed, Encoding: c.Encoding, Modulus: c.Modulus}
		if got := contract.Slot(v.IDs...); got != v.Slot {
			t.Errorf("%s: slot of %.40q is %d, want %d", v.Contract, v.IDs, got, v.Slot)
		}
		bytes, err := hex.DecodeString(v.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		d := xxhash.NewWithSeed(seed)
		_, _ = d.Write(bytes)
		if got := fmt.Sprintf("%016x", d.Sum64()); got != v.XXH64 {
			t.Errorf("%s: xxh64 of the bytes of %.40q is %s, want %s", v.Contract, v.IDs, got, v.XXH64)
		}
		if v.Contract == "bucket-space-1" {
			if got := contract.VirtualBucket(Relation{Kind: Like, Target: v.IDs[0], User: v.IDs[1]}); got != v.Slot {
				t.Errorf("%s: virtual bucket of %.40q is %d, want %d", v.Contract, v.IDs, got, v.Slot)
			}
		}
	}
}

// I11: the bucket of a relation depends on its ids alone, is in range and is
// the hash of the lp1 bytes as written out by hand.
func TestI11VirtualBucket(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := drawRelation(t)
		c := HashContract{Algorithm: AlgorithmXXH64, Seed: rapid.Uint64().Draw(t, "seed"), Encoding: EncodingLP1, Modulus: rapid.IntRange(1, MaxPartitions).Draw(t, "modulus")}
		var b []byte
		for _, id := range []string{r.Target, r.User} {
			b = append(binary.AppendUvarint(b, uint64(len(id))), id...)
		}
		d := xxhash.NewWithSeed(c.Seed)
		_, _ = d.Write(b)
		want := int(d.Sum64() % uint64(c.Modulus))
		for _, k := range Kinds() {
			if got := c.VirtualBucket(Relation{Kind: k, User: r.User, Target: r.Target}); got != want {
				t.Fatalf("virtual bucket of %+v as %v is %d, want %d", r, k, got, want)
			}
		}
	})
}

func TestSlotDoesNotAllocate(t *testing.T) {
	buckets, shards := DefaultBucketSpace(), NewShardMap(1, 4)
	r := Relation{Kind: Like, User: "00000000-0000-4000-8000-000000000000", Target: "a target id that is longer than the block of a hash"}
	var sink int
	for name, f := range map[string]func(){
		"Slot":          func() { sink += buckets.Slot(r.Target, r.User) },
		"VirtualBucket": func() { sink += buckets.VirtualBucket(r) },
		"Shard":         func() { sink += shards.Shard(r.User) },
	} {
		if n := testing.AllocsPerRun(1000, f); n != 0 {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
}

func TestHashContractCheck(t *testing.T) {
	good := DefaultBucketSpace()
	with := func(change func(*HashContract)) HashContract { c := good; change(&c); return c }
	for _, c := range []struct {
		name     string
		contract HashContract
		wrong    string
	}{
		{"default bucket space", good, ""},
		{"default shard contract", DefaultShardContract(), ""},
		{"modulus 1", with(func(c *HashContract) { c.Modulus = 1 }), ""},
		{"modulus most", with(func(c *HashContract) { c.Modulus = MaxPartitions }), ""},
		{"algorithm", with(func(c *HashContract) { c.Algorithm = "xxh3" }), `algorithm "xxh3"`},
		{"encoding", with(func(c *HashContract) { c.Encoding = "lp2" }), `encoding "lp2"`},
		{"modulus 0", with(func(c *HashContract) { c.Modulus = 0 }), "modulus 0"},
		{"modulus too high", with(func(c *HashContract) { c.Modulus = MaxPartitions + 1 }), "modulus 65537"},
	} {
		t.Run(c.name, func(t *testing.T) { expectError(t, c.contract.Check(), c.wrong) })
	}
}
