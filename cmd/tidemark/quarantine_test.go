package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tidemark/tidemark/internal/control"
	"github.com/tidemark/tidemark/internal/kafkaadmin"
	"github.com/tidemark/tidemark/topology"
)

// listed lists the quarantine.
func (s *system) listed(t *testing.T, args ...string) (list []itemJSON) {
	t.Helper()
	mustJSON(t, must(t, exitOK, s.at(append([]string{"quarantine", "list", "--output", "json"}, args...)...)...).out, &list)
	return list
}

// Records that were set aside are listed, shown, replayed through intake and
// discarded, and the audit tells who did it and why.
func TestQuarantineCommands(t *testing.T) {
	s := theSystem(t)
	cfg := s.config(t)
	topo, err := cfg.Topology()
	if err != nil {
		t.Fatal(err)
	}
	client, err := kafkaadmin.Client(cfg.Kafka.Brokers, nil, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	cdc := topo.Topic(topology.CDC)
	before := len(s.listed(t, "--state", "all"))
	for _, r := range []*kgo.Record{
		{Topic: cdc, Partition: 1, Key: []byte("like:u-secret:V"), Value: []byte("not json")},
		{Topic: cdc, Partition: 0, Key: []byte("0009|odd"), Value: nil},
		{Topic: cdc, Partition: 0, Key: []byte("like:u:V"), Value: []byte(strings.Repeat("x", topology.MaxEnvelopeBytes+1))},
	} {
		if err := client.ProduceSync(t.Context(), r).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	await := func(n int, args ...string) (list []itemJSON) {
		t.Helper()
		eventually(t, func() error {
			if list = s.listed(t, args...); len(list) != n {
				return fmt.Errorf("%d records are listed with %v, want %d", len(list), args, n)
			}
			return nil
		})
		return list
	}
	await(before+3, "--state", "all")
	bad := await(1, "--reason", "malformed_envelope", "--topic", cdc)[0]
	if bad.State != "open" || bad.Partition != 1 || bad.Bytes != 8 || bad.Key != nil || bad.Value != nil {
		t.Errorf("listed %+v", bad)
	}
	null := await(1, "--reason", "null_payload")[0]
	long := await(1, "--reason", "oversized")[0]

	show := must(t, exitOK, s.at("quarantine", "show", fmt.Sprint(bad.ID))...).out
	if strings.Contains(show, "not json") || strings.Contains(show, "u-secret") || !strings.Contains(show, "malformed_envelope") {
		t.Error(show)
	}
	if show = must(t, exitOK, s.at("quarantine", "show", fmt.Sprint(bad.ID), "--payload")...).out; !strings.Contains(show, "not json") || !strings.Contains(show, "u-secret") {
		t.Error(show)
	}

	must(t, exitUsage, s.at("quarantine", "replay", fmt.Sprint(bad.ID))...)
	must(t, exitUsage, s.at("quarantine", "replay", "--reason", "why")...)
	must(t, exitUsage, s.at("quarantine", "discard", "--reason", "why", "--all", "1")...)
	must(t, exitUsage, s.at("quarantine", "list", "--reason", "whim")...)
	must(t, exitUsage, s.at("quarantine", "show", "x")...)
	must(t, exitError, s.at("quarantine", "show", "123456")...)
	must(t, exitError, s.at("quarantine", "replay", fmt.Sprint(long.ID), "--reason", "why")...)

	must(t, exitOK, s.at("quarantine", "replay", fmt.Sprint(bad.ID), "--as", "ann", "--reason", "a new decoder")...)
	again := await(1, "--reason", "malformed_envelope")[0] // set aside anew
	if again.ID <= bad.ID || again.Partition != 1 || again.Offset <= bad.Offset {
		t.Errorf("replayed %+v came back as %+v", bad, again)
	}
	if list := s.listed(t, "--state", "replayed"); len(list) != 1 || list[0].ID != bad.ID || list[0].DecidedBy != "ann" || list[0].Why != "a new decoder" {
		t.Errorf("replayed: %+v", list)
	}
	if out := must(t, exitOK, s.at("quarantine", "discard", "--all", "--only", "null_payload", "--as", "bob", "--reason", "noise")...).out; !strings.Contains(out, "would discard") {
		t.Error(out)
	}
	await(1, "--reason", "null_payload")
	must(t, exitOK, s.at("quarantine", "discard", "--all", "--only", "null_payload", "--as", "bob", "--reason", "noise", "--yes")...)
	await(0, "--reason", "null_payload")
	must(t, exitOK, s.at("quarantine", "discard", fmt.Sprint(again.ID), fmt.Sprint(long.ID), "--reason", "test")...)
	await(before, "--state", "open")

	db, err := control.Open(t.Context(), cfg.Control)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for _, want := range []struct {
		who, action, reason string
		item                itemJSON
	}{
		{"ann", "quarantine.replayed", "a new decoder", bad}, {"bob", "quarantine.discarded", "noise", null},
	} {
		entries, err := db.Entries(t.Context(), fmt.Sprintf("quarantine:%s/%d/%d", cdc, want.item.Partition, want.item.Offset), 10)
		if err != nil || len(entries) != 1 || entries[0].Who != want.who || entries[0].Action != want.action || entries[0].Reason != want.reason {
			t.Errorf("audit %+v, %v; want %+v", entries, err, want)
		}
	}
	wantVerdict(t, exitOK, "--data-dir", s.dir)
}
