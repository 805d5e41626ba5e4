package quarantine

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

var origin = topology.Record{Topic: "tidemark.cdc", Key: "0003|like:u:v", Value: []byte("secret"), Partition: 3, Offset: 9, Timestamp: time.UnixMicro(1e15)}

func TestARefusedRecordIsTheSameEachTime(t *testing.T) {
	no := Refuse(UnknownKind, "kind %d is unknown", 7)
	key, value := no.Record(origin)
	again, second := no.Record(origin)
	if key != "~0003|like:u:v" || again != key || !bytes.Equal(value, second) {
		t.Fatalf("key %q, then %q", key, again)
	}
	var q tidemarkv1.Quarantined
	if err := q.UnmarshalVT(value); err != nil {
		t.Fatal(err)
	}
	if q.Reason != UnknownKind || q.Detail != "kind 7 is unknown" || string(q.Value) != "secret" || q.Offset != 9 || q.FirstSeenUs != 1e15 {
		t.Fatalf("quarantined %v", &q)
	}
}

func TestATallyLogsRarelyAndWithoutContent(t *testing.T) {
	var out bytes.Buffer
	reg := prometheus.NewRegistry()
	tally, err := NewTally("intake", reg, slog.New(slog.NewTextHandler(&out, nil)))
	if err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		tally.Add(origin, UnknownKind)
	}
	if lines := strings.Count(out.String(), "\n"); lines != 10 { // 1, 2, 4, ..., 512
		t.Errorf("%d log lines", lines)
	}
	if strings.Contains(out.String(), "secret") || strings.Contains(out.String(), "like:u:v") {
		t.Errorf("the log tells content: %s", out.String())
	}
	families, err := reg.Gather()
	if err != nil || len(families) != 1 || families[0].GetName() != "tidemark_intake_quarantined_total" {
		t.Fatalf("%v, %v", families, err)
	}
	for _, m := range families[0].Metric {
		if label := m.Label[0].GetValue(); (m.GetCounter().GetValue() == 1000) != (label == "unknown_kind") {
			t.Errorf("counted %v", m)
		}
	}
	if n := len(families[0].Metric); n != len(tidemarkv1.QuarantineReason_name)-1 {
		t.Errorf("%d reasons are counted", n)
	}
	if _, err := NewTally("intake", reg, slog.Default()); err == nil {
		t.Error("registered twice")
	}
}
