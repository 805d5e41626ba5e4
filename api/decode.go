package api

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/tidemark/tidemark/topology"
)

// Limits of a request.
const (
	MaxBodyBytes   = 64 << 10 // of a request body
	MaxBatch       = 200      // ids in a batch query
	MaxKeyBytes    = 128      // of an Idempotency-Key
	MaxDeviceBytes = 128      // of a deviceId
	maxTokenBytes  = 8 << 10
)

// commandBody is the decoded body of a command.
type commandBody struct {
	desired     topology.State
	baseVersion *uint64
	device      string
	sequence    *uint64
}

// decodeCommand reads a CommandBody for a relation of kind k.
func decodeCommand(s string, k topology.Kind) (c commandBody, _ *Problem) {
	r := jsonReader{s: s}
	var seen fields
	p := r.object(func(name string) *Problem {
		var bad string
		switch name {
		case "desiredState":
			c.desired, bad = r.state(k)
		case "baseVersion":
			c.baseVersion, bad = r.optional()
		case "deviceId":
			c.device, bad = r.device()
		case "clientSequence":
			c.sequence, bad = r.optional()
		default:
			return unknownField(name)
		}
		if bad == "" {
			bad = seen.add(name)
		}
		return invalidIf("body."+name, bad)
	})
	if p == nil && c.desired == 0 {
		p = invalid("body.desiredState", "is missing")
	}
	return c, p
}

// batchBody is the decoded body of a batch query: the ids as they came, and
// each distinct id once.
type batchBody struct {
	ids    []string // in input order
	place  []int    // of each id in unique
	unique []string
	// least is the version that the client has seen of each distinct id; nil
	// when it named none.
	least []uint64
}

// decodeBatch reads a batch query whose ids stand in field idsName.
func decodeBatch(s, idsName string) (b batchBody, _ *Problem) {
	r := jsonReader{s: s}
	var seen fields
	var least []leastVersion
	p := r.object(func(name string) *Problem {
		var p *Problem
		switch name {
		case idsName:
			b.ids, p = r.ids("body." + idsName)
		case "minRelationVersions":
			least, p = r.leastVersions()
		default:
			return unknownField(name)
		}
		if p == nil {
			p = invalidIf("body."+name, seen.add(name))
		}
		return p
	})
	if p != nil {
		return b, p
	}
	if b.ids == nil {
		return b, invalid("body."+idsName, "is missing")
	}
	return b, b.index(least, idsName)
}

// index finds the distinct ids and gives each the least version named for it.
func (b *batchBody) index(least []leastVersion, idsName string) *Problem {
	var places map[string]int
	if len(b.ids) > fewIDs {
		places = make(map[string]int, len(b.ids))
	}
	b.place = make([]int, len(b.ids))
	b.unique = make([]string, 0, len(b.ids))
	for i, id := range b.ids {
		at := b.placeOf(id, places)
		if at < 0 {
			at = len(b.unique)
			b.unique = append(b.unique, id)
			if places != nil {
				places[id] = at
			}
		}
		b.place[i] = at
	}
	if len(least) == 0 {
		return nil
	}
	b.least = make([]uint64, len(b.unique))
	seen := make(map[string]struct{}, len(least))
	for _, l := range least {
		at := b.placeOf(l.id, places)
		if at < 0 {
			return invalid("body.minRelationVersions["+strconv.Quote(clip(l.id))+"]", "is not one of "+idsName)
		}
		if _, twice := seen[l.id]; twice {
			return invalid("body.minRelationVersions["+strconv.Quote(clip(l.id))+"]", badTwice)
		}
		seen[l.id] = struct{}{}
		b.least[at] = l.version
	}
	return nil
}

// fewIDs are compared with each other for less than a map of them costs.
const fewIDs = 32

// placeOf finds an id among the distinct ones; -1: it is none of them.
func (b *batchBody) placeOf(id string, places map[string]int) int {
	if places == nil {
		return slices.Index(b.unique, id)
	}
	if at, ok := places[id]; ok {
		return at
	}
	return -1
}

type leastVersion struct {
	id      string
	version uint64
}

