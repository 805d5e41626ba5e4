package oracle

import (
	"encoding/json"
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tidemark/tidemark/drills/traffic"
	"github.com/tidemark/tidemark/internal/displaytable"
	"github.com/tidemark/tidemark/processors/likers"
	"github.com/tidemark/tidemark/processors/projection"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// view is what the records that were read add up to. It is not safe for
// concurrent use.
type view struct {
	findings *Findings
	streams  map[string]string // topic to stream
	system   bool              // is watched whole
	groups   map[string]string // topic to the group that reads it
	input    string            // topic of bucket-changes
	records  map[string]int64

	partials, displays *order
	prefixes           map[string]*prefix              // by group
	writers            map[string]map[int32]*writers   // by table, then partition
	tables             map[string]*winners             // by table
	poison             map[origin]string               // injected: reason by place in bucket-changes
	aside              map[string]map[origin]string    // set aside: reason by topic and place
	progress           map[[2]uint32]map[uint32]uint64 // (display, count) partition: seal by shard
}

func newView(c Config) *view {
	topo, findings := c.Topology, c.Findings
	v := &view{
		findings: findings, streams: map[string]string{}, records: map[string]int64{},
		partials: newOrder(), displays: newOrder(),
		prefixes: map[string]*prefix{topology.IntakeGroup: newPrefix(), topology.ProjectionGroup: newPrefix(), topology.DisplayGroup: newPrefix(), topology.LikersGroup: newPrefix()},
		writers:  map[string]map[int32]*writers{topology.ProjectionTable: {}, topology.DisplayTable: {}, topology.LikersTable: {}},
		tables: map[string]*winners{
			topology.ProjectionTable: newWinners(projection.Schema{}.Version),
			topology.DisplayTable:    newWinners(displaytable.Schema{}.Version),
			topology.LikersTable:     newWinners(likers.Schema{}.Version),
		},
		poison: map[origin]string{}, aside: map[string]map[origin]string{}, progress: map[[2]uint32]map[uint32]uint64{},
		system: c.System, groups: map[string]string{}, input: topo.Topic(topology.BucketChanges),
	}
	for _, g := range topo.Groups {
		v.groups[topo.Topic(g.Inputs[0])] = g.Name
	}
	for _, s := range topo.Streams {
		v.streams[s.Topic] = s.Name
	}
	return v
}

func (v *view) take(r *kgo.Record, round int) {
	stream := v.streams[r.Topic]
	v.records[stream]++
	var err error
	switch stream {
	case topology.CDC:
		v.captured(r)
	case topology.BucketChanges:
		v.change(r)
	case topology.ProjectionTable:
		v.written(stream, r, round)
		err = v.projected(r)
	case topology.PartialCounts:
		err = v.partial(r)
	case topology.DisplayTable:
		v.written(stream, r, round)
		err = v.displayed(r)
	case topology.LikerChanges:
		err = v.likerChange(r)
	case topology.LikersTable:
		v.written(stream, r, round)
		err = v.indexed(r)
	case topology.Quarantine:
		err = v.quarantined(r)
	}
	if err != nil {
		v.findings.Add(Unreadable, "%s/%d at offset %d: %v", r.Topic, r.Partition, r.Offset, err)
	}
}

// captureName names one version of a relation in a stream: each must get
// through to each.
func captureName(stream, relation string, version uint64) string {
	return fmt.Sprintf("%s|%s#%d", stream, relation, version)
}

// came takes what intake has made of a change.
func (v *view) came(stream string, c *tidemarkv1.RelationChange) {
	rel := topology.Relation{Kind: topology.Kind(c.Kind), User: c.UserId, Target: c.TargetId}
	v.prefixes[topology.IntakeGroup].effect(captureName(stream, rel.Key(), c.RelationVersion), 1)
}

// captured takes an input record of intake: a change must come out of it, the
// rest of what cdc carries is not followed.
func (v *view) captured(r *kgo.Record) {
	var e struct {
		After struct {
			AggregateType string `json:"aggregatetype"`
			Payload       string `json:"payload"`
		} `json:"after"`
	}
	var change struct {
		Key     string `json:"aggregateKey"`
		Version uint64 `json:"relationVersion"`
	}
	at := origin{r.Partition, r.Offset}
	if json.Unmarshal(r.Value, &e) != nil {
		v.prefixes[topology.IntakeGroup].input(at, "", 0, true)
		return
	}
	if e.After.AggregateType == topology.AggregateRelation && json.Unmarshal([]byte(e.After.Payload), &change) == nil {
		for _, stream := range []string{topology.BucketChanges, topology.LikerChanges} {
			v.prefixes[topology.IntakeGroup].input(at, captureName(stream, change.Key, change.Version), 1, false)
		}
	}
}

// change takes an input record of the projection.
func (v *view) change(r *kgo.Record) {
	at, p := origin{r.Partition, r.Offset}, v.prefixes[topology.ProjectionGroup]
	for _, h := range r.Headers {
		if h.Key == traffic.PoisonHeader {
			v.poison[at] = string(h.Value)
			p.input(at, "", 0, true)
			return
		}
	}
	var c tidemarkv1.BucketChange
	if err := c.UnmarshalVT(r.Value); err != nil {
		v.findings.Add(Unreadable, "%s/%d at offset %d is no bucket change, and is not marked as poison", r.Topic, r.Partition, r.Offset)
		return
	}
	number := c.GetRelation().GetRelationVersion()
	if rel := c.GetRelation(); rel != nil && v.system {
		v.came(topology.BucketChanges, rel)
	}
	if w := c.GetWatermark(); w != nil {
		number = w.Seal
	}
	p.input(at, string(r.Key), number, false)
}

// written notes who wrote a table's record, and what stands last for its key.
func (v *view) written(stream string, r *kgo.Record, round int) {
	w := v.writers[stream][r.Partition]
	if w == nil {
		w = newWriters()
		v.writers[stream][r.Partition] = w
	}
	if w.take(r.ProducerID, round, r.Timestamp) {
		v.findings.Add(Unfenced, "%s/%d: producer %d goes on at offset %d although another has written between its records", r.Topic, r.Partition, r.ProducerID, r.Offset)
	}
	if err := v.tables[stream].take(string(r.Key), r.Value); err != nil {
		v.findings.Add(Unreadable, "%s/%d at offset %d: %v", r.Topic, r.Partition, r.Offset, err)
	}
}

func (v *view) projected(r *kgo.Record) error {
	var row tidemarkv1.ProjectionRow
	if err := row.UnmarshalVT(r.Value); err != nil {
		return err
	}
	switch body := row.Body.(type) {
	case *tidemarkv1.ProjectionRow_Relation:
		if counts := topology.CountsOfBucket(body.Relation.GetBucket()); !counts.Possible() {
			v.findings.Add(Negative, "%s/%d at offset %d: a bucket of %v", r.Topic, r.Partition, r.Offset, counts)
		}
		v.prefixes[topology.ProjectionGroup].effect(string(r.Key), body.Relation.Version)
	case *tidemarkv1.ProjectionRow_Watermark:
		v.prefixes[topology.ProjectionGroup].effect(string(r.Key), body.Watermark.Seal)
	}
	return nil
}

// likerChange takes an input record of the reverse index.
func (v *view) likerChange(r *kgo.Record) error {
	var c tidemarkv1.LikerChange
	if err := c.UnmarshalVT(r.Value); err != nil {
		return err
	}
	number := c.GetWatermark().GetSeal()
	if rel := c.GetRelation(); rel != nil {
		number = rel.RelationVersion
		v.came(topology.LikerChanges, rel)
	}
	v.prefixes[topology.LikersGroup].input(origin{r.Partition, r.Offset}, string(r.Key), number, false)
	return nil
}

// indexed takes a row of the reverse index.
func (v *view) indexed(r *kgo.Record) error {
	number, err := likers.Schema{}.Version(r.Value)
	if err == nil {
		v.prefixes[topology.LikersGroup].effect(string(r.Key), number)
	}
	return err
}

// partialName names what a count partition says of a target.
func partialName(key string, partition uint32) string { return fmt.Sprintf("%s|%d", key, partition) }

func (v *view) partial(r *kgo.Record) error {
	var u tidemarkv1.CountUpdate
	if err := u.UnmarshalVT(r.Value); err != nil {
		return err
	}
	at, group := origin{r.Partition, r.Offset}, v.prefixes[topology.DisplayGroup]
	if p := u.GetProgress(); p != nil {
		group.input(at, string(r.Key), p.Seq, false)
		return nil
	}
	p := u.GetPartial()
	name := partialName(string(r.Key), p.GetPartition())
	group.input(at, name, p.GetSeq(), false)
	counts := topology.CountsOfPartial(p)
	if !counts.Possible() {
		v.findings.Add(Negative, "%s/%d at offset %d: partition %d counts %v", r.Topic, r.Partition, r.Offset, p.GetPartition(), counts)
	}
	if v.partials.take(name, p.GetSeq(), content{counts: counts}) == conflict {
		v.findings.Add(SequenceConflict, "%s/%d at offset %d: partition %d says a second count for seq %d", r.Topic, r.Partition, r.Offset, p.GetPartition(), p.GetSeq())
	}
	return nil
}

func (v *view) displayed(r *kgo.Record) error {
	var row tidemarkv1.DisplayRow
	if err := row.UnmarshalVT(r.Value); err != nil {
		return err
	}
	group := v.prefixes[topology.DisplayGroup]
	if p := row.GetProgress(); p != nil {
		group.effect(string(r.Key), p.Seq)
		v.progressed(r, p)
		return nil
	}
	s := row.GetSnapshot()
	counts := topology.CountsOfSnapshot(s)
	if !counts.Possible() {
		v.findings.Add(Negative, "%s/%d at offset %d: a displayed count of %v", r.Topic, r.Partition, r.Offset, counts)
	}
	for _, p := range s.GetPartials() {
		group.effect(partialName(string(r.Key), p.Partition), p.Seq)
	}
	switch v.displays.take(string(r.Key), s.GetSeq(), content{counts, s.GetInputOffset()}) {
	case conflict:
		v.findings.Add(SequenceConflict, "%s/%d at offset %d: a second count for seq %d", r.Topic, r.Partition, r.Offset, s.GetSeq())
	case neverSeen:
		v.findings.Add(DisplayBack, "%s/%d at offset %d: seq %d was never displayed, and a higher one was", r.Topic, r.Partition, r.Offset, s.GetSeq())
	}
	return nil
}

// leastDisplayed is the newest seal of a shard that is displayed from every
// count partition on every display partition.
func (v *view) leastDisplayed(c topology.Config, shard uint32) uint64 {
	least := ^uint64(0)
	for d := range uint32(c.DisplayPartitions) {
		for p := range uint32(c.CountPartitions) {
			least = min(least, v.progress[[2]uint32{d, p}][shard])
		}
	}
	return least
}

func (v *view) progressed(r *kgo.Record, p *tidemarkv1.PartitionProgress) {
	at := [2]uint32{uint32(r.Partition), p.Partition}
	seals := v.progress[at]
	if seals == nil {
		seals = map[uint32]uint64{}
		v.progress[at] = seals
	}
	for _, w := range p.Watermarks {
		seals[w.Shard] = max(seals[w.Shard], w.Seal)
	}
}

func (v *view) quarantined(r *kgo.Record) error {
	var q tidemarkv1.Quarantined
	if err := q.UnmarshalVT(r.Value); err != nil {
		return err
	}
	at := origin{int32(q.Partition), q.Offset}
	if v.aside[q.Topic] == nil {
		v.aside[q.Topic] = map[origin]string{}
	}
	v.aside[q.Topic][at] = q.Reason.String()
	if p := v.prefixes[v.groups[q.Topic]]; p != nil {
		p.setAside(at)
	}
	return nil
}

// winners follows a table's keys: the version that stands last in the log, and
// the highest.
type winners struct {
	version func([]byte) (uint64, error)
	keys    map[string]*standing
	late    int64 // lower versions behind higher ones
}

type standing struct{ last, highest uint64 }

func newWinners(version func([]byte) (uint64, error)) *winners {
	return &winners{version: version, keys: map[string]*standing{}}
}

func (w *winners) take(key string, value []byte) error {
	n, err := w.version(value)
	if err != nil {
		return err
	}
	s := w.keys[key]
	if s == nil {
		s = new(standing)
		w.keys[key] = s
	}
	if n < s.highest {
		w.late++
	}
	s.last, s.highest = n, max(s.highest, n)
	return nil
}

func (v *view) figures() Watched {
	f := Watched{Records: map[string]int64{}, Poison: int64(len(v.poison))}
	for s, n := range v.records {
		f.Records[s] = n
	}
	for _, aside := range v.aside {
		f.SetAside += int64(len(aside))
	}
	for _, p := range v.prefixes {
		f.Finished += p.checked
	}
	for _, o := range []*order{v.partials, v.displays} {
		f.ZombieOld += o.old
		f.ZombieNew += o.unseen
		f.Forgotten += o.lost
	}
	for table, byPartition := range v.writers {
		for _, w := range byPartition {
			f.Foreign += w.foreign
		}
		f.Late += v.tables[table].late
	}
	return f
}
