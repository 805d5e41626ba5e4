package topology

import (
	"encoding/binary"
	"fmt"

	"github.com/cespare/xxhash/v2"
)

// HashContract freezes how ids become a number: algorithm, seed, key encoding
// and modulus are stored with what was hashed under them and never change
// (I15). A changed contract is a new space, built beside the old one.
//
// The only contract there is today: xxh64 with the seed, over the ids in lp1
// encoding (each id as its length in bytes, an unsigned LEB128 varint, then
// its UTF-8 bytes), modulo Modulus. testdata/hash_vectors.json lets any other
// client check itself.
type HashContract struct {
	Algorithm string `json:"algorithm"`
	Seed      uint64 `json:"seed"`
	Encoding  string `json:"encoding"`
	Modulus   int    `json:"modulus"`
}

// The names of today's contract.
const (
	AlgorithmXXH64 = "xxh64"
	EncodingLP1    = "lp1"
)

// Seeds of the default contracts; any number would do, none may change.
const (
	bucketSeed = 0x746964656d61726b
	shardSeed  = 0x736861726473
)

// DefaultBucketSpace is the contract of bucket space 1: (target, user) to one
// of 1024 virtual buckets.
func DefaultBucketSpace() HashContract {
	return HashContract{Algorithm: AlgorithmXXH64, Seed: bucketSeed, Encoding: EncodingLP1, Modulus: 1024}
}

// DefaultShardContract is the contract of shard map 1: user to one of 4096
// slots, which the map assigns to shards.
func DefaultShardContract() HashContract {
	return HashContract{Algorithm: AlgorithmXXH64, Seed: shardSeed, Encoding: EncodingLP1, Modulus: 4096}
}

// Check refuses a contract that this code cannot follow, by field.
func (c HashContract) Check() error {
	switch {
	case c.Algorithm != AlgorithmXXH64:
		return fmt.Errorf("hash contract: algorithm %q is not %s: use a version of tidemark that knows it", c.Algorithm, AlgorithmXXH64)
	case c.Encoding != EncodingLP1:
		return fmt.Errorf("hash contract: key encoding %q is not %s: use a version of tidemark that knows it", c.Encoding, EncodingLP1)
	case c.Modulus < 1 || c.Modulus > MaxPartitions:
		return fmt.Errorf("hash contract: modulus %d is not in 1..%d", c.Modulus, MaxPartitions)
	}
	return nil
}

// Slot maps the ids to 0..Modulus-1. It does not allocate.
func (c HashContract) Slot(ids ...string) int {
	var d xxhash.Digest
	d.ResetWithSeed(c.Seed)
	var lp [binary.MaxVarintLen64]byte
	for _, id := range ids {
		_, _ = d.Write(lp[:binary.PutUvarint(lp[:], uint64(len(id)))])
		_, _ = d.WriteString(id)
	}
	return int(d.Sum64() % uint64(c.Modulus))
}

// VirtualBucket is the bucket of a relation under a bucket space: the target's
// id, then the user's (I11: a relation never leaves it).
func (c HashContract) VirtualBucket(r Relation) int { return c.Slot(r.Target, r.User) }
