package control

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/tidemark/tidemark/topology"
)

// bootstrapKey is the advisory lock that lets one process bootstrap
// ("tdmkboot" in ASCII).
const bootstrapKey = 0x74646d6b626f6f74

// First ids of what a new deployment gets.
const (
	firstShardMap    = 1
	firstBucketSpace = 1
	firstGeneration  = 1
	firstManifest    = 1
	firstReverse     = 1
)

// Bootstrap stores the contracts of a new deployment, once: shard map 1,
// bucket space 1, generation 1 and its sealed route manifest 1, reverse
// generation 1. In every later call it changes nothing and compares what is stored with this code and with
// c; its error names each field that disagrees. It is safe to call from
// several processes at once.
func (d *DB) Bootstrap(ctx context.Context, c topology.Config) error {
	if _, err := topology.New(c); err != nil {
		return err
	}
	return named(pgx.BeginFunc(ctx, d.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1)", int64(bootstrapKey)); err != nil {
			return fmt.Errorf("waiting for another bootstrap: %w", err)
		}
		var done bool
		if err := tx.QueryRow(ctx, "SELECT EXISTS (SELECT FROM activation)").Scan(&done); err != nil {
			return fmt.Errorf("reading what is active: %w", err)
		}
		if !done {
			if err := storeFirst(ctx, tx, c); err != nil {
				return fmt.Errorf("storing the first contracts: %w", err)
			}
		}
		if err := storeFirstReverse(ctx, tx, c); err != nil {
			return fmt.Errorf("storing the first reverse generation: %w", err)
		}
		return verify(ctx, tx, c)
	}))
}

// storeFirstReverse makes the reverse generation of a deployment that has
// none: a new one, or one that was made before there was a reverse index.
func storeFirstReverse(ctx context.Context, tx pgx.Tx, c topology.Config) error {
	var done bool
	if err := tx.QueryRow(ctx, "SELECT EXISTS (SELECT FROM reverse_generation)").Scan(&done); err != nil || done {
		return err
	}
	if err := storeReverse(ctx, tx, topology.NewReverseGeneration(firstReverse, c.LikerPartitions, c.ReverseShards)); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, "INSERT INTO reverse_activation (reverse_generation) VALUES ($1)", firstReverse)
	return err
}

func storeReverse(ctx context.Context, tx pgx.Tx, g topology.ReverseGeneration) error {
	users, err := storeContract(g.Users, shardProbeIDs)
	if err != nil {
		return err
	}
	targets, err := storeContract(g.Targets, reverseTargetProbeIDs)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `
		INSERT INTO reverse_generation (id, spread,
		    users_algorithm, users_seed, users_encoding, users_modulus, users_probes,
		    targets_algorithm, targets_seed, targets_encoding, targets_modulus, targets_probes)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)`,
		g.ID, g.Spread, users.Algorithm, users.Seed, users.Encoding, users.Modulus, users.Probes,
		targets.Algorithm, targets.Seed, targets.Encoding, targets.Modulus, targets.Probes)
	return err
}

// storeFirst fills an empty control database.
func storeFirst(ctx context.Context, tx pgx.Tx, c topology.Config) error {
	m := topology.NewShardMap(firstShardMap, c.Shards)
	if err := storeShardMap(ctx, tx, m, c.Shards); err != nil {
		return err
	}
	if err := storeBucketSpace(ctx, tx, firstBucketSpace, topology.DefaultBucketSpace()); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, "INSERT INTO generation (id, bucket_space) VALUES ($1, $2)", firstGeneration, firstBucketSpace); err != nil {
		return fmt.Errorf("generation: %w", err)
	}
	manifest := topology.NewManifest(firstManifest, firstGeneration, firstBucketSpace, topology.DefaultBucketSpace(), c.CountPartitions)
	if err := storeManifest(ctx, tx, manifest); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, "UPDATE generation SET active_manifest_id = $2 WHERE id = $1", firstGeneration, firstManifest); err != nil {
		return fmt.Errorf("activating the manifest: %w", err)
	}
	if _, err := tx.Exec(ctx, "INSERT INTO activation (shard_map, generation) VALUES ($1, $2)", firstShardMap, firstGeneration); err != nil {
		return fmt.Errorf("activating: %w", err)
	}
	return nil
}

