package topology

import "time"

// Event is what a relation's transaction puts into the outbox: an absolute
// state of a version, never a delta (requirement B1). JSON, in the outbox
// column payload. The source position is added by the change feed.
type Event struct {
	EventID         string `json:"eventId"`         // UUID
	AggregateKey    string `json:"aggregateKey"`    // the relation's key
	Kind            string `json:"kind"`            // like, favorite, follow
	UserID          string `json:"userId"`          //
	TargetID        string `json:"targetId"`        //
	RelationVersion uint64 `json:"relationVersion"` // from 1
	AbsoluteState   string `json:"absoluteState"`   // such as LIKED
	PreviousState   string `json:"previousState"`   // for audit only
	SourceShard     int    `json:"sourceShard"`
	// StateChangedAt is the transaction's time of a real transition, RFC 3339
	// with microseconds, UTC.
	StateChangedAt time.Time `json:"stateChangedAt"`
	// Hidden is risk or policy, and HiddenReason the code of why, when the count
	// that users see leaves the relation out. Both are absent when it is shown.
	Hidden       string `json:"hidden,omitempty"`
	HiddenReason string `json:"hiddenReason,omitempty"`
}

// Seal is the payload of an outbox row with aggregate type seal: every outbox
// id below the row's own is settled (DESIGN: seals), and ids above it commit
// later.
type Seal struct {
	Seal      uint64    `json:"seal"` // dense, per shard, from 1
	SealedAt  time.Time `json:"sealedAt"`
	BarrierID string    `json:"barrierId,omitempty"`
}

// SealProof is the payload of an outbox row with aggregate type proof: what
// the settled interval of a seal holds, for intake to compare.
type SealProof struct {
	Seal   uint64 `json:"seal"`
	FromID int64  `json:"fromId"` // first outbox id of the interval
	ToID   int64  `json:"toId"`   // the seal row's own id, not counted
	Rows   int64  `json:"rows"`   // relation rows in between
	XorSum uint64 `json:"xorSum"` // xor of xxh64 (seed 0) of each row's event id
}

// Aggregate types of outbox rows.
const (
	AggregateRelation = "relation"
	AggregateSeal     = "seal"
	AggregateProof    = "proof"
)

// Event types of outbox rows, one per aggregate type.
const (
	TypeRelationChanged = "RelationChanged"
	TypeSealed          = "Sealed"
	TypeSealProven      = "SealProven"
)

// Envelope is Debezium's envelope of an outbox row, JSON without schemas, the
// value of stream cdc. The built-in emitter writes the same fields as
// Debezium's PostgreSQL connector.
type Envelope struct {
	Before      *OutboxRow   `json:"before"`
	After       *OutboxRow   `json:"after"`
	Source      Source       `json:"source"`
	Transaction *Transaction `json:"transaction"`
	Op          string       `json:"op"` // c for an insert
	TsMs        int64        `json:"ts_ms"`
	TsUs        int64        `json:"ts_us"`
	TsNs        int64        `json:"ts_ns"`
}

// OutboxRow is a row of table outbox as Debezium writes it: jsonb as a string,
// timestamptz as ISO text, columns in the table's order.
type OutboxRow struct {
	ID            int64  `json:"id"`
	AggregateType string `json:"aggregatetype"`
	AggregateID   string `json:"aggregateid"`
	Type          string `json:"type"`
	Payload       string `json:"payload"`
	SourceShard   int32  `json:"source_shard"`
	CreatedAt     string `json:"created_at"`
}

// Source is Debezium's source block.
type Source struct {
	Version   string `json:"version"`
	Connector string `json:"connector"` // postgresql
	Name      string `json:"name"`
	TsMs      int64  `json:"ts_ms"`    // commit time
	Snapshot  string `json:"snapshot"` // false
	DB        string `json:"db"`
	// Sequence is a JSON text: ["<end LSN of the previous commit>","<lsn>"];
	// the first is null before a fresh slot's first commit.
	Sequence string `json:"sequence"`
	TsUs     int64  `json:"ts_us"`
	TsNs     int64  `json:"ts_ns"`
	Schema   string `json:"schema"`
	Table    string `json:"table"`
	TxID     int64  `json:"txId"`
	LSN      int64  `json:"lsn"`
	Xmin     *int64 `json:"xmin"`
	// Origin and OriginLSN are PostgreSQL's replication origin, null for what
	// was written here, as every outbox row is.
	Origin    *string `json:"origin"`
	OriginLSN *int64  `json:"origin_lsn"`
}

// Transaction is Debezium's transaction block; null unless its transaction
// metadata is switched on.
type Transaction struct {
	ID                  string `json:"id"`
	TotalOrder          int64  `json:"total_order"`
	DataCollectionOrder int64  `json:"data_collection_order"`
}

// Limits of what the change feed may carry.
const (
	MaxEnvelopeBytes = 64 << 10 // a larger record is quarantined
)
