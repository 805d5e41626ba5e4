package topology

import (
	"encoding/binary"
	"fmt"

	"github.com/cespare/xxhash/v2"

	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// ShardMap assigns users to relation shards. It is frozen: made once, stored
// in the control database, and read from there.
type ShardMap struct {
	ID       uint32       `json:"id"`
	Contract HashContract `json:"contract"`
	Slots    []int        `json:"slots"` // slot to shard; len is the contract's modulus
}

// NewShardMap spreads the default contract's slots evenly over shards.
func NewShardMap(id uint32, shards int) ShardMap {
	m := ShardMap{ID: id, Contract: DefaultShardContract()}
	m.Slots = make([]int, m.Contract.Modulus)
	for i := range m.Slots {
		m.Slots[i] = i % shards
	}
	return m
}

// Shard is the shard that holds a user's relations.
func (m ShardMap) Shard(user string) int { return m.Slots[m.Contract.Slot(user)] }

// Check refuses a map that this code cannot follow or that names a shard
// outside 0..shards-1.
func (m ShardMap) Check(shards int) error {
	if err := m.Contract.Check(); err != nil {
		return fmt.Errorf("shard map %d: %w", m.ID, err)
	}
	if len(m.Slots) != m.Contract.Modulus {
		return fmt.Errorf("shard map %d has %d slots, its contract %d", m.ID, len(m.Slots), m.Contract.Modulus)
	}
	for slot, shard := range m.Slots {
		if shard < 0 || shard >= shards {
			return fmt.Errorf("shard map %d: slot %d is on shard %d, but there are %d shards", m.ID, slot, shard, shards)
		}
	}
	return nil
}

// Route is where a virtual bucket lives.
type Route struct {
	Partition int    `json:"partition"`
	Epoch     uint64 `json:"epoch"`
}

// Manifest is an immutable route of every virtual bucket of a generation. The
// active one, named by the control database, is the only authority on where a
// relation is counted.
type Manifest struct {
	ID          uint64       `json:"id"`
	Generation  uint64       `json:"generation"`
	BucketSpace uint32       `json:"bucketSpace"`
	Contract    HashContract `json:"contract"` // of the bucket space
	Routes      []Route      `json:"routes"`   // index: virtual bucket
}

// NewManifest routes bucket v to partition v mod partitions, epoch 1.
func NewManifest(id, generation uint64, space uint32, contract HashContract, partitions int) Manifest {
	m := Manifest{ID: id, Generation: generation, BucketSpace: space, Contract: contract}
	m.Routes = make([]Route, contract.Modulus)
	for v := range m.Routes {
		m.Routes[v] = Route{Partition: v % partitions, Epoch: 1}
	}
	return m
}

// Check refuses a manifest that does not cover every bucket exactly once or
// names a partition outside 0..partitions-1.
func (m Manifest) Check(partitions int) error {
	if err := m.Contract.Check(); err != nil {
		return fmt.Errorf("route manifest %d: %w", m.ID, err)
	}
	if len(m.Routes) != m.Contract.Modulus {
		return fmt.Errorf("route manifest %d has %d routes, its bucket space %d buckets", m.ID, len(m.Routes), m.Contract.Modulus)
	}
	for v, r := range m.Routes {
		if r.Partition < 0 || r.Partition >= partitions {
			return fmt.Errorf("route manifest %d: bucket %d is on partition %d, but there are %d", m.ID, v, r.Partition, partitions)
		}
		if r.Epoch == 0 {
			return fmt.Errorf("route manifest %d: bucket %d has route epoch 0", m.ID, v)
		}
	}
	return nil
}

// Checksum is the xxh64 (seed 0) of each route in bucket order, as
// little-endian uint32 partition and uint64 epoch.
func (m Manifest) Checksum() uint64 {
	var d xxhash.Digest
	d.Reset()
	var b [12]byte
	for _, r := range m.Routes {
		binary.LittleEndian.PutUint32(b[:], uint32(r.Partition))
		binary.LittleEndian.PutUint64(b[4:], r.Epoch)
		_, _ = d.Write(b[:])
	}
	return d.Sum64()
}

// Place says where a relation is counted.
func (m Manifest) Place(r Relation) *tidemarkv1.Placement {
	p := new(tidemarkv1.Placement)
	m.PlaceIn(p, r)
	return p
}

// PlaceIn writes to p where a relation is counted.
func (m Manifest) PlaceIn(p *tidemarkv1.Placement, r Relation) {
	v := m.Contract.VirtualBucket(r)
	p.BucketSpace, p.VirtualBucket, p.Generation = m.BucketSpace, uint32(v), m.Generation
	p.Partition, p.RouteEpoch = uint32(m.Routes[v].Partition), m.Routes[v].Epoch
}
