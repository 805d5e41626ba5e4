// Package traffic makes synthetic bucket changes as an at-least-once delivery
// may bring them: some again, out of order within a window, so that late
// versions come after higher ones, and some that no projection can use. It
// knows the facts, which the counts must equal in the end.
package traffic

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// Config of a generator.
type Config struct {
	Seed uint64
	// Relations there are, at least 1; the same few again and again make late
	// versions matter.
	Relations int
	// Targets that share half of the relations; the other half is of one.
	Targets int
	// Duplicates is the share of messages that are sent a second time.
	Duplicates float64
	// Window is how many changes may overtake each other.
	Window int
	// Poison is the share of messages that no projection can use.
	Poison float64
	// Hidden is the share of changes into a counted state that risk or policy
	// hides; a version of a relation that is in it already is a hiding or a
	// showing. 0: none, as a projection from before there were such needs it.
	Hidden float64
}

// Default is 10 % duplicates, one poisoned record in 500, and every fourth
// relation hidden.
func Default(seed uint64) Config {
	return Config{Seed: seed, Relations: 6000, Targets: 200, Duplicates: 0.10, Window: 200, Poison: 0.002, Hidden: 0.25}
}

// Message is a record for stream bucket-changes.
type Message struct {
	Partition int32
	Key       []byte
	Value     []byte // nil for a null payload
	Poison    string // name of the reason it must be set aside for; "" for a sound one
}

// Generator makes messages. It is not safe for concurrent use.
type Generator struct {
	cfg        Config
	manifest   topology.Manifest
	partitions int
	rnd        *rand.Rand
	versions   []uint64 // by number of the relation
	states     []topology.State
	hidings    []topology.Hiding
	window     []Message
	past       []Message
	again      []Message
	seals      []uint64 // newest of each shard
	now        func() time.Time
}

// maxPast is how many messages may be sent a second time.
const maxPast = 5000

// New makes a generator whose changes are placed by a manifest, as intake
// places them.
func New(cfg Config, m topology.Manifest, t topology.Config) *Generator {
	return &Generator{
		cfg: cfg, manifest: m, partitions: t.CountPartitions, rnd: rand.New(rand.NewPCG(cfg.Seed, 0x7472616666696373)),
		versions: make([]uint64, cfg.Relations), states: make([]topology.State, cfg.Relations), hidings: make([]topology.Hiding, cfg.Relations),
		seals: make([]uint64, t.Shards), now: time.Now,
	}
}

// Relation is the relation of a number. The even ones are of the hot target of
// their kind.
func (g *Generator) Relation(i int) topology.Relation {
	r := topology.Relation{Kind: topology.Kinds()[i/2%3], User: fmt.Sprintf("u%d", i), Target: "hot"}
	if i%2 == 1 {
		r.Target = fmt.Sprintf("v%d", i/6%g.cfg.Targets)
	}
	return r
}

// Facts calls yield with each relation that has changed, its version, its state
// and by whom it is hidden.
func (g *Generator) Facts(yield func(topology.Relation, uint64, topology.State, topology.Hiding) error) error {
	for i, version := range g.versions {
		if version == 0 {
			continue
		}
		if err := yield(g.Relation(i), version, g.states[i], g.hidings[i]); err != nil {
			return err
		}
	}
	return nil
}

// Next gives a message of the running stream.
func (g *Generator) Next() Message {
	if m, ok := g.repeated(); ok {
		return m
	}
	if g.rnd.Float64() < g.cfg.Poison {
		return g.poison()
	}
	for len(g.window) < max(1, g.cfg.Window) {
		g.window = append(g.window, g.change(g.rnd.IntN(len(g.versions))))
	}
	return g.draw()
}

// Rest gives what is left of the stream, so that every fact is in it; false
// when nothing is.
func (g *Generator) Rest() (Message, bool) {
	if m, ok := g.repeated(); ok {
		return m, true
	}
	if len(g.window) == 0 {
		return Message{}, false
	}
	return g.draw(), true
}

// Again takes a message back whose sending failed: it may or may not have
// arrived, and is sent once more.
func (g *Generator) Again(m Message) { g.again = append(g.again, m) }

