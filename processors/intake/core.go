package intake

import (
	"fmt"
	"sync"

	"github.com/tidemark/tidemark/internal/quarantine"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// Outcome says what became of a record.
type Outcome string

// The outcomes; also the values of the metric label result.
const (
	Changed     Outcome = "change"      // a relation's transition went on
	Sealed      Outcome = "seal"        // a watermark went to every count and liker partition
	Proven      Outcome = "proof"       // a seal's proof was read
	Quarantined Outcome = "quarantined" // set aside
)

// Emission is a record to write.
type Emission struct {
	Topic string
	Key   string
	Value []byte
}

// Effects are what a record leads to.
type Effects struct {
	Outcome    Outcome
	Reason     quarantine.Reason // of Quarantined
	Slow       bool              // the record was not in the usual shape and cost several times as much
	Seal       uint64            // of Sealed
	SealedAtUs int64             // of Sealed
	Emissions  []Emission

	seen sighting // for the shard's ledger
}

// Core is what intake makes of one record. Its only state is what a deployment
// is born with: where relations are counted and listed. It is safe for concurrent use.
type Core struct {
	manifest                                     topology.Manifest
	reverse                                      topology.ReverseGeneration
	countPartitions                              int
	facts, bucketChanges, likerChanges, setAside string
	pool                                         sync.Pool // of *workspace
}

// workspace is what one Apply needs for itself, kept to save allocations.
type workspace struct {
	message
	bucket         tidemarkv1.BucketChange
	changeBody     tidemarkv1.BucketChange_Relation
	watermarkBody  tidemarkv1.BucketChange_Watermark
	placement      tidemarkv1.Placement
	reverse        tidemarkv1.ReversePlacement
	liker          tidemarkv1.LikerChange
	likerBody      tidemarkv1.LikerChange_Relation
	likerWatermark tidemarkv1.LikerChange_Watermark
}

// NewCore builds a core that places relations by manifest and reverse
// generation, or says what in them does not fit the topology.
func NewCore(t *topology.Topology, manifest topology.Manifest, reverse topology.ReverseGeneration) (*Core, error) {
	if err := manifest.Check(t.Config.CountPartitions); err != nil {
		return nil, fmt.Errorf("intake: %w", err)
	}
	if err := reverse.Check(t.Config.LikerPartitions, t.Config.ReverseShards); err != nil {
		return nil, fmt.Errorf("intake: %w", err)
	}
	return &Core{
		manifest:        manifest,
		reverse:         reverse,
		countPartitions: t.Config.CountPartitions,
		facts:           t.Topic(topology.Facts),
		bucketChanges:   t.Topic(topology.BucketChanges),
		likerChanges:    t.Topic(topology.LikerChanges),
		setAside:        t.Topic(topology.Quarantine),
		pool:            sync.Pool{New: func() any { return new(workspace) }},
	}, nil
}

// Apply gives the effects of a cdc record. It reads the record alone: no
// clock, no look-up, and equal records have equal effects, so that a record
// seen twice is written twice, byte for byte, and counted once (I2, I9).
//
// A record that cannot be used is quarantined and nothing else happens; what
// stands behind it flows on (B5).
func (c *Core) Apply(r topology.Record) Effects {
	w := c.pool.Get().(*workspace)
	defer c.pool.Put(w)
	e := c.apply(r, w)
	e.seen = w.sighting()
	return e
}

func (c *Core) apply(r topology.Record, w *workspace) Effects {
	if no := w.decode(r); no != nil {
		return c.quarantine(r, no, w.slow)
	}
	switch w.aggregate {
	case topology.AggregateRelation:
		return c.changed(r, w)
	case topology.AggregateSeal:
		return c.sealed(w)
	default:
		return Effects{Outcome: Proven, Slow: w.slow}
	}
}

// see is what a record tells its shard's ledger.
func (c *Core) see(r topology.Record) sighting {
	w := c.pool.Get().(*workspace)
	defer c.pool.Put(w)
	_ = w.decode(r) // a record that cannot be used was received all the same
	return w.sighting()
}

// changed sends a transition to facts, in commit order of its shard, to where
// the relation is counted, and to where the reverse index keeps it. The places
// are resolved here, once, and travel with the record (I11, I12, I15).
func (c *Core) changed(r topology.Record, w *workspace) Effects {
	fact := marshal(&w.change)
	c.reverse.PlaceIn(&w.reverse, w.relation)
	w.change.Reverse = &w.reverse
	w.likerBody.Relation = &w.change
	w.liker.Body = &w.likerBody
	liked := Emission{c.likerChanges, topology.LikerKey(w.change.Reverse, r.Key), marshal(&w.liker)}
	w.change.Reverse = nil
	c.manifest.PlaceIn(&w.placement, w.relation)
	w.change.Placement = &w.placement
	w.changeBody.Relation = &w.change
	w.bucket.Body = &w.changeBody
	p, v := int(w.change.Placement.Partition), int(w.change.Placement.VirtualBucket)
	return Effects{Outcome: Changed, Slow: w.slow, Emissions: []Emission{
		{c.facts, topology.OnPartition(r.Partition, r.Key), fact},
		{c.bucketChanges, topology.CountedKeyOf(p, v, r.Key), marshal(&w.bucket)},
		liked,
	}}
}

// sealed tells every count and liker partition that the shard is complete up to
// the seal. Each partition has by then every earlier change of the shard, since
// intake wrote those before.
func (c *Core) sealed(w *workspace) Effects {
	w.watermarkBody.Watermark = &w.mark
	w.bucket.Body = &w.watermarkBody
	value := marshal(&w.bucket)
	e := Effects{Outcome: Sealed, Slow: w.slow, Seal: w.mark.Seal, SealedAtUs: w.mark.SealedAtUs}
	w.likerWatermark.Watermark = &w.mark
	w.liker.Body = &w.likerWatermark
	likerValue := marshal(&w.liker)
	e.Emissions = make([]Emission, 0, c.countPartitions+c.reverse.Partitions())
	for p := range c.countPartitions {
		e.Emissions = append(e.Emissions, Emission{c.bucketChanges, topology.WatermarkKey(p, int(w.mark.Shard)), value})
	}
	for p := range c.reverse.Partitions() {
		e.Emissions = append(e.Emissions, Emission{c.likerChanges, topology.WatermarkKey(p, int(w.mark.Shard)), likerValue})
	}
	return e
}

func (c *Core) quarantine(r topology.Record, no *quarantine.Refusal, slow bool) Effects {
	key, value := no.Record(r)
	return Effects{Outcome: Quarantined, Reason: no.Reason, Slow: slow, Emissions: []Emission{{c.setAside, key, value}}}
}

// marshal encodes a message of this package's own making, which cannot fail.
func marshal(m interface{ MarshalVT() ([]byte, error) }) []byte {
	b, err := m.MarshalVT()
	if err != nil {
		panic(fmt.Sprintf("intake: encoding %T: %v", m, err))
	}
	return b
}
