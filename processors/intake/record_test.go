package intake

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/tidemark/tidemark/topology"
)

// testCore is a core of 4 shards, 8 count partitions and manifest 1.
func testCore(t testing.TB) *Core {
	t.Helper()
	topo, err := topology.New(topology.DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	c, err := NewCore(topo, topology.NewManifest(1, 1, 1, topology.DefaultBucketSpace(), topo.Config.CountPartitions),
		topology.NewReverseGeneration(1, topo.Config.LikerPartitions, topo.Config.ReverseShards))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

var sampleTime = time.Date(2026, 8, 19, 10, 20, 30, 123456000, time.UTC)

// sampleEvent is version 12 of user u7's like of V9001.
func sampleEvent() topology.Event {
	r := topology.Relation{Kind: topology.Like, User: "u7", Target: "V9001"}
	return topology.Event{
		EventID: "0198c0de-1111-7222-8333-444455556666", AggregateKey: r.Key(), Kind: "like", UserID: r.User, TargetID: r.Target,
		RelationVersion: 12, AbsoluteState: "LIKED", PreviousState: "UNLIKED", SourceShard: 2, StateChangedAt: sampleTime,
	}
}

// jsonb writes v as PostgreSQL prints a jsonb: a space behind colons and commas.
func jsonb(t testing.TB, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	out, inString := make([]byte, 0, len(b)+32), false
	for i := 0; i < len(b); i++ {
		out = append(out, b[i])
		switch c := b[i]; {
		case c == '\\':
			i++
			out = append(out, b[i])
		case c == '"':
			inString = !inString
		case !inString && (c == ':' || c == ','):
			out = append(out, ' ')
		}
	}
	return string(out)
}

// envelopeOf is an outbox row of shard as the change feed brings it.
func envelopeOf(shard int, aggregate, id, eventType, payload string) topology.Envelope {
	us := sampleTime.UnixMicro()
	return topology.Envelope{
		After: &topology.OutboxRow{ID: 77, AggregateType: aggregate, AggregateID: id, Type: eventType, Payload: payload, SourceShard: int32(shard), CreatedAt: "2026-08-19T10:20:30.123456Z"},
		Source: topology.Source{Version: "3.6.1.Final", Connector: "postgresql", Name: "tidemark", Snapshot: "false", DB: fmt.Sprintf("relations_%d", shard),
			Sequence: `["24023128","24023184"]`, TsMs: us / 1000, TsUs: us, TsNs: us * 1000, Schema: "public", Table: "outbox", TxID: 7001, LSN: 24023184},
		Op: "c", TsMs: us/1000 + 5, TsUs: us + 5000, TsNs: us*1000 + 5000000,
	}
}

func recordOf(t testing.TB, e topology.Envelope) topology.Record {
	t.Helper()
	b, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	return topology.Record{Topic: "tidemark.cdc", Key: e.After.AggregateID, Value: b, Partition: int(e.After.SourceShard), Offset: 1000, Timestamp: sampleTime.Add(time.Second)}
}

func sampleRecord(t testing.TB) topology.Record {
	t.Helper()
	e := sampleEvent()
	return recordOf(t, envelopeOf(e.SourceShard, topology.AggregateRelation, e.AggregateKey, topology.TypeRelationChanged, jsonb(t, e)))
}
