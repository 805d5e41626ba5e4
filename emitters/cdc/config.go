package cdc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark/tidemark/internal/kafkaaccess"
)

// Config of one shard's emitter.
type Config struct {
	// Shard is the number of the relation shard, from 0; also the label of the
	// metrics.
	Shard int
	// URL of the shard's database. Its role needs REPLICATION.
	URL string
	// Slot is the name of the logical replication slot: lower-case letters,
	// digits, underscores, up to 63.
	Slot string
	// Publication is the name of the publication with the outbox, same form.
	Publication string
	// Schema and Table name the outbox. Defaults: public, outbox.
	Schema, Table string

	// Brokers of Kafka, host:port; at least one.
	Brokers []string
	// Access to the brokers; nil: plain.
	Access *kafkaaccess.Access
	// Topic and Partition of the records: one partition per shard.
	Topic     string
	Partition int
	// Linger is how long a record waits for others to share its request.
	// Default 2 ms; negative: not at all, which under load costs many more
	// requests.
	Linger time.Duration
	// Compress batches with lz4: less network and disk, more of the core.
	Compress bool

	// ServerName is the envelope's source.name (Debezium's topic.prefix).
	ServerName string
	// Version is the envelope's source.version. Default: Version.
	Version string

	// AllowNewSlot permits creating the slot although the partition has
	// records. What was committed between the old slot's end and the new one's
	// start is then not in the stream.
	AllowNewSlot bool
	// StandbyInterval is the time between two tries for a slot that another
	// process has. Default 1 s.
	StandbyInterval time.Duration
	// SlotTimeout is how long creating a slot may wait for older transactions
	// before it is given up and tried again. Default 60 s.
	SlotTimeout time.Duration

	// MaxInFlightRecords and MaxInFlightBytes bound what is sent to Kafka and
	// not yet acked; beyond them the reader waits. Defaults 10,000 and 16 MiB.
	MaxInFlightRecords int
	MaxInFlightBytes   int

	// StatusInterval is the longest time between two status updates to
	// PostgreSQL; a quarter of wal_sender_timeout bounds it too. Default 1 s.
	StatusInterval time.Duration
	// Silence is how long PostgreSQL may send nothing, though asked, before
	// the connection counts as dead. PostgreSQL is silent while it decodes a
	// large transaction of other tables: do not set it short. Default 5 min.
	Silence time.Duration
	// MonitorInterval is the time between two looks at the slot's lag, with a
	// connection of its own. Default 5 s.
	MonitorInterval time.Duration
	// Backlog tells, at each look, what the outbox has beyond a position; nil:
	// what a restart leaves behind is not known until the position has moved.
	Backlog func(ctx context.Context, position pglogrepl.LSN) (Backlog, error)
	// MaxBackoff bounds the wait between two tries. Default 5 s.
	MaxBackoff time.Duration
	// StopGrace is how long a stop waits for records on their way to be acked.
	// Negative: no wait and no farewell to PostgreSQL, as if killed. Default 3 s.
	StopGrace time.Duration

	// Logger; nil: slog.Default.
	Logger *slog.Logger
	// Registerer of the metrics; nil: none.
	Registerer prometheus.Registerer
}

// Backlog is what the outbox has beyond a position, and how large it is.
type Backlog struct {
	Rows   bool          // there are rows that may not be in Kafka
	Oldest time.Duration // age of the oldest of them
	Bytes  int64         // of the outbox
}

// Version is the default of the envelope's source.version.
const Version = "tidemark-1"

// The outbox unless a Config says otherwise.
const defaultSchema, defaultTable = "public", "outbox"

// maxMessageBytes is the largest replication message that is read: a row of
// the outbox and its overhead.
const maxMessageBytes = 16 << 20

var nameForm = regexp.MustCompile(`^[a-z0-9_]{1,63}$`)

// withDefaults returns a copy with the defaults filled in.
func (c Config) withDefaults() Config {
	text := func(s *string, d string) {
		if *s == "" {
			*s = d
		}
	}
	span := func(v *time.Duration, d time.Duration) {
		if *v == 0 {
			*v = d
		}
	}
	number := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	text(&c.Schema, defaultSchema)
	text(&c.Table, defaultTable)
	text(&c.Version, Version)
	span(&c.StandbyInterval, time.Second)
	span(&c.Linger, 2*time.Millisecond)
	span(&c.SlotTimeout, time.Minute)
	number(&c.MaxInFlightRecords, 10_000)
	number(&c.MaxInFlightBytes, 16<<20)
	span(&c.StatusInterval, time.Second)
	span(&c.Silence, 5*time.Minute)
	span(&c.MonitorInterval, 5*time.Second)
	span(&c.MaxBackoff, 5*time.Second)
	span(&c.StopGrace, 3*time.Second)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	c.Logger = c.Logger.With("component", "cdc", "shard", c.Shard)
	return c
}

// check names every field that cannot be used.
func (c Config) check() error {
	var errs []error
	wrong := func(bad bool, format string, args ...any) {
		if bad {
			errs = append(errs, fmt.Errorf("cdc: "+format, args...))
		}
	}
	wrong(c.Shard < 0, "Shard is %d, below 0", c.Shard)
	wrong(c.URL == "", "URL is empty")
	wrong(!nameForm.MatchString(c.Slot), "Slot %q is not 1 to 63 lower-case letters, digits or underscores", c.Slot)
	wrong(!nameForm.MatchString(c.Publication), "Publication %q is not 1 to 63 lower-case letters, digits or underscores", c.Publication)
	wrong(len(c.Brokers) == 0, "Brokers is empty")
	wrong(c.Topic == "", "Topic is empty")
	wrong(c.Partition < 0, "Partition is %d, below 0", c.Partition)
	wrong(c.ServerName == "", "ServerName is empty")
	wrong(c.MaxInFlightRecords < 1, "MaxInFlightRecords is %d, below 1", c.MaxInFlightRecords)
	wrong(c.MaxInFlightBytes < 1, "MaxInFlightBytes is %d, below 1", c.MaxInFlightBytes)
	for name, v := range map[string]time.Duration{
		"StandbyInterval": c.StandbyInterval, "SlotTimeout": c.SlotTimeout, "StatusInterval": c.StatusInterval, "Silence": c.Silence,
		"MonitorInterval": c.MonitorInterval, "MaxBackoff": c.MaxBackoff,
	} {
		wrong(v < 0, "%s is %v, below 0", name, v)
	}
	return errors.Join(errs...)
}
