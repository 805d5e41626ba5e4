package cache

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/tidemark/tidemark/topology"
)

// Relation is a relation as the cache has it.
type Relation struct {
	topology.Relation
	State   topology.State
	Version uint64
}

// maxVersion is what Lua's numbers hold exactly. A relation that has changed so
// often is not cached.
const maxVersion = 1<<53 - 1

// value is state|version|generation. Measured on Redis 7.0 with 500,000
// relations of 50,000 users: 42.8 bytes a relation, keys and hashes included;
// as packed numbers 42.3, as variable-length binary 40.4. The text is kept: any
// Redis tool shows what it says.
func (r Relation) value(g Generation) string {
	b := strconv.AppendUint(make([]byte, 0, 16), uint64(r.State), 10)
	b = strconv.AppendUint(append(b, '|'), r.Version, 10)
	b = strconv.AppendUint(append(b, '|'), g.ID, 10)
	return string(b)
}

func parseValue(g Generation, kind topology.Kind, text string) (s topology.State, version uint64, err error) {
	state, rest, _ := strings.Cut(text, "|")
	number, generation, ok := strings.Cut(rest, "|")
	n, stateErr := strconv.ParseUint(state, 10, 8)
	version, versionErr := strconv.ParseUint(number, 10, 64)
	s = topology.State(n)
	if !ok || stateErr != nil || versionErr != nil || s.Kind() != kind || generation != strconv.FormatUint(g.ID, 10) {
		return 0, 0, fmt.Errorf("redis: a cached relation of generation %d reads %.40q, which is no state of a %v in it", g.ID, text, kind)
	}
	return s, version, nil
}

// Cached is what the cache says of a relation; Found is false when it says
// nothing. Version 0 says that there was none when the cache was told last, which
// is known of a user all of whose relations of the kind it has.
type Cached struct {
	Found   bool
	State   topology.State
	Version uint64
	// Many says, where Found is false, that the user has more relations of the kind
	// than MostOfUser, so that the cache will not know which he does not have.
	Many bool
}

// MostOfUser is the most relations of a kind with which a user's bucket is known to
// be whole. They are written by one script, during which the server does nothing
// else.
const MostOfUser = 1000

// Extent is how much of a user's relations of a kind the cache has.
type Extent byte

// The extents. A hash says its own in a field with no name, which no target has,
// and loses it together with its entries, however Redis loses them. From then on
// what is not there is not known.
const (
	Part  Extent = 0   // what is missing is not known
	Whole Extent = 'w' // what is missing does not exist
	Many  Extent = 'm' // more than MostOfUser: it stays a part
)

const extentField = ""

func (e Extent) value(g Generation) string {
	return string(rune(e)) + "|" + strconv.FormatUint(g.ID, 10)
}

func parseExtent(g Generation, value any) (Extent, error) {
	text, ok := value.(string)
	switch {
	case !ok:
		return Part, nil
	case text == Whole.value(g):
		return Whole, nil
	case text == Many.value(g):
		return Many, nil
	}
	return Part, fmt.Errorf("redis: a user's relations of generation %d have the extent %.40q, which is none in it", g.ID, text)
}

// UserRelations are what a user has of a kind.
type UserRelations struct {
	Kind topology.Kind
	User string
	// Relations are all of them; Many: there are more than MostOfUser, and none is
	// given.
	Relations []Relation
	Many      bool
}

// Relations reads a user's relations of one kind to the targets, in their
// order, from one generation. An error is of the whole: what it could not read
// or believe, the caller reads from the source.
func (c *Client) Relations(ctx context.Context, g Generation, kind topology.Kind, user string, targets []string) ([]Cached, error) {
	if err := g.Check(); err != nil {
		return nil, err
	}
	buckets := make([][]int, g.Buckets) // places in targets
	for i, target := range targets {
		b := g.BucketOf(target)
		if buckets[b] == nil {
			buckets[b] = make([]int, 0, len(targets))
		}
		buckets[b] = append(buckets[b], i)
	}
	var reads []Read
	var places [][]int
	for b, at := range buckets {
		if at == nil {
			continue
		}
		args := make([]any, 0, 3+len(at))
		key := g.relationKey(kind, user, b)
		args = append(args, "hmget", key.name, extentField)
		for _, place := range at {
			args = append(args, targets[place])
		}
		reads = append(reads, Read{key, args})
		places = append(places, at)
	}
	out := make([]Cached, len(targets))
	for i, reply := range c.Read(ctx, reads) {
		if reply.Err != nil {
			return nil, reply.Err
		}
		values, ok := reply.Value.([]any)
		if !ok || len(values) != 1+len(places[i]) {
			return nil, fmt.Errorf("redis: %d fields of a hash were answered with %T", 1+len(places[i]), reply.Value)
		}
		extent, err := parseExtent(g, values[0])
		if err != nil {
			return nil, err
		}
		for j, place := range places[i] {
			text, ok := values[1+j].(string)
			if !ok {
				out[place] = extent.missing(kind)
				continue
			}
			state, version, err := parseValue(g, kind, text)
			if err != nil {
				return nil, err
			}
			out[place] = Cached{Found: true, State: state, Version: version}
		}
	}
	return out, nil
}