func storeShardMap(ctx context.Context, tx pgx.Tx, m topology.ShardMap, shards int) error {
	s, err := storeContract(m.Contract, shardProbeIDs)
	if err != nil {
		return err
	}
	slots := make([]int32, len(m.Slots))
	for i, shard := range m.Slots {
		slots[i] = int32(shard)
	}
	_, err = tx.Exec(ctx, `
		INSERT INTO shard_map (id, algorithm, seed, encoding, modulus, probes, shards, slots)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8)`,
		m.ID, s.Algorithm, s.Seed, s.Encoding, s.Modulus, s.Probes, shards, slots)
	if err != nil {
		return fmt.Errorf("shard map: %w", err)
	}
	return nil
}

func storeBucketSpace(ctx context.Context, tx pgx.Tx, id int, c topology.HashContract) error {
	s, err := storeContract(c, bucketProbeIDs)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `
		INSERT INTO bucket_space (id, algorithm, seed, encoding, modulus, probes)
		VALUES ($1, $2, $3, $4, $5, $6)`,
		id, s.Algorithm, s.Seed, s.Encoding, s.Modulus, s.Probes)
	if err != nil {
		return fmt.Errorf("bucket space: %w", err)
	}
	return nil
}

// storeManifest stores m with its routes and seals it.
func storeManifest(ctx context.Context, tx pgx.Tx, m topology.Manifest) error {
	_, err := tx.Exec(ctx, "INSERT INTO route_manifest (id, generation, bucket_space) VALUES ($1, $2, $3)",
		int64(m.ID), int64(m.Generation), m.BucketSpace)
	if err != nil {
		return fmt.Errorf("route manifest: %w", err)
	}
	partitions, epochs := make([]int32, len(m.Routes)), make([]int64, len(m.Routes))
	for v, r := range m.Routes {
		partitions[v], epochs[v] = int32(r.Partition), int64(r.Epoch)
	}
	_, err = tx.Exec(ctx, `
		INSERT INTO route_manifest_item (manifest_id, bucket, partition, epoch)
		SELECT $1, ord - 1, p, e FROM unnest($2::integer[], $3::bigint[]) WITH ORDINALITY AS r (p, e, ord)`,
		int64(m.ID), partitions, epochs)
	if err != nil {
		return fmt.Errorf("routes: %w", err)
	}
	_, err = tx.Exec(ctx, `
		UPDATE route_manifest SET status = 'SEALED', row_count = $2, checksum = $3, sealed_at = now() WHERE id = $1`,
		int64(m.ID), len(m.Routes), hex64(m.Checksum()))
	if err != nil {
		return fmt.Errorf("sealing the route manifest: %w", err)
	}
	return nil
}

// verify compares the active contracts with this code and with c.
func verify(ctx context.Context, tx pgx.Tx, c topology.Config) error {
	var errs []error
	m, shards, err := loadShardMap(ctx, tx, nil)
	switch {
	case err != nil:
		errs = append(errs, err)
	case shards != c.Shards:
		errs = append(errs, fmt.Errorf("shards is configured as %d, but shard map %d was made for %d: set it to %d", c.Shards, m.ID, shards, shards))
	}
	manifest, err := loadActiveManifest(ctx, tx)
	if err == nil {
		err = manifest.Check(c.CountPartitions)
	}
	if err != nil {
		errs = append(errs, fmt.Errorf("count partitions is configured as %d: %w", c.CountPartitions, err))
	}
	reverse, err := loadReverse(ctx, tx)
	if err == nil {
		err = reverse.Check(c.LikerPartitions, c.ReverseShards)
	}
	if err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
