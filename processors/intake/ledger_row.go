package intake

import (
	"errors"
	"fmt"

	"github.com/tidemark/tidemark/internal/idset"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// row is the ledger as a row of the table. ok is false when its list of absent
// ids would not fit: the older row then stands, and more of the feed is read
// again after a restart.
func (l *ledger) row() (value []byte, ok bool) {
	out := &tidemarkv1.SourceLedger{
		Revision: l.revision + 1, CdcOffset: l.offset, CdcTimeUs: l.timeUs,
		ProvenSeal: l.proven, SettledId: l.settled, Anchored: l.anchored, UnkeptId: l.unkept,
		HighestId: max(l.settled, l.ids.Highest()),
	}
	absent := l.ids.Absent(l.settled+1, out.HighestId)
	if len(absent) > maxAbsentRuns {
		return nil, false
	}
	out.Absent = encodeRanges(absent)
	for _, r := range l.intervals {
		out.Intervals = append(out.Intervals, &tidemarkv1.ReceivedInterval{
			Seal: r.seal, ToId: r.to, Rows: r.rows, XorSum: r.xor, HighestId: r.highest, Blind: r.blind, Mixed: r.mixed,
		})
	}
	for _, h := range l.holes {
		out.Holes = append(out.Holes, &tidemarkv1.OffsetHole{From: h.from, To: h.to})
	}
	l.revision++
	return marshal(&tidemarkv1.IntakeRow{Body: &tidemarkv1.IntakeRow_Ledger{Ledger: out}}), true
}

// readLedger reads a row of the table.
func readLedger(shard int, value []byte) (*ledger, error) {
	row, err := readRow(value)
	if err != nil {
		return nil, err
	}
	in := row.GetLedger()
	if in == nil || len(in.Intervals) == 0 {
		return nil, errors.New("reading the ledger of a shard: the row is none")
	}
	var absent idset.Ranges
	if err := absent.UnmarshalBinary(in.Absent); err != nil {
		return nil, fmt.Errorf("reading the ledger of a shard: %w", err)
	}
	l := &ledger{
		shard: shard, revision: in.Revision, offset: in.CdcOffset, timeUs: in.CdcTimeUs,
		proven: in.ProvenSeal, settled: in.SettledId, anchored: in.Anchored, unkept: in.UnkeptId,
		ids: idset.NewSet(maxIDBytes),
	}
	if !l.ids.Fill(in.SettledId+1, in.HighestId, absent) {
		l.unkept = max(l.unkept, in.HighestId)
	}
	for _, r := range in.Intervals {
		l.intervals = append(l.intervals, received{
			seal: r.Seal, to: r.ToId, rows: r.Rows, xor: r.XorSum, highest: r.HighestId, blind: r.Blind, mixed: r.Mixed,
		})
	}
	for _, h := range in.Holes {
		l.holes = append(l.holes, hole{h.From, h.To})
	}
	return l, nil
}

func readRow(value []byte) (*tidemarkv1.IntakeRow, error) {
	row := new(tidemarkv1.IntakeRow)
	if err := row.UnmarshalVT(value); err != nil {
		return nil, fmt.Errorf("reading a row of the intake table: %w", err)
	}
	return row, nil
}