// missing is what a hash says of a relation that it does not have.
func (e Extent) missing(kind topology.Kind) Cached {
	if e == Whole {
		return Cached{Found: true, State: kind.Initial()}
	}
	return Cached{Many: e == Many}
}

// RelationWriter writes relation keys. Only the processor that keeps the
// durable version floor may have one (E2): a relation that is written from
// anything else than its floor could bring an old state back into an empty
// cache. The linter holds everybody else off (forbidigo in .golangci.yml).
type RelationWriter struct{ client *Client }

// NewRelationWriter makes one.
func NewRelationWriter(c *Client) *RelationWriter { return &RelationWriter{c} }

// writeRelations takes pairs of target and value, and may take the extent as the
// last one. A version that is lower than the one that stands changes nothing (I3).
// When memory is full the older entry goes instead, since it would never be
// replaced, and the extent with it: what the hash lacks exists now. A hash of
// nothing but its extent ends after a day: users who only look are many.
var writeRelations = NewScript(`
local function version(value) return tonumber(string.match(value, '^%d+|(%d+)|')) end
local written, lacks = 0, false
for i = 4, #ARGV, 2 do
  local old = redis.call('HGET', KEYS[1], ARGV[i])
  if ARGV[i] == '' then
    if not lacks then redis.pcall('HSET', KEYS[1], '', ARGV[i + 1]) end
    if redis.call('HLEN', KEYS[1]) == 1 then redis.call('EXPIRE', KEYS[1], 86400) end
  elseif not old or (version(old) or 0) <= version(ARGV[i + 1]) then
    local done = redis.pcall('HSET', KEYS[1], ARGV[i], ARGV[i + 1])
    if type(done) == 'table' and done.err then
      lacks = true
      redis.call('HDEL', KEYS[1], ARGV[i], '')
    else
      written = written + 1
    end
  end
end
return written`)

// Write brings relations into a generation, pipelined per node, and says how
// many entries are there now as given; the others stand at higher versions, or
// had no room. Several versions of one relation may be given, in any order. An
// error is the first of any: what was given may be there in part, and can be
// given again.
func (w *RelationWriter) Write(ctx context.Context, g Generation, owner Owner, relations []Relation) (written int, err error) {
	if err := g.Check(); err != nil {
		return 0, err
	}
	at := map[string]int{} // by key
	var calls []Call
	for _, r := range relations {
		if r.Version > maxVersion {
			continue
		}
		key := g.relationKey(r.Kind, r.User, g.BucketOf(r.Target))
		i, ok := at[key.name]
		if !ok {
			i = len(calls)
			at[key.name] = i
			calls = append(calls, Call{Key: key, Owner: owner})
		}
		calls[i].Args = append(calls[i].Args, r.Target, r.value(g))
	}
	return w.client.sum(ctx, writeRelations, calls)
}

// WriteUsers brings all that users have of a kind into a generation, each bucket at
// once with its extent, which says from then on that nothing is missing, or that
// the user has too many. What it says of relations that are not given holds as of
// what the given ones were read from: later ones must be written later.
func (w *RelationWriter) WriteUsers(ctx context.Context, g Generation, owner Owner, users []UserRelations) error {
	if err := g.Check(); err != nil {
		return err
	}
	var calls []Call
	for _, u := range users {
		extent := Whole
		if u.Many {
			extent = Many
		}
		first := len(calls)
		for b := range g.Buckets {
			calls = append(calls, Call{Key: g.relationKey(u.Kind, u.User, b), Owner: owner})
		}
		lacks := make([]bool, g.Buckets)
		for _, r := range u.Relations {
			b := g.BucketOf(r.Target)
			if r.Version > maxVersion {
				lacks[b] = true
				continue
			}
			calls[first+b].Args = append(calls[first+b].Args, r.Target, r.value(g))
		}
		for b, lack := range lacks {
			if !lack {
				calls[first+b].Args = append(calls[first+b].Args, extentField, extent.value(g))
			}
		}
	}
	_, err := w.client.sum(ctx, writeRelations, calls)
	return err
}
