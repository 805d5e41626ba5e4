package gokakit

import "github.com/tidemark/tidemark/topology"

// Record is an input record.
type Record = topology.Record

// Handler takes a partition's records in offset order, on one goroutine per
// partition. What it puts and emits is resolved in that order; an error (or a
// panic) stops the processor, which is rebuilt and sees the record again.
//
// A record may be seen again although some of its puts and emissions have
// reached Kafka: what a record emits must not depend on whether the table
// already includes it.
type Handler func(p *Partition, r Record) error

// Derived is a row that a value implies, such as a bucket's count. Of two
// values for the same group and item the one with the higher Seq stands.
type Derived struct {
	Group string // scanned together; no NUL byte
	Item  string
	Seq   uint64 // from 1
	Value []byte
}

// Schema reads the values of a table. Both functions must be pure.
type Schema interface {
	// Version orders the values of one key: while the log is read, a value of
	// a lower version never replaces one of a higher.
	Version(value []byte) (uint64, error)
	// Derive gives the rows that a value implies; add copies nothing.
	Derive(key string, value []byte, add func(Derived)) error
}

// Indexer is a Schema whose values also stand in an ordered index, such as who
// liked something by time. The index is on disk only: the batch that brings a
// value there takes away the row of the value that it replaces and adds its
// own, so that index and values are always of one moment, after a crash too.
// It is read through Partition.Snapshot.
type Indexer interface {
	Schema
	// Index gives the row of a value; ok is false when it has none. Pure.
	Index(key string, value []byte) (row Indexed, ok bool, err error)
}

// Indexed is a row of an ordered index.
type Indexed struct {
	Group string // scanned together; no NUL byte
	Item  string // unique in its group, which it orders
	Value []byte
}

// Weakness switches a mechanism off, to show that the tests and drills that
// rely on it can fail. Nothing else may set it.
type Weakness uint

// One weakness per mechanism of the package comment.
const (
	WithoutGate           Weakness = 1 << iota // rows enter the store before their ack
	WithoutBarrier                             // commits do not wait for emissions
	WithoutFence                               // foreign changelog records are not noticed
	WithoutVersion                             // the log's last value wins while it is read
	WithoutRepair                              // stale last records are not written again
	WithoutOwnership                           // standbys act as owners do
	WithoutAtomicity                           // the store takes a batch in two steps, the offset first
	WithoutOrder                               // a failed emission fails nothing behind it
	WithoutBudget                              // emissions never wait for room
	WithoutPlacement                           // keys of other partitions are taken
	WithoutLogCheck                            // a store is not compared with its log
	WithoutTombstoneRule                       // a table may be given nil values
	WithoutRebuild                             // a failed processor stays down
	WithoutStaticMember                        // members have no name of their own
	WithoutBoundedStop                         // a stop waits for Kafka as long as it takes
	WithoutRecoveryGate                        // a view answers before it has read its table
	WithoutDuplicateCheck                      // a handler takes what it has taken before; see Has
	WithoutWholeList                           // an owner answers with what it has while it reads its log; see Has
	WithoutCatchUp                             // an owner answers before it shows what was acked when it took over; see Has
	WithoutPopping                             // a list goes on behind what was fetched, told or not; see Has
	WithoutFloor                               // the cache's version floor takes any version; see Has
	WithoutEnded                               // a cache generation that has ended is still written; see Has
	WithoutStamp                               // a Redis whose memory went back is believed; see Has
	WithoutOneWriter                           // readers write the cache; see Has
	WithoutOperation                           // a client retries under new operation ids; see Has
	WithoutLeast                               // readers take what they get, whatever the client has seen; see Has
	WithoutHiding                              // the projection counts hidden relations as shown; see Has
)

// Has is for those whose mechanism stands above, but is theirs.
func (w Weakness) Has(m Weakness) bool { return w.has(m) }

func (w Weakness) has(m Weakness) bool { return w&m != 0 }
