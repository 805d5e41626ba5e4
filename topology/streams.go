package topology

import (
	"errors"
	"fmt"
	"regexp"
	"time"
)

// Config is what a deployment may choose of its topology.
type Config struct {
	// Prefix of every topic and group: letters, digits and single dots.
	Prefix string
	// Shards of the relation store, 1..1024; also the partitions of cdc and facts.
	Shards int
	// CountPartitions of bucket-changes and the projection table, 1..4096.
	CountPartitions int
	// DisplayPartitions of partial-counts and the display table, 1..4096.
	DisplayPartitions int
	// LikerPartitions of liker-changes and the likers table, 1..4096; frozen in
	// the reverse generation.
	LikerPartitions int
	// ReverseShards is R of the reverse generation, 1..1024; frozen in it.
	ReverseShards int
	// ReplicationFactor of every topic; min.insync.replicas is one less, at
	// least 1.
	ReplicationFactor int
	// Retention of streams that are not tables.
	Retention time.Duration
}

// DefaultConfig returns the defaults of one machine.
func DefaultConfig() Config {
	return Config{Prefix: "tidemark", Shards: 4, CountPartitions: 8, DisplayPartitions: 8, LikerPartitions: 8, ReverseShards: 16, ReplicationFactor: 1, Retention: 7 * 24 * time.Hour}
}

var prefixForm = regexp.MustCompile(`^[a-z0-9]+(\.[a-z0-9]+)*$`)

func (c Config) check() error {
	var errs []error
	between := func(field string, v, lo, hi int) {
		if v < lo || v > hi {
			errs = append(errs, fmt.Errorf("topology: %s is %d, not in %d..%d", field, v, lo, hi))
		}
	}
	if len(c.Prefix) > 100 || !prefixForm.MatchString(c.Prefix) {
		errs = append(errs, fmt.Errorf("topology: prefix %q is not lower-case letters and digits with single dots", clip(c.Prefix)))
	}
	between("shards", c.Shards, 1, 1024)
	between("count partitions", c.CountPartitions, 1, 4096)
	between("display partitions", c.DisplayPartitions, 1, 4096)
	between("liker partitions", c.LikerPartitions, 1, 4096)
	between("reverse shards", c.ReverseShards, 1, 1024)
	between("replication factor", c.ReplicationFactor, 1, 16)
	if c.Retention < time.Hour {
		errs = append(errs, fmt.Errorf("topology: retention %v is under an hour, too short for a restart", c.Retention))
	}
	return errors.Join(errs...)
}

// Names of the streams and tables, before the prefix.
const (
	CDC             = "cdc"
	PrivacyEvents   = "privacy-events"
	Facts           = "facts"
	BucketChanges   = "bucket-changes"
	LikerChanges    = "liker-changes"
	PartialCounts   = "partial-counts"
	Quarantine      = "quarantine"
	IntakeTable     = "intake-table"
	ProjectionTable = "projection-table"
	LikersTable     = "likers-table"
	DisplayTable    = "display-table"
	CacheTasks      = "cache-tasks"
	CacheFloorTable = "cachefloor-table"
)

// privacyPartitions is how many privacy events are stored at a time. They are
// rare beside likes, so no deployment has to choose.
const privacyPartitions = 4

// Names of the groups, before the prefix.
const (
	IntakeGroup     = "intake"
	PrivacyGroup    = "privacy"
	ProjectionGroup = "projection"
	LikersGroup     = "likers"
	DisplayGroup    = "display"
	CacheFloorGroup = "cachefloor"
)

// Stream is one topic.
type Stream struct {
	Name       string            `json:"name"`
	Topic      string            `json:"topic"`
	Partitions int               `json:"partitions"`
	Table      bool              `json:"table"`  // compacted: the newest value of each key
	Key        string            `json:"key"`    // form of the key
	Value      string            `json:"value"`  // schema of the value
	PlacedBy   string            `json:"placed"` // what decides the partition
	For        string            `json:"for"`    // who reads it
	Settings   map[string]string `json:"settings"`
}

// Group is one processor: a consumer group, its inputs, outputs and table.
type Group struct {
	Name    string   `json:"name"`
	ID      string   `json:"id"` // the consumer group
	Inputs  []string `json:"inputs"`
	Outputs []string `json:"outputs"`
	Table   string   `json:"table,omitempty"`
}

// Topology is the whole map of one deployment.
type Topology struct {
	Config  Config   `json:"-"`
	Streams []Stream `json:"streams"`
	Groups  []Group  `json:"groups"`
}

