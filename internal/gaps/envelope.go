package gaps

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tidemark/tidemark/internal/evidence"
	"github.com/tidemark/tidemark/topology"
)

// Marks of a healing record, beside its op.
const (
	HealSnapshot = "heal"          // source.snapshot
	HealHeader   = "tidemark-heal" // its value is shard:seal of the gap
)

// writer makes healing records of one gap.
type writer struct {
	topic string
	name  string // source.name
	mark  string // header's value
	shard int
	feed  evidence.Feed
	now   func() time.Time
}

// row is the record of an outbox row that was read again.
func (w writer) row(r topology.OutboxRow) (*kgo.Record, error) {
	at, err := time.Parse(time.RFC3339Nano, r.CreatedAt)
	if err != nil {
		return nil, fmt.Errorf("outbox row %d of shard %d: created_at: %w", r.ID, w.shard, err)
	}
	now, lsn := w.now(), fmt.Sprint(w.feed.LSN)
	e := topology.Envelope{
		After: &r,
		Source: topology.Source{
			Version: "tidemark-1", Connector: "postgresql", Name: w.name, Snapshot: HealSnapshot, DB: w.feed.Database,
			TsMs: at.UnixMilli(), TsUs: at.UnixMicro(), TsNs: at.UnixNano(), Schema: "public", Table: "outbox",
			Sequence: fmt.Sprintf("[%q,%q]", lsn, lsn), LSN: int64(w.feed.LSN),
		},
		Op: "r", TsMs: now.UnixMilli(), TsUs: now.UnixMicro(), TsNs: now.UnixNano(),
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(e); err != nil {
		return nil, fmt.Errorf("outbox row %d of shard %d: %w", r.ID, w.shard, err)
	}
	return &kgo.Record{
		Topic: w.topic, Partition: int32(w.shard), Key: []byte(r.AggregateID), Value: bytes.TrimSuffix(b.Bytes(), []byte("\n")),
		Headers: []kgo.RecordHeader{{Key: HealHeader, Value: []byte(w.mark)}},
	}, nil
}

// rebuiltEvents is the name space of the event ids of rebuilt rows.
var rebuiltEvents = uuid.MustParse("6f0dd2fb-6a8f-4a39-9f0c-3b7c3f4b9a51")

func rebuiltEvent(shard int, relation string, version uint64) string {
	return uuid.NewSHA1(rebuiltEvents, fmt.Appendf(nil, "%d|%s|%d", shard, relation, version)).String()
}

// fact is the record of a relation as it is now, in place of a row that is no
// longer in the outbox. The same fact has the same event id each time.
func (w writer) fact(id int64, f evidence.Fact) (*kgo.Record, error) {
	key := f.Relation.Key()
	payload, err := json.Marshal(topology.Event{
		EventID:      rebuiltEvent(w.shard, key, f.Version),
		AggregateKey: key, Kind: f.Relation.Kind.String(), UserID: f.Relation.User, TargetID: f.Relation.Target,
		RelationVersion: f.Version, AbsoluteState: f.State.String(), SourceShard: w.shard, StateChangedAt: f.StateChangedAt.UTC(),
		Hidden: f.Hiding.By.String(), HiddenReason: f.Hiding.Reason,
	})
	if err != nil {
		return nil, fmt.Errorf("rebuilding the event of a relation of shard %d: %w", w.shard, err)
	}
	return w.row(topology.OutboxRow{
		ID: id, AggregateType: topology.AggregateRelation, AggregateID: key, Type: topology.TypeRelationChanged, Payload: string(payload),
		SourceShard: int32(w.shard), CreatedAt: f.StateChangedAt.UTC().Format("2006-01-02T15:04:05.000000Z"),
	})
}
