package display

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/tidemark/tidemark/internal/quarantine"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// Scenarios send updates and print the rows that they leave.
//
//	partial [key=KEY] from=N seq=N active=N [disliked=N] [generation=N] [manifest=N] [at=µs] [committed=µs] [on=N]
//	progress [key=KEY] from=N seq=N [shard/seal=µs ...] [on=N]
//	raw [key=KEY] [on=N], the value in hex below; no value for a null payload
//
// A record stands on the partition of its key, or on another one. There are 4
// shards, 8 count partitions and 8 display partitions.
func TestScenarios(t *testing.T) {
	topo := topology.DefaultConfig()
	datadriven.Walk(t, "testdata/scenarios", func(t *testing.T, path string) {
		rows := map[string]*tidemarkv1.DisplayRow{}
		offset := int64(0)
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			r := scripted(t, topo, d)
			r.Offset, offset = offset, offset+1
			update, no := decode(topo, r)
			var next *tidemarkv1.DisplayRow
			if no == nil {
				next, no = Apply(rows[r.Key], update, r.Offset)
			}
			switch {
			case no != nil:
				return fmt.Sprintf("quarantined %s: %s\n", quarantine.Label(no.Reason), no.Detail)
			case next == nil:
				return "ignored\n"
			}
			rows[r.Key] = next
			return show(next)
		})
	})
}

func scripted(t *testing.T, topo topology.Config, d *datadriven.TestData) topology.Record {
	r := topology.Record{Topic: "tidemark.partial-counts", Key: "like:V9001", Timestamp: time.UnixMicro(1)}
	switch d.Cmd {
	case "partial":
		r.Value = encode(t, partialUpdate(scriptedPartial(t, d)))
	case "progress":
		p := scriptedProgress(t, d)
		r.Key, r.Value = topology.ProgressKey(0, int(p.Partition)), encode(t, progressUpdate(p))
	case "raw":
		if d.Input != "" {
			r.Value = []byte{}
			if _, err := fmt.Sscanf(d.Input, "%x", &r.Value); err != nil {
				d.Fatalf(t, "%v", err)
			}
		}
	default:
		d.Fatalf(t, "unknown command %s", d.Cmd)
	}
	d.MaybeScanArgs(t, "key", &r.Key)
	r.Partition, _ = topology.PartitionOf(r.Key, topo.DisplayPartitions)
	d.MaybeScanArgs(t, "on", &r.Partition)
	return r
}

func scriptedPartial(t *testing.T, d *datadriven.TestData) *tidemarkv1.PartialCount {
	p := &tidemarkv1.PartialCount{Generation: 1, ManifestId: 1, GeneratedAtUs: 1000}
	var from int
	d.ScanArgs(t, "from", &from)
	p.Partition = uint32(from)
	d.ScanArgs(t, "seq", &p.Seq)
	d.ScanArgs(t, "active", &p.Active)
	d.MaybeScanArgs(t, "disliked", &p.Disliked)
	d.MaybeScanArgs(t, "risk", &p.RiskHidden)
	d.MaybeScanArgs(t, "policy", &p.PolicyHidden)
	d.MaybeScanArgs(t, "generation", &p.Generation)
	d.MaybeScanArgs(t, "manifest", &p.ManifestId)
	d.MaybeScanArgs(t, "at", &p.GeneratedAtUs)
	d.MaybeScanArgs(t, "committed", &p.CommittedAtUs)
	return p
}

func scriptedProgress(t *testing.T, d *datadriven.TestData) *tidemarkv1.PartitionProgress {
	p := &tidemarkv1.PartitionProgress{}
	var from int
	d.ScanArgs(t, "from", &from)
	p.Partition = uint32(from)
	d.ScanArgs(t, "seq", &p.Seq)
	for _, arg := range d.CmdArgs {
		w := &tidemarkv1.SourceWatermark{}
		if n, _ := fmt.Sscanf(arg.Key, "%d/%d", &w.Shard, &w.Seal); n != 2 {
			continue
		}
		if _, err := fmt.Sscan(arg.Vals[0], &w.SealedAtUs); err != nil {
			d.Fatalf(t, "%v", err)
		}
		p.Watermarks = append(p.Watermarks, w)
	}
	return p
}

func encode(t testing.TB, u *tidemarkv1.CountUpdate) []byte {
	t.Helper()
	b, err := u.MarshalVT()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func show(row *tidemarkv1.DisplayRow) string {
	var b strings.Builder
	if p := row.GetProgress(); p != nil {
		fmt.Fprintf(&b, "progress of %d, seq %d:", p.Partition, p.Seq)
		for _, w := range p.Watermarks {
			fmt.Fprintf(&b, " shard %d seal %d", w.Shard, w.Seal)
		}
		return b.String() + "\n"
	}
	s := row.GetSnapshot()
	fmt.Fprintf(&b, "%v, seq %d, at %dµs, committed %dµs, generation %d, manifest %d, input %d\n",
		topology.CountsOfSnapshot(s), s.Seq, s.GeneratedAtUs, s.CommittedAtUs, s.Generation, s.ManifestId, s.InputOffset)
	for _, p := range s.Partials {
		fmt.Fprintf(&b, "  from %d: %v, seq %d\n", p.Partition, topology.CountsOfPartial(p), p.Seq)
	}
	return b.String()
}
