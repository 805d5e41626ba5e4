package control

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/tidemark/tidemark/topology"
)

// loadShardMap reads a shard map, nil: the active one, and the number of shards
// that it was made for.
func loadShardMap(ctx context.Context, tx pgx.Tx, id *uint32) (m topology.ShardMap, shards int, err error) {
	var (
		s     storedContract
		slots []int32
	)
	err = tx.QueryRow(ctx, `
		SELECT m.id, m.algorithm, m.seed, m.encoding, m.modulus, m.probes, m.shards, m.slots
		FROM activation a JOIN shard_map m ON m.id = coalesce($1::integer, a.shard_map)`, id).
		Scan(&m.ID, &s.Algorithm, &s.Seed, &s.Encoding, &s.Modulus, &s.Probes, &shards, &slots)
	if errors.Is(err, pgx.ErrNoRows) {
		return m, 0, ErrNotBootstrapped
	}
	if err != nil {
		return m, 0, fmt.Errorf("reading the shard map: %w", err)
	}
	if m.Contract, err = s.contract(); err != nil {
		return m, 0, fmt.Errorf("shard map %d: %w", m.ID, err)
	}
	m.Slots = make([]int, len(slots))
	for i, shard := range slots {
		m.Slots[i] = int(shard)
	}
	return m, shards, m.Check(shards)
}

// loadReverse reads the active reverse generation.
func loadReverse(ctx context.Context, tx pgx.Tx) (g topology.ReverseGeneration, err error) {
	var users, targets storedContract
	err = tx.QueryRow(ctx, `
		SELECT g.id, g.spread,
		       g.users_algorithm, g.users_seed, g.users_encoding, g.users_modulus, g.users_probes,
		       g.targets_algorithm, g.targets_seed, g.targets_encoding, g.targets_modulus, g.targets_probes
		FROM reverse_activation a JOIN reverse_generation g ON g.id = a.reverse_generation`).
		Scan(&g.ID, &g.Spread,
			&users.Algorithm, &users.Seed, &users.Encoding, &users.Modulus, &users.Probes,
			&targets.Algorithm, &targets.Seed, &targets.Encoding, &targets.Modulus, &targets.Probes)
	if errors.Is(err, pgx.ErrNoRows) {
		return g, ErrNotBootstrapped
	}
	if err != nil {
		return g, fmt.Errorf("reading the reverse generation: %w", err)
	}
	if g.Users, err = users.contract(); err == nil {
		g.Targets, err = targets.contract()
	}
	if err != nil {
		return g, fmt.Errorf("reverse generation %d: %w", g.ID, err)
	}
	return g, g.Check(g.Partitions(), g.Shards())
}

// loadActiveManifest reads the active generation's manifest with its routes.
func loadActiveManifest(ctx context.Context, tx pgx.Tx) (topology.Manifest, error) {
	var (
		m                topology.Manifest
		s                storedContract
		status, checksum string
		rows             int
	)
	err := tx.QueryRow(ctx, `
		SELECT m.id, m.generation, m.bucket_space, m.status, coalesce(m.row_count, 0), coalesce(m.checksum, ''),
		       b.algorithm, b.seed, b.encoding, b.modulus, b.probes
		FROM activation a
		JOIN generation g ON g.id = a.generation
		JOIN route_manifest m ON m.id = g.active_manifest_id
		JOIN bucket_space b ON b.id = m.bucket_space`).
		Scan(&m.ID, &m.Generation, &m.BucketSpace, &status, &rows, &checksum,
			&s.Algorithm, &s.Seed, &s.Encoding, &s.Modulus, &s.Probes)
	if errors.Is(err, pgx.ErrNoRows) {
		return m, ErrNotBootstrapped
	}
	if err != nil {
		return m, fmt.Errorf("reading the active route manifest: %w", err)
	}
	if m.Contract, err = s.contract(); err != nil {
		return m, fmt.Errorf("bucket space %d: %w", m.BucketSpace, err)
	}
	if m.Routes, err = loadRoutes(ctx, tx, m.ID); err != nil {
		return m, err
	}
	return m, checkSealed(m, status, rows, checksum)
}

func loadRoutes(ctx context.Context, tx pgx.Tx, manifest uint64) ([]topology.Route, error) {
	rows, err := tx.Query(ctx, `
		SELECT bucket, partition, epoch FROM route_manifest_item WHERE manifest_id = $1 ORDER BY bucket`, int64(manifest))
	if err != nil {
		return nil, fmt.Errorf("reading the routes of manifest %d: %w", manifest, err)
	}
	defer rows.Close()
	var routes []topology.Route
	for rows.Next() {
		var bucket, partition int
		var epoch int64
		if err := rows.Scan(&bucket, &partition, &epoch); err != nil {
			return nil, fmt.Errorf("reading a route of manifest %d: %w", manifest, err)
		}
		if bucket != len(routes) {
			return nil, fmt.Errorf("route manifest %d has no route for bucket %d", manifest, len(routes))
		}
		routes = append(routes, topology.Route{Partition: partition, Epoch: uint64(epoch)})
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("reading the routes of manifest %d: %w", manifest, err)
	}
	return routes, nil
}

// checkSealed compares a manifest with what it was sealed with.
func checkSealed(m topology.Manifest, status string, rows int, checksum string) error {
	switch {
	case status != "SEALED":
		return fmt.Errorf("route manifest %d is %s, not SEALED: activate a sealed one", m.ID, status)
	case rows != len(m.Routes):
		return fmt.Errorf("route manifest %d was sealed with %d routes and has %d: restore the control database", m.ID, rows, len(m.Routes))
	case checksum != hex64(m.Checksum()):
		return fmt.Errorf("route manifest %d was sealed with checksum %s and has %s: restore the control database", m.ID, checksum, hex64(m.Checksum()))
	}
	return m.Check(topology.MaxPartitions)
}
