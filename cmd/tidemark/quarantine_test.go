package main

import (
	"fmt"
	"slices"
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
	mustJSON(t, must(t, exitOK, s.at(append([]string{"quarantine", "list", "--output", "json", "--limit", "10000000"}, args...)...)...).out, &list)
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
	send := func(partition int32, key, value string) (offset int64) {
		t.Helper()
		r := &kgo.Record{Topic: cdc, Partition: partition, Key: []byte(key)}
		if value != "" {
			r.Value = []byte(value)
		}
		if err := client.ProduceSync(t.Context(), r).FirstErr(); err != nil {
			t.Fatal(err)
		}
		return r.Offset
	}
	// find waits for the item of a record of cdc, or of one behind it.
	find := func(behind bool, partition int, offset int64, args ...string) (found itemJSON) {
		t.Helper()
		eventually(t, func() error {
			for _, i := range s.listed(t, append(args, "--topic", cdc)...) {
				if i.Partition == partition && (i.Offset == offset || behind && i.Offset > offset) {
					found = i
					return nil
				}
			}
			return fmt.Errorf("nothing of %s/%d/%d is listed with %v", cdc, partition, offset, args)
		})
		return found
	}
	bad := find(false, 1, send(1, "like:u-secret:V", "not json"), "--reason", "malformed_envelope")
	null := find(false, 0, send(0, "0009|odd", ""), "--reason", "null_payload")
	long := find(false, 0, send(0, "like:u:V", strings.Repeat("x", topology.MaxEnvelopeBytes+1)), "--reason", "oversized")
	if bad.State != "open" || bad.Bytes != 8 || bad.Key != nil || bad.Value != nil || !null.Null {
		t.Errorf("listed %+v, %+v", bad, null)
	}

	show := must(t, exitOK, s.at("quarantine", "show", fmt.Sprint(bad.ID))...).out
	if strings.Contains(show, "not json") || strings.Contains(show, "u-secret") || !strings.Contains(show, "malformed_envelope") {
		t.Error(show)
	}
	if show = must(t, exitOK, s.at("quarantine", "show", fmt.Sprint(bad.ID), "--payload", "--as", "eve", "--reason", "what is it")...).out; !strings.Contains(show, "not json") || !strings.Contains(show, "u-secret") {
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
	again := find(true, 1, bad.Offset+1, "--reason", "malformed_envelope") // set aside anew
	if again.ID <= bad.ID {
		t.Errorf("replayed %+v came back as %+v", bad, again)
	}
	if i := find(false, 1, bad.Offset, "--state", "replayed"); i.ID != bad.ID || i.DecidedBy != "ann" || i.Why != "a new decoder" {
		t.Errorf("replayed: %+v", i)
	}
	if out := must(t, exitOK, s.at("quarantine", "discard", "--all", "--only", "null_payload", "--as", "bob", "--reason", "noise")...).out; !strings.Contains(out, "would discard") {
		t.Error(out)
	}
	find(false, 0, null.Offset, "--state", "open")
	must(t, exitOK, s.at("quarantine", "discard", "--all", "--only", "null_payload", "--as", "bob", "--reason", "noise", "--yes")...)
	find(false, 0, null.Offset, "--state", "discarded")
	must(t, exitOK, s.at("quarantine", "discard", fmt.Sprint(again.ID), fmt.Sprint(long.ID), "--reason", "test")...)
	find(false, 1, again.Offset, "--state", "discarded")

	db, err := control.Open(t.Context(), cfg.Control)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for _, want := range []struct {
		who, action, reason string
		item                itemJSON
	}{
		{"eve", "quarantine.shown", "what is it", bad}, {"ann", "quarantine.replayed", "a new decoder", bad}, {"bob", "quarantine.discarded", "noise", null},
	} {
		entries, err := db.Entries(t.Context(), fmt.Sprintf("quarantine:%s/%d/%d", cdc, want.item.Partition, want.item.Offset), 10)
		entries = slices.DeleteFunc(entries, func(e control.Entry) bool { return e.Action != want.action })
		if err != nil || len(entries) != 1 || entries[0].Who != want.who || entries[0].Reason != want.reason || len(entries[0].Detail) != 0 {
			t.Errorf("audit %+v, %v; want %+v", entries, err, want)
		}
	}
	wantVerdict(t, exitOK, "--data-dir", s.dir)
}