func (g *Generator) repeated() (Message, bool) {
	if n := len(g.again); n > 0 {
		m := g.again[n-1]
		g.again = g.again[:n-1]
		return m, true
	}
	if len(g.past) > 100 && len(g.window) > 0 && g.rnd.Float64() < g.cfg.Duplicates {
		return g.past[g.rnd.IntN(len(g.past))], true
	}
	return Message{}, false
}

func (g *Generator) draw() Message {
	i := g.rnd.IntN(len(g.window))
	m := g.window[i]
	g.window[i] = g.window[len(g.window)-1]
	g.window = g.window[:len(g.window)-1]
	if len(g.past) < maxPast {
		g.past = append(g.past, m)
	} else {
		g.past[g.rnd.IntN(maxPast)] = m
	}
	return m
}

// Touch gives every relation a new version, in order and without duplicates:
// afterwards no older record of the stream is needed.
func (g *Generator) Touch() []Message {
	all := make([]Message, 0, len(g.versions))
	for i := range g.versions {
		all = append(all, g.change(i))
	}
	return all
}

// Seal gives the next watermark of every shard for every partition.
func (g *Generator) Seal() []Message {
	var all []Message
	for shard := range g.seals {
		g.seals[shard]++
		w := g.watermark(shard)
		for p := range g.partitions {
			all = append(all, Message{Partition: int32(p), Key: []byte(topology.WatermarkKey(p, shard)), Value: encode(&tidemarkv1.BucketChange{Body: &tidemarkv1.BucketChange_Watermark{Watermark: w}})})
		}
	}
	return all
}

// Seals are the newest seal of each shard.
func (g *Generator) Seals() []uint64 { return append([]uint64(nil), g.seals...) }

func (g *Generator) watermark(shard int) *tidemarkv1.SourceWatermark {
	return &tidemarkv1.SourceWatermark{Shard: uint32(shard), Seal: g.seals[shard], SealedAtUs: g.now().UnixMicro()}
}

// change moves a relation on and gives the change.
func (g *Generator) change(i int) Message {
	r := g.Relation(i)
	g.versions[i]++
	g.states[i] = g.state(r.Kind)
	g.hidings[i] = g.hiding(g.states[i])
	c := g.describe(r, g.versions[i], g.states[i])
	c.Hidden, c.HiddenReason = tidemarkv1.Hidden(g.hidings[i].By), g.hidings[i].Reason
	return placed(r, c.Placement, encodeRelation(c))
}

func (g *Generator) state(k topology.Kind) topology.State {
	switch n := g.rnd.IntN(6); {
	case n < 2:
		return k.Initial()
	case n == 2 && k == topology.Like:
		return topology.Disliked
	}
	return k.Active()
}

func (g *Generator) hiding(s topology.State) topology.Hiding {
	if g.cfg.Hidden == 0 || s != s.Kind().Active() || g.rnd.Float64() >= g.cfg.Hidden {
		return topology.Hiding{}
	}
	by := []topology.Hidden{topology.HiddenByRisk, topology.HiddenByPolicy}[g.rnd.IntN(2)]
	return topology.Hiding{By: by, Reason: fmt.Sprintf("drill.%d", g.rnd.IntN(3))}
}

func (g *Generator) describe(r topology.Relation, version uint64, s topology.State) *tidemarkv1.RelationChange {
	at := g.now().UnixMicro()
	return &tidemarkv1.RelationChange{
		EventId: fmt.Sprintf("%s-%d", r.User, version), Kind: tidemarkv1.Kind(r.Kind), UserId: r.User, TargetId: r.Target,
		RelationVersion: version, State: tidemarkv1.State(s), StateChangedAtUs: at, CommittedAtUs: at, Placement: g.manifest.Place(r),
	}
}

func placed(r topology.Relation, p *tidemarkv1.Placement, value []byte) Message {
	return Message{Partition: int32(p.Partition), Key: []byte(topology.CountedKey(int(p.Partition), int(p.VirtualBucket), r)), Value: value}
}

func encodeRelation(c *tidemarkv1.RelationChange) []byte {
	return encode(&tidemarkv1.BucketChange{Body: &tidemarkv1.BucketChange_Relation{Relation: c}})
}

func encode(c *tidemarkv1.BucketChange) []byte {
	b, err := c.MarshalVT()
	if err != nil {
		panic(fmt.Sprintf("traffic: encoding a record of plain fields: %v", err)) // cannot be
	}
	return b
}
