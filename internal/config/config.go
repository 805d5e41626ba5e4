// Package config is everything that a deployment may choose, in one struct:
// Default, then a YAML file, then environment variables.
//
// A setting's path in the file (kafka.brokers) names its variable, too:
// TIDEMARK_KAFKA_BROKERS. example.yaml documents every setting. Secrets stand
// in the file (mode 0600), in files that it names, or in the environment;
// never on a command line.
package config

import (
	"time"

	"github.com/tidemark/tidemark/topology"
)

// Config is the configuration of one process. The zero value is not valid;
// start from Default.
type Config struct {
	// Prefix of every topic and consumer group: lower-case letters, digits and
	// single dots.
	Prefix string `koanf:"prefix"`
	// Shards of the relation store, 1..1024. Frozen once data exists.
	Shards int `koanf:"shards"`
	// CountPartitions of the projection, 1..4096.
	CountPartitions int `koanf:"count_partitions"`
	// DisplayPartitions of the displayed counts, 1..4096.
	DisplayPartitions int `koanf:"display_partitions"`
	// LikerPartitions of the reverse index, 1..4096. Frozen once data exists.
	LikerPartitions int `koanf:"liker_partitions"`
	// ReverseShards of a target in the reverse index, 1..1024. Frozen once data
	// exists.
	ReverseShards int `koanf:"reverse_shards"`
	// ReplicationFactor of every topic, 1..16; production has 3.
	ReplicationFactor int `koanf:"replication_factor"`
	// Retention of streams that are not tables; at least an hour.
	Retention time.Duration `koanf:"retention"`

	// Postgres has one URL per shard, in the order of the shards.
	Postgres []string `koanf:"postgres"`
	// Control is the URL of the control database.
	Control string `koanf:"control"`
	Kafka   Kafka  `koanf:"kafka"`
	// Redis is a redis:// or rediss:// URL; empty runs without a cache.
	Redis string `koanf:"redis"`
	// RedisTLS is how a rediss:// URL is reached, if not with the system's
	// authorities.
	RedisTLS TLS `koanf:"redis_tls"`
	// RedisAuth shows the nodes who comes, if the URL does not.
	RedisAuth RedisAuth `koanf:"redis_auth"`

	Cache    Cache    `koanf:"cache"`
	API      API      `koanf:"api"`
	Limits   Limits   `koanf:"limits"`
	Overload Overload `koanf:"overload"`
	Likers   Likers   `koanf:"likers"`
	Exports  Exports  `koanf:"exports"`
	Ops      Ops      `koanf:"ops"`
	Auth     Auth     `koanf:"auth"`
	// Signatures of requests, beside tokens.
	Signatures Signatures `koanf:"signatures"`
	Log        Log        `koanf:"log"`

	// StateDir holds local stores, below it one folder per instance. It is a
	// cache of the table topics: losing it costs a recovery, never data.
	StateDir string `koanf:"state_dir"`
	// Instance names this process's state folder and static group membership;
	// unique in the deployment, the same after a restart.
	Instance string `koanf:"instance"`
	// HotStandby keeps a second copy of each table for a fast takeover.
	HotStandby bool `koanf:"hot_standby"`

	// RefreshInterval is the shortest time between two partial counts of one
	// target, and between two states of a list that are shown, 1ms..1m.
	RefreshInterval time.Duration `koanf:"refresh_interval"`
	// SealInterval is the time between two seals of a shard, 50ms..1h.
	SealInterval time.Duration `koanf:"seal_interval"`
	// StaleBasePolicy judges a command whose base version is not the current
	// one: RejectStale or LastCommitWins.
	StaleBasePolicy string `koanf:"stale_base_policy"`
	// StaleBase has the policies of kinds that differ from it.
	StaleBase StaleBase `koanf:"stale_base"`
	// Visibility says how commands are checked against what is known of their
	// targets.
	Visibility Visibility `koanf:"visibility"`
	// Risk says which commands are refused, and which relations hidden.
	Risk Risk `koanf:"risk"`
	// GapHealing says who heals a named gap of the change feed: HealManually
	// or HealAutomatically.
	GapHealing string `koanf:"gap_healing"`
	// OutboxRetention is how long outbox rows stay for replay, 24h..8784h. They
	// stay longer when a slot or a proof still needs them.
	OutboxRetention time.Duration `koanf:"outbox_retention"`
	// CommandRetention is how long a retried operation id is recognised,
	// 24h..87840h.
	CommandRetention time.Duration `koanf:"command_retention"`
}

