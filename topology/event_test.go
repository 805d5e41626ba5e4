package topology

import (
	"encoding/json"
	"testing"
	"time"
)

// The JSON names are a contract with Debezium and with other consumers.
func TestEventJSON(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 678901000, time.UTC)
	lsn := int64(7)
	for _, c := range []struct {
		name  string
		value any
		want  string
	}{
		{"event", Event{
			EventID: "e", AggregateKey: "like:u:t", Kind: "like", UserID: "u", TargetID: "t", RelationVersion: 2,
			AbsoluteState: "LIKED", PreviousState: "UNLIKED", SourceShard: 3, StateChangedAt: at,
		}, `{"eventId":"e","aggregateKey":"like:u:t","kind":"like","userId":"u","targetId":"t","relationVersion":2,"absoluteState":"LIKED","previousState":"UNLIKED","sourceShard":3,"stateChangedAt":"2026-01-02T03:04:05.678901Z"}`},
		{"hidden", Event{EventID: "e", Kind: "like", RelationVersion: 2, AbsoluteState: "LIKED", StateChangedAt: at, Hidden: "risk", HiddenReason: "farm"},
			`{"eventId":"e","aggregateKey":"","kind":"like","userId":"","targetId":"","relationVersion":2,"absoluteState":"LIKED","previousState":"","sourceShard":0,"stateChangedAt":"2026-01-02T03:04:05.678901Z","hidden":"risk","hiddenReason":"farm"}`},
		{"seal", Seal{Seal: 4, SealedAt: at}, `{"seal":4,"sealedAt":"2026-01-02T03:04:05.678901Z"}`},
		{"barrier", Seal{Seal: 4, SealedAt: at, BarrierID: "b"}, `{"seal":4,"sealedAt":"2026-01-02T03:04:05.678901Z","barrierId":"b"}`},
		{"proof", SealProof{Seal: 4, FromID: 10, ToID: 20, Rows: 9, XorSum: 1 << 63}, `{"seal":4,"fromId":10,"toId":20,"rows":9,"xorSum":9223372036854775808}`},
		{"envelope", Envelope{
			After:  &OutboxRow{ID: 1, AggregateType: "relation", AggregateID: "like:u:t", Type: "RelationChanged", Payload: "{}", SourceShard: 3, CreatedAt: "2026-01-02T03:04:05.678901Z"},
			Source: Source{Version: "v", Connector: "postgresql", Name: "n", TsMs: 1, Snapshot: "false", DB: "d", Sequence: `["5","7"]`, TsUs: 2, TsNs: 3, Schema: "public", Table: "outbox", TxID: 9, LSN: lsn},
			Op:     "c", TsMs: 4, TsUs: 5, TsNs: 6,
		}, `{"before":null,"after":{"id":1,"aggregatetype":"relation","aggregateid":"like:u:t","type":"RelationChanged","payload":"{}","source_shard":3,"created_at":"2026-01-02T03:04:05.678901Z"},"source":{"version":"v","connector":"postgresql","name":"n","ts_ms":1,"snapshot":"false","db":"d","sequence":"[\"5\",\"7\"]","ts_us":2,"ts_ns":3,"schema":"public","table":"outbox","txId":9,"lsn":7,"xmin":null,"origin":null,"origin_lsn":null},"transaction":null,"op":"c","ts_ms":4,"ts_us":5,"ts_ns":6}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := json.Marshal(c.value)
			if err != nil {
				t.Fatal(err)
			}
			if string(got) != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}
