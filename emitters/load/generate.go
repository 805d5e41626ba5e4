package load

import (
	"io"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/tidemark/tidemark/topology"
)

// Sizes of what a generator remembers of the past.
const (
	recentCommands  = 1024    // that a resend may repeat
	activeRelations = 1 << 16 // that an off or a switch may pick
)

// generator makes workload LIKES-1. What it makes depends on the configuration
// and the seed alone, never on answers or time.
type generator struct {
	mix     Mix
	left    int64 // commands; negative: no end
	rate    float64
	number  int64
	rng     *rand.Rand
	users   names
	targets names
	recent  []*command
	active  actives

	made  Made
	hotID string
}

// Made counts the generated commands.
type Made struct {
	Total  int64 `json:"total"`
	On     int64 `json:"on"`
	Off    int64 `json:"off"`
	Switch int64 `json:"switch"`
	Stale  int64 `json:"staleBase"`
	Resend int64 `json:"resend"`
	// Hottest are the commands for the most written target.
	Hottest int64 `json:"hottest"`
}

// names draws ids: a prefix and a number, the numbers of frequent ones
// scattered.
type names struct {
	prefix string
	ranks  sampler
	places scatter
}

func newNames(prefix string, s Skew, n int, turn uint64) names {
	return names{prefix, newSampler(s, n), newScatter(n, turn)}
}

func (n names) at(rank int) string { return n.prefix + strconv.Itoa(n.places.of(rank)) }

func (n names) draw(rng *rand.Rand) string { return n.at(n.ranks.rank(rng)) }

// userNames are the users of writes, reads and follows: one population.
func userNames(c Config) names { return newNames("u", c.UserSkew, c.Users, c.Seed) }

// targetNames are the videos. Reads and writes favour different ones: the two
// are nearly uncorrelated in the published workload.
func targetNames(c Config, s Skew, turn uint64) names {
	return newNames("V", s, c.Targets, c.Seed*2654435761+turn)
}

func newGenerator(c Config) *generator {
	g := &generator{
		mix: c.Mix, left: c.Commands, rate: c.Rate, rng: rand.New(rand.NewPCG(c.Seed, 1)),
		users: userNames(c), targets: targetNames(c, c.TargetSkew, 0),
	}
	if c.Commands == 0 {
		g.left = -1
	}
	g.hotID = g.targets.at(0)
	g.active.index = map[topology.Relation]int{}
	return g
}

func (g *generator) next() (*command, time.Duration, error) {
	if g.left == 0 {
		return nil, 0, io.EOF
	}
	if g.left > 0 {
		g.left--
	}
	g.number++
	c := g.make()
	c.number = g.number
	g.note(c)
	due := time.Duration(-1)
	if g.rate > 0 {
		due = time.Duration(float64(g.number-1) / g.rate * float64(time.Second))
	}
	return c, due, nil
}

func (g *generator) make() *command {
	u := g.rng.Float64()
	if u -= g.mix.Resend; u < 0 && len(g.recent) > 0 {
		of := g.recent[g.rng.IntN(len(g.recent))]
		g.made.Resend++
		return &command{relation: of.relation, desired: of.desired, resend: of}
	}
	if u -= g.mix.StaleBase; u < 0 && len(g.active.list) > 0 {
		a := g.active.pick(g.rng)
		g.made.Stale++
		return &command{relation: a.relation, desired: a.relation.Kind.Initial(), stale: true}
	}
	if u -= g.mix.Switch; u < 0 && len(g.active.list) > 0 {
		if c := g.change(g.active.pick(g.rng)); c != nil {
			g.made.Switch++
			return c
		}
	}
	if g.rng.Float64() >= g.mix.On && len(g.active.list) > 0 {
		a := g.active.pick(g.rng)
		g.active.drop(a.relation)
		g.made.Off++
		return &command{relation: a.relation, desired: a.relation.Kind.Initial()}
	}
	return g.on()
}

// on puts a drawn relation on.
func (g *generator) on() *command {
	m := g.mix
	r := topology.Relation{User: g.users.draw(g.rng)}
	switch k := g.rng.Float64() * (m.Like + m.Favorite + m.Follow); {
	case k < m.Like:
		r.Kind = topology.Like
	case k < m.Like+m.Favorite:
		r.Kind = topology.Favorite
	default:
		r.Kind = topology.Follow
	}
	r.Target = g.target(r)
	g.made.On++
	return g.put(r, r.Kind.Active())
}

// target draws what the relation is to. Users are followed with the targets'
// skew, over the users, and nobody follows himself.
func (g *generator) target(r topology.Relation) string {
	if r.Kind != topology.Follow {
		if g.rng.Float64() < g.mix.Hot {
			return g.hotID
		}
		return g.targets.draw(g.rng)
	}
	rank := g.targets.ranks.rank(g.rng) * g.users.ranks.n / g.targets.ranks.n
	if t := g.users.at(rank); t != r.User {
		return t
	}
	return g.users.at((rank + 1) % g.users.ranks.n)
}

// change flips a like or puts another kind on for the same user and target;
// nil when a has no other kind.
func (g *generator) change(a active) *command {
	r := a.relation
	switch {
	case r.Kind == topology.Follow:
		return nil
	case r.Kind == topology.Favorite:
		r.Kind = topology.Like
		return g.put(r, topology.Liked)
	case g.rng.Float64() < 0.5:
		r.Kind = topology.Favorite
		return g.put(r, topology.Favorited)
	case a.state == topology.Liked:
		return g.put(r, topology.Disliked)
	}
	return g.put(r, topology.Liked)
}

func (g *generator) put(r topology.Relation, s topology.State) *command {
	g.active.put(active{r, s}, g.rng)
	return &command{relation: r, desired: s}
}

// note remembers the command for the report and for resends.
func (g *generator) note(c *command) {
	g.made.Total++
	if c.relation.Target == g.hotID {
		g.made.Hottest++
	}
	switch {
	case c.resend != nil:
	case len(g.recent) < recentCommands:
		g.recent = append(g.recent, c)
	default:
		g.recent[g.number%recentCommands] = c
	}
}

// active is a relation that is on, as far as the generator has made it so.
type active struct {
	relation topology.Relation
	state    topology.State
}

// actives is a set with random picks, bounded: when full, a new one takes the
// place of a random one.
type actives struct {
	list  []active
	index map[topology.Relation]int
}

func (a *actives) pick(rng *rand.Rand) active { return a.list[rng.IntN(len(a.list))] }

func (a *actives) put(e active, rng *rand.Rand) {
	i, ok := a.index[e.relation]
	switch {
	case ok:
	case len(a.list) < activeRelations:
		i = len(a.list)
		a.list = append(a.list, e)
	default:
		i = rng.IntN(len(a.list))
		delete(a.index, a.list[i].relation)
	}
	a.list[i], a.index[e.relation] = e, i
}

func (a *actives) drop(r topology.Relation) {
	i, ok := a.index[r]
	if !ok {
		return
	}
	last := len(a.list) - 1
	a.list[i] = a.list[last]
	a.index[a.list[i].relation] = i
	a.list = a.list[:last]
	delete(a.index, r)
}