// StaleBase judges stale base versions by kind; empty: as StaleBasePolicy.
type StaleBase struct {
	Like     string `koanf:"like"`
	Favorite string `koanf:"favorite"`
	Follow   string `koanf:"follow"`
}

// Values of StaleBasePolicy.
const (
	RejectStale    = "reject"           // refuse, and answer with the current state
	LastCommitWins = "last-commit-wins" // apply it as if it were current
)

// Values of GapHealing.
const (
	HealManually      = "manual" // `tidemark gaps heal`
	HealAutomatically = "auto"   // as soon as it is named
)

// Kafka is how to reach the brokers.
type Kafka struct {
	// Brokers to ask first, host:port each.
	Brokers []string `koanf:"brokers"`
	TLS     TLS      `koanf:"tls"`
	SASL    SASL     `koanf:"sasl"`
}

// API is the public HTTP interface.
type API struct {
	// Listen is host:port; port 0 takes any.
	Listen string    `koanf:"listen"`
	TLS    ListenTLS `koanf:"tls"`
	// PageTokenKeyFiles hold the keys of page tokens, at least 32 bytes each:
	// the first signs, all are accepted, and every process that serves lists has
	// the same ones. Empty: lists are not served.
	PageTokenKeyFiles []string `koanf:"page_token_key_files"`
}

// Likers is where a likers process answers query processes for the partitions
// that it owns. It has no users and no rights: keep it on a private network, or
// give every process a certificate.
type Likers struct {
	// Listen is host:port; port 0 takes any.
	Listen string `koanf:"listen"`
	// Advertise is host:port at which query processes reach it; port 0 is the
	// one listened on. Empty: the address listened on.
	Advertise string `koanf:"advertise"`
	// MaxStandbyStaleness is how old a list may be, by its oldest seal, that a
	// hot standby answers while the owner of its partition is away: at most an
	// hour. 0: standbys are never asked. Of query processes.
	MaxStandbyStaleness time.Duration `koanf:"max_standby_staleness"`
	// TLS of both sides: likers processes show cert_file, believe only query
	// processes whose certificate ca_file signed, and the other way round.
	TLS TLS `koanf:"tls"`
	// ClientNames are DNS names of which the certificate of a query process must
	// bear one; empty: any certificate that ca_file signed.
	ClientNames []string `koanf:"client_names"`
}

// Cache is how Redis is used. It accelerates and never decides: each process may
// have other settings, but for RelationBuckets.
type Cache struct {
	// ReadRelations has batch queries ask Redis before the shards: they may then be
	// late by as long as the change feed takes, and cost less only where shards are
	// short and most targets of a query are related to (docs/cache.md).
	ReadRelations bool `koanf:"read_relations"`
	// RelationBuckets that a user's relations are spread over in Redis, 1..64; of
	// generations begun from now on. More than one costs memory, and keeps single
	// keys small where users have hundreds of thousands of relations.
	RelationBuckets int `koanf:"relation_buckets"`
	// RebuildRate at which a rebuilding reads relations from the shards, per
	// second, 100..10000000.
	RebuildRate int `koanf:"rebuild_rate"`
	// ReadTimeout after which a query does without the cache, 1ms..10s.
	ReadTimeout time.Duration `koanf:"read_timeout"`
	// FallbackReads are the queries of one shard that may read what the cache does
	// not have at a time, 1..1000, per process; as many times 16 may wait.
	FallbackReads int `koanf:"fallback_reads"`
	// CountSource is where queries read counts: CountsFromView, CountsFromRedis, or
	// CountsFromBoth.
	CountSource string `koanf:"count_source"`
	// Heads has likers processes keep the newest of hot lists in Redis, and query
	// processes read first pages there: it is set for both, or costs without sparing
	// (docs/cache.md). It needs redis.
	Heads bool `koanf:"heads"`
	// HeadLength is how many entries of a list are kept, 100..100000; deeper pages
	// are read from the index.
	HeadLength int `koanf:"head_length"`
	// HotReads are the pages a minute from which on a list is hot, 1..1000000; it
	// has cooled below half of that. Of likers processes.
	HotReads int `koanf:"hot_reads"`
	// HotLists are the most lists of which a partition of the index keeps its part,
	// 1..10000. Of likers processes.
	HotLists int `koanf:"hot_lists"`
}

