package topology

import (
	"encoding/binary"
	"slices"
	"strings"
	"testing"

	"github.com/cespare/xxhash/v2"
	"pgregory.net/rapid"
)

func expectError(t *testing.T, err error, part string) {
	t.Helper()
	switch {
	case part == "" && err != nil:
		t.Errorf("refused: %v", err)
	case part != "" && err == nil:
		t.Errorf("accepted, want an error with %q", part)
	case part != "" && !strings.Contains(err.Error(), part):
		t.Errorf("error %q does not say %q", err, part)
	}
}

func TestShardMapCheck(t *testing.T) {
	with := func(change func(*ShardMap)) ShardMap { m := NewShardMap(1, 4); change(&m); return m }
	for _, c := range []struct {
		name  string
		m     ShardMap
		wrong string
	}{
		{"even", NewShardMap(1, 4), ""},
		{"one shard", NewShardMap(1, 1), ""},
		{"shard without slots", with(func(m *ShardMap) { clear(m.Slots) }), ""},
		{"contract", with(func(m *ShardMap) { m.Contract.Algorithm = "" }), "shard map 1: hash contract"},
		{"slot missing", with(func(m *ShardMap) { m.Slots = m.Slots[1:] }), "4095 slots"},
		{"slot too many", with(func(m *ShardMap) { m.Slots = append(m.Slots, 0) }), "4097 slots"},
		{"shard too high", with(func(m *ShardMap) { m.Slots[9] = 4 }), "slot 9 is on shard 4"},
		{"shard negative", with(func(m *ShardMap) { m.Slots[9] = -1 }), "slot 9 is on shard -1"},
		{"empty", ShardMap{}, "algorithm"},
	} {
		t.Run(c.name, func(t *testing.T) { expectError(t, c.m.Check(4), c.wrong) })
	}
}

func TestNewShardMapSpreadsEvenly(t *testing.T) {
	for _, shards := range []int{1, 2, 3, 4, 7, 1024} {
		m := NewShardMap(1, shards)
		per := make([]int, shards)
		for _, s := range m.Slots {
			per[s]++
		}
		if slices.Max(per)-slices.Min(per) > 1 {
			t.Errorf("%d shards have between %d and %d slots", shards, slices.Min(per), slices.Max(per))
		}
	}
}

func TestManifestCheck(t *testing.T) {
	with := func(change func(*Manifest)) Manifest {
		m := NewManifest(3, 1, 1, DefaultBucketSpace(), 8)
		change(&m)
		return m
	}
	for _, c := range []struct {
		name  string
		m     Manifest
		wrong string
	}{
		{"even", with(func(*Manifest) {}), ""},
		{"moved bucket", with(func(m *Manifest) { m.Routes[5] = Route{Partition: 7, Epoch: 9} }), ""},
		{"contract", with(func(m *Manifest) { m.Contract.Encoding = "lp9" }), "route manifest 3: hash contract"},
		{"bucket missing", with(func(m *Manifest) { m.Routes = m.Routes[:1023] }), "1023 routes"},
		{"bucket too many", with(func(m *Manifest) { m.Routes = append(m.Routes, Route{Epoch: 1}) }), "1025 routes"},
		{"partition too high", with(func(m *Manifest) { m.Routes[5].Partition = 8 }), "bucket 5 is on partition 8"},
		{"partition negative", with(func(m *Manifest) { m.Routes[5].Partition = -1 }), "bucket 5 is on partition -1"},
		{"no epoch", with(func(m *Manifest) { m.Routes[5].Epoch = 0 }), "bucket 5 has route epoch 0"},
		{"empty", Manifest{}, "algorithm"},
	} {
		t.Run(c.name, func(t *testing.T) { expectError(t, c.m.Check(8), c.wrong) })
	}
}

// The checksum is what its comment says, so that a stored manifest can be
// checked by other code, and any changed route changes it.
func TestManifestChecksum(t *testing.T) {
	m := NewManifest(1, 1, 1, DefaultBucketSpace(), 8)
	var b []byte
	for _, r := range m.Routes {
		b = binary.LittleEndian.AppendUint32(b, uint32(r.Partition))
		b = binary.LittleEndian.AppendUint64(b, r.Epoch)
	}
	if m.Checksum() != xxhash.Sum64(b) {
		t.Errorf("checksum %x, want %x", m.Checksum(), xxhash.Sum64(b))
	}
	rapid.Check(t, func(t *rapid.T) {
		other := m
		other.Routes = slices.Clone(m.Routes)
		v := rapid.IntRange(0, len(other.Routes)-1).Draw(t, "bucket")
		other.Routes[v] = Route{Partition: rapid.IntRange(0, 4095).Draw(t, "partition"), Epoch: rapid.Uint64Min(1).Draw(t, "epoch")}
		if same := other.Routes[v] == m.Routes[v]; same != (other.Checksum() == m.Checksum()) {
			t.Fatalf("bucket %d on %+v: checksum %x, before %x", v, other.Routes[v], other.Checksum(), m.Checksum())
		}
	})
}

// I11: a moved bucket keeps its relations; only partition and epoch change.
func TestI11PlaceFollowsTheRoute(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := drawRelation(t)
		before := NewManifest(1, 1, 1, DefaultBucketSpace(), 8)
		after := NewManifest(2, 1, 1, DefaultBucketSpace(), 8)
		a := before.Place(r)
		moved := Route{Partition: rapid.IntRange(0, 7).Draw(t, "partition"), Epoch: 2}
		after.Routes[a.VirtualBucket] = moved
		b := after.Place(r)
		if int(a.VirtualBucket) != DefaultBucketSpace().VirtualBucket(r) || a.VirtualBucket != b.VirtualBucket {
			t.Fatalf("%+v is in bucket %d, then %d", r, a.VirtualBucket, b.VirtualBucket)
		}
		if int(b.Partition) != moved.Partition || b.RouteEpoch != moved.Epoch || a.RouteEpoch != 1 || a.Generation != 1 || a.BucketSpace != 1 {
			t.Fatalf("placed at %v, then %v; want %+v", a, b, moved)
		}
	})
}
