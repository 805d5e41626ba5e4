package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tidemark/tidemark/internal/cache"
)

// CacheStatus is where a cache generation stands in its life.
type CacheStatus string

// The statuses. RETIRED and FAILED are for ever.
//
//	REBUILDING ──▶ ACTIVE ──▶ RETIRED   another one is active in its place
//	     └────────────┴─────▶ FAILED    lost, or given up
const (
	CacheRebuilding CacheStatus = "REBUILDING"
	CacheActive     CacheStatus = "ACTIVE"
	CacheRetired    CacheStatus = "RETIRED"
	CacheFailed     CacheStatus = "FAILED"
)

// CacheGeneration is a life of a family of the cache.
type CacheGeneration struct {
	cache.Generation
	Status      CacheStatus
	Reason      string // why it was begun
	EndedReason string // why it was retired or failed
	Stamped     bool   // Redis was told of it
	Dropped     bool   // nothing of it is left in Redis
	Progress    CacheProgress
	BegunAt     time.Time
	ActivatedAt *time.Time
	EndedAt     *time.Time
}

// CacheProgress is how far a rebuilding has come.
type CacheProgress struct {
	// Phase is announcing, reading, catching-up, verifying or done.
	Phase string `json:"phase,omitempty"`
	// Shards has the place in each shard's facts up to which they were handed
	// over; of counts, how far each display partition is copied.
	Shards map[int]CacheShardProgress `json:"shards,omitempty"`
	// Offsets are the ends of the tasks' partitions that must be consumed
	// before the reading begins, and before the verification.
	Offsets map[int]int64 `json:"offsets,omitempty"`
	Sampled int64         `json:"sampled,omitempty"`
	Entries int64         `json:"entries,omitempty"` // counted in Redis
}

// CacheShardProgress is the reading of one shard.
type CacheShardProgress struct {
	After  string `json:"after,omitempty"` // key of the last relation handed over
	Read   int64  `json:"read"`
	About  int64  `json:"about"` // relations that the shard has, estimated
	Done   bool   `json:"done"`
	Seal   uint64 `json:"seal"` // newest of the shard when the reading began
	SealAt string `json:"sealAt,omitempty"`
}

// CacheSubject names a generation in the audit.
func CacheSubject(f cache.Family, id uint64) string { return fmt.Sprintf("cache:%s:%d", f, id) }

// ErrCacheRebuilding says that a generation is being rebuilt already.
var ErrCacheRebuilding = errors.New("a cache generation is being rebuilt already")

const cacheSQL = `
	SELECT g.family, g.id, d.name, g.buckets, g.manifest, g.status, g.reason, g.ended_reason, g.stamped, g.dropped, g.progress, g.begun_at, g.activated_at, g.ended_at
	FROM cache_generation g, cache_deployment d`

func scanCache(row pgx.CollectableRow) (g CacheGeneration, err error) {
	var progress []byte
	if err := row.Scan(&g.Family, &g.ID, &g.Deployment, &g.Buckets, &g.Manifest, &g.Status, &g.Reason, &g.EndedReason, &g.Stamped, &g.Dropped, &progress, &g.BegunAt, &g.ActivatedAt, &g.EndedAt); err != nil {
		return g, err
	}
	return g, json.Unmarshal(progress, &g.Progress)
}

// CacheGenerations lists the newest generations of a family, newest first: all
// that live, and as many that do not that there are limit.
func (d *DB) CacheGenerations(ctx context.Context, f cache.Family, limit int) ([]CacheGeneration, error) {
	rows, err := d.pool.Query(ctx, cacheSQL+` WHERE family = $1 AND (status IN ('REBUILDING', 'ACTIVE') OR NOT dropped
		OR id > (SELECT coalesce(max(id), 0) - $2 FROM cache_generation WHERE family = $1)) ORDER BY id DESC`, f, limit)
	if err == nil {
		var out []CacheGeneration
		if out, err = pgx.CollectRows(rows, scanCache); err == nil {
			return out, nil
		}
	}
	return nil, named(fmt.Errorf("reading cache generations: %w", err))
}

// BeginCache begins a generation, REBUILDING, or says ErrCacheRebuilding. One
// that is active stays so until the new one takes its place; the number of the
// new one is even if that of the active one is odd, and odd if it is even, since
// the table of floors has room for one of each.
func (d *DB) BeginCache(ctx context.Context, f cache.Family, buckets int, who, reason string) (CacheGeneration, error) {
	return d.beginCache(ctx, f, buckets, 0, who, reason)
}

// BeginCountCache begins a generation of counts, whose counts are all counted by
// one manifest of routes.
func (d *DB) BeginCountCache(ctx context.Context, manifest uint64, who, reason string) (CacheGeneration, error) {
	return d.beginCache(ctx, cache.Counts, 1, manifest, who, reason)
}

