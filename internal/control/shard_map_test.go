package control

import (
	"errors"
	"strings"
	"testing"

	"github.com/tidemark/tidemark/topology"
)

func TestShardMapSuccession(t *testing.T) {
	db := openBootstrapped(t)
	ctx := t.Context()
	m, err := db.ShardMap(ctx)
	if err != nil {
		t.Fatal(err)
	}
	next := m
	next.ID, next.Slots = 2, append([]int(nil), m.Slots...)
	next.Slots[0] = 3
	for range 2 { // whoever was interrupted does it again
		if err := db.StoreShardMap(ctx, next, 4); err != nil {
			t.Fatal(err)
		}
	}
	for name, test := range map[string]struct {
		m    topology.ShardMap
		want string
	}{
		"other slots":   {topology.ShardMap{ID: 2, Contract: m.Contract, Slots: m.Slots}, "stored with other slots"},
		"not the next":  {topology.ShardMap{ID: 3, Contract: m.Contract, Slots: m.Slots}, "its successor is 2, not 3"},
		"missing slots": {topology.ShardMap{ID: 2, Contract: m.Contract, Slots: m.Slots[1:]}, "slots"},
	} {
		if err := db.StoreShardMap(ctx, test.m, 4); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if stored, shards, err := db.StoredShardMap(ctx, 2); err != nil || stored.Slots[0] != 3 || shards != 4 {
		t.Errorf("stored map %d of %d shards, error %v", stored.ID, shards, err)
	}
	if _, _, err := db.StoredShardMap(ctx, 9); !errors.Is(err, ErrNotBootstrapped) {
		t.Errorf("a map that is not stored: %v", err)
	}
	if err := db.ActivateShardMap(ctx, 2, 3, "ann", ""); err == nil || !strings.Contains(err.Error(), "3 cannot follow 2") {
		t.Errorf("from a map that is not active: %v", err)
	}
	for range 2 {
		if err := db.ActivateShardMap(ctx, 1, 2, "ann", "more room"); err != nil {
			t.Fatal(err)
		}
	}
	if now, err := db.ShardMap(ctx); err != nil || now.ID != 2 || now.Slots[0] != 3 {
		t.Errorf("active is map %d, error %v", now.ID, err)
	}
	lines, err := db.Entries(ctx, "shard-map:2", 10)
	if err != nil || len(lines) != 1 || lines[0].Who != "ann" || lines[0].Reason != "more room" {
		t.Errorf("the audit has %+v, error %v", lines, err)
	}
}
