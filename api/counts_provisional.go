package api

import "time"

// Count is provisional.
type Count struct {
	Target                 string
	Active, Disliked       int64
	Found                  bool
	GeneratedAt            time.Time
	Generation, ManifestID uint64
	Partials               int
	AsOf                   []ShardAsOf
	Staleness              time.Duration
}

// ShardAsOf is provisional.
type ShardAsOf struct {
	Shard                        int
	Seal, PreviousCommitLSN, LSN uint64
	SealedAt                     time.Time
}