// New draws the map for c, or says which field of c is wrong.
func New(c Config) (*Topology, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	t := &Topology{Config: c}
	stream := func(s Stream) {
		s.Topic = c.Prefix + "." + s.Name
		s.Settings = c.settings(s.Table)
		t.Streams = append(t.Streams, s)
	}
	stream(Stream{Name: CDC, Partitions: c.Shards, Key: "relation", Value: "Debezium envelope of an outbox row (JSON)", PlacedBy: "source shard", For: "intake"})
	stream(Stream{Name: IntakeTable, Partitions: c.Shards, Table: true, Key: "partition|~ledger, or partition|~suspicion:seal:part", Value: "tidemark.v1.IntakeRow", PlacedBy: "source shard, named in the key", For: "intake: what its next seal is verified with"})
	stream(Stream{Name: Facts, Partitions: c.Shards, Key: "partition|relation", Value: "tidemark.v1.RelationChange", PlacedBy: "source shard, named in the key", For: "cache floor, analytics: every transition in commit order per shard"})
	stream(Stream{Name: BucketChanges, Partitions: c.CountPartitions, Key: "partition|virtual bucket|relation, or partition|~watermark:shard", Value: "tidemark.v1.BucketChange", PlacedBy: "route of the virtual bucket, named in the key", For: "projection"})
	stream(Stream{Name: ProjectionTable, Partitions: c.CountPartitions, Table: true, Key: "as bucket-changes, or partition|~checkpoint", Value: "tidemark.v1.ProjectionRow", PlacedBy: "named in the key", For: "projection, verification"})
	stream(Stream{Name: LikerChanges, Partitions: c.LikerPartitions, Key: "partition|generation|reverse shard|relation, or partition|~watermark:shard", Value: "tidemark.v1.LikerChange", PlacedBy: "reverse generation, named in the key", For: "likers"})
	stream(Stream{Name: LikersTable, Partitions: c.LikerPartitions, Table: true, Key: "as liker-changes", Value: "tidemark.v1.LikerRow", PlacedBy: "named in the key", For: "likers, verification"})
	stream(Stream{Name: PartialCounts, Partitions: c.DisplayPartitions, Key: "kind:target, or partition|~progress:count partition", Value: "tidemark.v1.CountUpdate", PlacedBy: "murmur2 of the key, or named in it", For: "display, analytics"})
	stream(Stream{Name: DisplayTable, Partitions: c.DisplayPartitions, Table: true, Key: "as partial-counts", Value: "tidemark.v1.DisplayRow", PlacedBy: "as partial-counts", For: "views"})
	stream(Stream{Name: CacheTasks, Partitions: c.Shards, Key: "partition|relation, partition|kind:user, or partition|~generation:generation", Value: "tidemark.v1.CacheTask", PlacedBy: "source shard, named in the key", For: "cache floor"})
	stream(Stream{Name: CacheFloorTable, Partitions: c.Shards, Table: true, Key: "partition|generation modulo 2|relation, or partition|~live, or partition|~claim", Value: "tidemark.v1.FloorRow", PlacedBy: "source shard, named in the key", For: "cache floor, verification"})
	stream(Stream{Name: Quarantine, Partitions: 1, Key: "origin's key", Value: "tidemark.v1.Quarantined", PlacedBy: "murmur2 of the key", For: "operators"})
	stream(Stream{Name: PrivacyEvents, Partitions: privacyPartitions, Key: "account:id, video:id, or block:blocker:blocked", Value: "tidemark.v1.PrivacyEvent", PlacedBy: "any: events of a subject need no order", For: "privacy"})
	group := func(g Group) {
		g.ID = c.Prefix + "." + g.Name
		t.Groups = append(t.Groups, g)
	}
	group(Group{Name: IntakeGroup, Inputs: []string{CDC}, Outputs: []string{Facts, BucketChanges, LikerChanges, Quarantine}, Table: IntakeTable})
	group(Group{Name: ProjectionGroup, Inputs: []string{BucketChanges}, Outputs: []string{PartialCounts, Quarantine}, Table: ProjectionTable})
	group(Group{Name: LikersGroup, Inputs: []string{LikerChanges}, Outputs: []string{Quarantine}, Table: LikersTable})
	group(Group{Name: PrivacyGroup, Inputs: []string{PrivacyEvents}, Outputs: []string{Quarantine}})
	group(Group{Name: DisplayGroup, Inputs: []string{PartialCounts}, Outputs: []string{Quarantine}, Table: DisplayTable})
	group(Group{Name: CacheFloorGroup, Inputs: []string{Facts, CacheTasks}, Outputs: []string{Quarantine}, Table: CacheFloorTable})
	return t, nil
}

// settings are a topic's settings; a table never expires, and keeps every
// record for an hour so that compaction cannot drop what a repair needs.
func (c Config) settings(table bool) map[string]string {
	s := map[string]string{
		"cleanup.policy":      "delete",
		"retention.ms":        fmt.Sprint(c.Retention.Milliseconds()),
		"min.insync.replicas": fmt.Sprint(max(1, c.ReplicationFactor-1)),
		"max.message.bytes":   "1048588",
	}
	if table {
		s["cleanup.policy"] = "compact"
		s["retention.ms"] = "-1"
		s["min.compaction.lag.ms"] = fmt.Sprint(time.Hour.Milliseconds())
	}
	return s
}

// Stream finds a stream by its name; it panics on a name that is not a
// constant of this package.
func (t *Topology) Stream(name string) Stream {
	for _, s := range t.Streams {
		if s.Name == name {
			return s
		}
	}
	panic("topology: no stream " + name)
}

// Topic is the topic of a stream.
func (t *Topology) Topic(name string) string { return t.Stream(name).Topic }

// Group finds a group by its name; it panics like Stream.
func (t *Topology) Group(name string) Group {
	for _, g := range t.Groups {
		if g.Name == name {
			return g
		}
	}
	panic("topology: no group " + name)
}
