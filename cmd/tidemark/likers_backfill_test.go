package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/tidemark/tidemark/internal/config"
	"github.com/tidemark/tidemark/internal/kafkaadmin"
	"github.com/tidemark/tidemark/internal/verify"
	"github.com/tidemark/tidemark/topology"
)

// A deployment whose reverse index begins later than its relations: verify
// names those that are missing, a backfill brings them in while commands go on,
// and everything is equal.
func TestBackfillOfRelationsFromBeforeTheIndex(t *testing.T) {
	if testing.Short() {
		t.Skip("runs a system of its own")
	}
	o := newOutside(t)
	o.startPostgres()
	o.startKafka()
	dev := run(t, "dev", "--data-dir", o.home, "--roles", "none", "--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0",
		"--postgres-url", o.shardURLs[0], "--postgres-url", o.shardURLs[1], "--control-url", o.controlURL,
		"--kafka-brokers", o.broker, "--redis-url", o.unreachable, "--partitions", "2")
	dev.await(t, readyLine)
	dev.stop(t)
	file := filepath.Join(o.home, config.FileName)
	old := o.runRole("old", "commands", "queries", "cdc", "intake", "projection", "display")
	api := strings.Fields(old.await(t, "API"))[1]
	old.await(t, readyLine)
	must(t, exitOK, "load", "--config", file, "--url", api, "--commands", "2000", "--rate", "0", "--users", "100", "--targets", "20")
	o.forget(topology.LikerChanges)
	o.runRole("index", "likers").await(t, readyLine)

	report := wantVerdict(t, exitDifferent, "--config", file)
	missing := report.Counts[verify.LikerBelow]
	if missing == 0 || len(report.Counts) != 1 {
		t.Fatalf("before the backfill: %v", report.Counts)
	}
	if r := must(t, exitOK, "likers", "backfill", "--config", file); !strings.Contains(r.out, "kind like") || !strings.Contains(r.out, "nothing was written") {
		t.Error(r)
	}
	if again := wantVerdict(t, exitDifferent, "--config", file); again.Counts[verify.LikerBelow] != missing {
		t.Errorf("counting what would be written has written: %v", again.Counts)
	}
	traffic := run(t, "load", "--config", file, "--url", api, "--commands", "0", "--rate", "100", "--users", "100", "--targets", "20", "--seed", "2")
	for range 2 { // a second time alters nothing
		must(t, exitOK, "likers", "backfill", "--config", file, "--execute", "--rate", "0", "--as", "test")
	}
	if code := traffic.stop(t); code > exitError {
		t.Errorf("the load exits %d: %s", code, traffic.errOut.String())
	}
	if report := wantVerdict(t, exitOK, "--config", file); report.Rows.Likers == 0 || report.Relations == 0 {
		t.Errorf("%+v", report)
	}
}

// forget deletes all records of a stream.
func (o *outside) forget(stream string) {
	o.t.Helper()
	cfg, err := config.Load(filepath.Join(o.home, config.FileName))
	if err != nil {
		o.t.Fatal(err)
	}
	topo, err := cfg.Topology()
	if err != nil {
		o.t.Fatal(err)
	}
	client, err := kafkaadmin.Client(cfg.Kafka.Brokers, nil)
	if err != nil {
		o.t.Fatal(err)
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	ends, err := admin.ListEndOffsets(o.t.Context(), topo.Topic(stream))
	if err == nil {
		_, err = admin.DeleteRecords(o.t.Context(), ends.Offsets())
	}
	if err != nil {
		o.t.Fatal(err)
	}
}
