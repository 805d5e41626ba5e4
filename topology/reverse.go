package topology

import (
	"errors"
	"fmt"

	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// ReverseGeneration freezes where the reverse index (who liked it, favorited
// it, follows them) keeps a relation: made once, stored in the control
// database, and read from there (I15). Another R, hash or partition count is
// another generation, built beside the old one.
//
//	reverse shard = Users.Slot(user)
//	partition     = (Targets.Slot(kind, target) + reverse shard mod Spread) mod partitions
//
// So a target lies on Spread neighbouring partitions, hot or cold: that many
// are asked for a page, and that many share a hot target's changes.
type ReverseGeneration struct {
	ID      uint32       `json:"id"`      // 1..65535
	Users   HashContract `json:"users"`   // user to reverse shard; its modulus is R
	Targets HashContract `json:"targets"` // kind and target to the first partition; its modulus is the number of partitions
	Spread  int          `json:"spread"`  // partitions that a target's reverse shards lie on
}

// Seeds of the default reverse contracts; any number would do, none may change.
const (
	reverseUserSeed   = 0x7265767573657273
	reverseTargetSeed = 0x7265767461726774
)

// defaultSpread is how many partitions a target lies on where there are as
// many.
const defaultSpread = 4

// NewReverseGeneration is a generation of partitions and R reverse shards under
// the default hashes.
func NewReverseGeneration(id uint32, partitions, shards int) ReverseGeneration {
	return ReverseGeneration{
		ID:      id,
		Users:   HashContract{Algorithm: AlgorithmXXH64, Seed: reverseUserSeed, Encoding: EncodingLP1, Modulus: shards},
		Targets: HashContract{Algorithm: AlgorithmXXH64, Seed: reverseTargetSeed, Encoding: EncodingLP1, Modulus: partitions},
		Spread:  min(defaultSpread, partitions, shards),
	}
}

// Shards is R, the number of reverse shards of a target.
func (g ReverseGeneration) Shards() int { return g.Users.Modulus }

// Partitions of liker-changes and the likers table.
func (g ReverseGeneration) Partitions() int { return g.Targets.Modulus }

// Shard is the reverse shard of a user.
func (g ReverseGeneration) Shard(user string) int { return g.Users.Slot(user) }

// Partition is where a target's reverse shard lies.
func (g ReverseGeneration) Partition(k Kind, target string, shard int) int {
	return (g.Targets.Slot(k.String(), target) + shard%g.Spread) % g.Partitions()
}

// ShardsByPartition lists, for each partition that a page of the target needs,
// the reverse shards that lie there.
func (g ReverseGeneration) ShardsByPartition(k Kind, target string) map[int][]int {
	on := make(map[int][]int, g.Spread)
	for shard := range g.Shards() {
		p := g.Partition(k, target, shard)
		on[p] = append(on[p], shard)
	}
	return on
}

// Place says where the reverse index keeps a relation.
func (g ReverseGeneration) Place(r Relation) *tidemarkv1.ReversePlacement {
	p := new(tidemarkv1.ReversePlacement)
	g.PlaceIn(p, r)
	return p
}

// PlaceIn writes to p where the reverse index keeps a relation.
func (g ReverseGeneration) PlaceIn(p *tidemarkv1.ReversePlacement, r Relation) {
	shard := g.Shard(r.User)
	p.Generation, p.ReverseShard, p.Partition = g.ID, uint32(shard), uint32(g.Partition(r.Kind, r.Target, shard))
}

// Check refuses a generation that this code cannot follow, or that was made for
// other numbers of partitions and reverse shards.
func (g ReverseGeneration) Check(partitions, shards int) error {
	err := errors.Join(g.Users.Check(), g.Targets.Check())
	switch {
	case err != nil:
	case g.ID < 1 || g.ID >= MaxPartitions:
		err = fmt.Errorf("its id is not in 1..%d", MaxPartitions-1)
	case g.Spread < 1 || g.Spread > min(g.Partitions(), g.Shards()):
		err = fmt.Errorf("its spread %d is not in 1..%d", g.Spread, min(g.Partitions(), g.Shards()))
	case g.Partitions() != partitions:
		err = fmt.Errorf("liker partitions is configured as %d, but it was made for %d: set it to %d", partitions, g.Partitions(), g.Partitions())
	case g.Shards() != shards:
		err = fmt.Errorf("reverse shards is configured as %d, but it was made for %d: set it to %d", shards, g.Shards(), g.Shards())
	}
	if err != nil {
		return fmt.Errorf("reverse generation %d: %w", g.ID, err)
	}
	return nil
}

// LikerKey is the key of a relation in liker-changes and the likers table:
// partition | generation | reverse shard | relation.
func LikerKey(p *tidemarkv1.ReversePlacement, relationKey string) string {
	var buf [14]byte
	b := append(appendHex4(buf[:0], int(p.Partition)), '|')
	b = append(appendHex4(b, int(p.Generation)), '|')
	return string(appendHex4(b, int(p.ReverseShard))) + "|" + relationKey // one allocation
}

// CutLikerKey splits a LikerKey into its parts.
func CutLikerKey(key string) (partition, generation, shard int, relationKey string, ok bool) {
	var part [3]int
	for i := range part {
		if part[i], key, ok = CutPartition(key); !ok {
			return 0, 0, 0, "", false
		}
	}
	return part[0], part[1], part[2], key, true
}

// ParseLikerKey reads a LikerKey.
func ParseLikerKey(key string) (*tidemarkv1.ReversePlacement, Relation, error) {
	partition, generation, shard, relationKey, ok := CutLikerKey(key)
	if !ok {
		return nil, Relation{}, errors.New("liker key names no partition, generation and reverse shard")
	}
	r, err := ParseRelationKey(relationKey)
	return &tidemarkv1.ReversePlacement{Partition: uint32(partition), Generation: uint32(generation), ReverseShard: uint32(shard)}, r, err
}