func (d *DB) beginCache(ctx context.Context, f cache.Family, buckets int, manifest uint64, who, reason string) (g CacheGeneration, err error) {
	err = pgx.BeginFunc(ctx, d.pool, func(tx pgx.Tx) error {
		var id uint64
		err := tx.QueryRow(ctx, `
			INSERT INTO cache_generation (family, id, buckets, manifest, reason)
			SELECT $1, n + coalesce(n % 2 = active % 2, false)::int, $2, $3, $4
			FROM (SELECT coalesce(max(id), 0) + 1 AS n, max(id) FILTER (WHERE status = 'ACTIVE') AS active
			      FROM cache_generation WHERE family = $1) AS g RETURNING id`, f, buckets, manifest, reason).Scan(&id)
		if err != nil {
			return err
		}
		rows, err := tx.Query(ctx, cacheSQL+" WHERE family = $1 AND id = $2", f, id)
		if err != nil {
			return err
		}
		if g, err = pgx.CollectExactlyOneRow(rows, scanCache); err != nil {
			return err
		}
		return audit(ctx, tx, Entry{Who: who, Action: "cache.begun", Subject: CacheSubject(f, id), Reason: reason})
	})
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "23505" { // unique violation
		return g, fmt.Errorf("%s: %w", f, ErrCacheRebuilding)
	}
	if err != nil {
		return g, named(fmt.Errorf("beginning a cache generation: %w", err))
	}
	return g, nil
}

// ActivateCache makes a generation that is REBUILDING the active one, and the
// one that was active RETIRED, in one step. changed is false when it is not
// REBUILDING any more.
func (d *DB) ActivateCache(ctx context.Context, g cache.Generation, who string) (changed bool, err error) {
	err = pgx.BeginFunc(ctx, d.pool, func(tx pgx.Tx) error {
		var status CacheStatus
		if err := tx.QueryRow(ctx, "SELECT status FROM cache_generation WHERE family = $1 AND id = $2 FOR UPDATE", g.Family, g.ID).Scan(&status); err != nil {
			return err
		}
		if changed = status == CacheRebuilding; !changed {
			return nil
		}
		if _, err := tx.Exec(ctx, `UPDATE cache_generation SET status = 'RETIRED', ended_at = clock_timestamp(), ended_reason = $2
			WHERE family = $1 AND status = 'ACTIVE'`, g.Family, fmt.Sprintf("generation %d is active in its place", g.ID)); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, "UPDATE cache_generation SET status = 'ACTIVE', activated_at = clock_timestamp() WHERE family = $1 AND id = $2", g.Family, g.ID); err != nil {
			return err
		}
		return audit(ctx, tx, Entry{Who: who, Action: "cache.activated", Subject: CacheSubject(g.Family, g.ID)})
	})
	if err != nil {
		return false, named(fmt.Errorf("activating a cache generation: %w", err))
	}
	return changed, nil
}

// FailCache ends a generation that is REBUILDING or ACTIVE as FAILED; changed is
// false when it is neither.
func (d *DB) FailCache(ctx context.Context, g cache.Generation, who, reason string) (changed bool, err error) {
	return d.audited(ctx, "changing a cache generation", Entry{Who: who, Action: "cache.failed", Subject: CacheSubject(g.Family, g.ID), Reason: reason},
		`UPDATE cache_generation SET status = 'FAILED', ended_at = clock_timestamp(), ended_reason = $3
		 WHERE family = $1 AND id = $2 AND status IN ('REBUILDING', 'ACTIVE')`, g.Family, g.ID, reason)
}

// StampingCache notes that Redis is about to be told of a generation. Only the
// caller that is told true may tell it: a server that has lost a generation
// must not be given it again.
func (d *DB) StampingCache(ctx context.Context, g cache.Generation) (first bool, err error) {
	tag, err := d.pool.Exec(ctx, "UPDATE cache_generation SET stamped = true WHERE family = $1 AND id = $2 AND status = 'REBUILDING' AND NOT stamped", g.Family, g.ID)
	return tag.RowsAffected() == 1, named(err)
}

// CacheDropped notes that nothing of an ended generation is left in Redis.
func (d *DB) CacheDropped(ctx context.Context, g cache.Generation) error {
	_, err := d.pool.Exec(ctx, "UPDATE cache_generation SET dropped = true WHERE family = $1 AND id = $2 AND status IN ('RETIRED', 'FAILED')", g.Family, g.ID)
	return named(err)
}

// NoteCacheProgress keeps how far a rebuilding has come; rebuilding is false
// when the generation is no longer REBUILDING.
func (d *DB) NoteCacheProgress(ctx context.Context, g cache.Generation, p CacheProgress) (rebuilding bool, err error) {
	text, err := json.Marshal(p)
	if err != nil {
		return false, err
	}
	tag, err := d.pool.Exec(ctx, "UPDATE cache_generation SET progress = $3 WHERE family = $1 AND id = $2 AND status = 'REBUILDING'", g.Family, g.ID, text)
	if err != nil {
		return false, named(fmt.Errorf("noting a rebuilding's progress: %w", err))
	}
	return tag.RowsAffected() == 1, nil
}