// object reads the whole input as one object, member by member.
func (r *jsonReader) object(member func(name string) *Problem) *Problem {
	if r.space(); r.i == len(r.s) {
		return invalid("body", "is empty: send a JSON object")
	}
	if !r.take('{') {
		return invalid("body", badObject)
	}
	for first := true; ; first = false {
		more, bad := r.more('}', first)
		if bad != "" {
			return invalid("body", bad)
		}
		if !more {
			return invalidIf("body", r.end())
		}
		name, bad := r.name()
		if bad != "" {
			return invalid("body", "has a field name that "+bad)
		}
		if p := member(name); p != nil {
			return p
		}
	}
}

func (r *jsonReader) ids(location string) ([]string, *Problem) {
	if !r.take('[') {
		return nil, invalid(location, badArray)
	}
	ids := make([]string, 0, 64)
	for {
		more, bad := r.more(']', len(ids) == 0)
		if bad != "" {
			return nil, invalid("body", bad)
		}
		if !more {
			return ids, nil
		}
		if len(ids) == MaxBatch {
			return nil, invalid(location, fmt.Sprintf("has more than %d ids: ask in several requests", MaxBatch))
		}
		id, bad := r.str()
		if bad == "" {
			bad = badID(id)
		}
		if bad != "" {
			return nil, invalid(location+"["+strconv.Itoa(len(ids))+"]", bad)
		}
		ids = append(ids, id)
	}
}

func (r *jsonReader) leastVersions() ([]leastVersion, *Problem) {
	const location = "body.minRelationVersions"
	if !r.take('{') {
		return nil, invalid(location, badObject)
	}
	var least []leastVersion
	for {
		more, bad := r.more('}', len(least) == 0)
		if bad != "" {
			return nil, invalid("body", bad)
		}
		if !more {
			return least, nil
		}
		if len(least) == MaxBatch {
			return nil, invalid(location, fmt.Sprintf("has more than %d ids", MaxBatch))
		}
		id, bad := r.name()
		if bad != "" {
			return nil, invalid(location, "has an id that "+bad)
		}
		version, bad := r.number()
		if bad != "" {
			return nil, invalid(location+"["+strconv.Quote(clip(id))+"]", bad)
		}
		least = append(least, leastVersion{id, version})
	}
}

func (r *jsonReader) state(k topology.Kind) (topology.State, string) {
	name, bad := r.str()
	if bad != "" {
		return 0, bad
	}
	s, err := topology.ParseState(k, name)
	if err != nil {
		return 0, "is not one of " + strings.Join(stateNames(k), ", ")
	}
	return s, ""
}

func (r *jsonReader) optional() (*uint64, string) {
	v, bad := r.number()
	return &v, bad
}

func (r *jsonReader) device() (v, bad string) {
	v, bad = r.str()
	switch {
	case bad != "":
	case v == "":
		bad = "is empty: leave it out"
	case len(v) > MaxDeviceBytes:
		bad = fmt.Sprintf("is longer than %d bytes", MaxDeviceBytes)
	case topology.CheckID(v) != nil:
		bad = badControl
	}
	return v, bad
}

// fields are the names that an object had so far. Its objects have few.
type fields struct {
	names [5]string
	n     int
}

func (f *fields) add(name string) (bad string) {
	for _, have := range f.names[:f.n] {
		if have == name {
			return badTwice
		}
	}
	f.names[f.n] = name
	f.n++
	return ""
}

func invalidIf(location, bad string) *Problem {
	if bad == "" {
		return nil
	}
	return invalid(location, bad)
}

func unknownField(name string) *Problem {
	if strings.EqualFold(name, "userId") {
		return invalid("body."+clip(name), "is not a field here: the user is the token's subject")
	}
	return invalid("body."+clip(name), "is not a field here")
}

// clip keeps foreign text short enough for an error, whole characters only.
func clip(s string) string {
	const most = 40
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

// badID is topology.CheckID in words.
func badID(id string) string {
	if err := topology.CheckID(id); err != nil {
		return err.Error()
	}
	return ""
}

func stateNames(k topology.Kind) []string {
	var names []string
	for s := topology.Unliked; s.Valid(); s++ {
		if s.Kind() == k {
			names = append(names, s.String())
		}
	}
	return names
}