// Values of Cache.CountSource.
const (
	CountsFromView  = "view"  // a copy of the display table in each process
	CountsFromRedis = "redis" // no copy: what Redis does not have is refused
	CountsFromBoth  = "both"  // the copy, and Redis while it is read in
)

// Exports are exact lists that are asked for over the API. A queries process
// with a folder runs them, one at a time.
type Exports struct {
	// Dir is where their files are written and served from, below a folder for
	// each: the same one for all queries processes, or of one process only.
	// Nothing there is removed. Empty: exports are not served.
	Dir string `koanf:"dir"`
}

// Ops is the operators' HTTP interface: health, metrics, profiles. It knows no
// users: only tls.client_ca_file keeps others away, so without it it must not be
// reachable from outside.
type Ops struct {
	// Listen is host:port; port 0 takes any.
	Listen string    `koanf:"listen"`
	TLS    ListenTLS `koanf:"tls"`
}

// Auth says whose tokens are believed: those of a shared key, or those of
// the keys behind a URL.
type Auth struct {
	// HS256KeyFile holds the shared key, at least 32 bytes.
	HS256KeyFile string `koanf:"hs256_key_file"`
	// JWKSURL serves the issuer's public keys; https, or http on loopback.
	JWKSURL string `koanf:"jwks_url"`
	// JWKSTLS is how an https URL is reached, if not with the system's authorities.
	JWKSTLS TLS `koanf:"jwks_tls"`
	// Issuer that a token must name; empty: not checked.
	Issuer string `koanf:"issuer"`
	// Audience that a token must name; empty: not checked.
	Audience string `koanf:"audience"`
}

// Log is what goes to stderr.
type Log struct {
	// Level is debug, info, warn or error.
	Level string `koanf:"level"`
	// Format is text or json.
	Format string `koanf:"format"`
}

// Default returns the defaults of one machine. It names no database and no
// broker: those are a deployment's own.
func Default() Config {
	t := topology.DefaultConfig()
	return Config{
		Prefix:            t.Prefix,
		Shards:            t.Shards,
		CountPartitions:   t.CountPartitions,
		DisplayPartitions: t.DisplayPartitions,
		LikerPartitions:   t.LikerPartitions,
		ReverseShards:     t.ReverseShards,
		ReplicationFactor: t.ReplicationFactor,
		Retention:         t.Retention,
		Cache:             Cache{RelationBuckets: 1, RebuildRate: 30_000, ReadTimeout: 250 * time.Millisecond, FallbackReads: 16, CountSource: CountsFromView, HeadLength: 5000, HotReads: 300, HotLists: 64},
		API:               API{Listen: "127.0.0.1:8080", PageTokenKeyFiles: []string{}},
		Likers:            Likers{Listen: "127.0.0.1:0", MaxStandbyStaleness: 30 * time.Second, ClientNames: []string{}},
		Limits:            defaultLimits(),
		Overload:          Overload{CommandsInFlight: 512, QueriesInFlight: 1024, CommandLatency: 500 * time.Millisecond, PoolWait: 100 * time.Millisecond, CountLag: 30 * time.Second},
		Ops:               Ops{Listen: "127.0.0.1:8081"},
		Signatures:        Signatures{Required: []string{}, MaxAge: 5 * time.Minute},
		Log:               Log{Level: "info", Format: "text"},
		StateDir:          ".tidemark/state",
		Instance:          "1",
		RefreshInterval:   200 * time.Millisecond,
		SealInterval:      2 * time.Second,
		StaleBasePolicy:   RejectStale,
		Visibility:        DefaultVisibility(),
		Risk:              defaultRisk(),
		GapHealing:        HealManually,
		OutboxRetention:   7 * 24 * time.Hour,
		CommandRetention:  7 * 24 * time.Hour,
	}
}

// Topology draws the deployment's map.
func (c Config) Topology() (*topology.Topology, error) { return topology.New(c.topologyConfig()) }

func (c Config) topologyConfig() topology.Config {
	return topology.Config{
		Prefix:            c.Prefix,
		Shards:            c.Shards,
		CountPartitions:   c.CountPartitions,
		DisplayPartitions: c.DisplayPartitions,
		LikerPartitions:   c.LikerPartitions,
		ReverseShards:     c.ReverseShards,
		ReplicationFactor: c.ReplicationFactor,
		Retention:         c.Retention,
	}
}
