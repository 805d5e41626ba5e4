package oracle

// prefix checks that committed offsets are a gap-free prefix of finished
// records (I17): every input record below a committed offset has its effect in
// the group's table, or is set aside.
//
// An input record has the effect (key, number) when the table has had the key
// with that number or a higher one.
type prefix struct {
	keys    map[string]uint32
	highest []uint64 // by key
	inputs  map[int32]*inputs
	aside   map[origin]bool
	checked int64 // records found finished
}

type inputs struct {
	waiting   []input // from the last committed offset on
	next      int64   // offset that is read next
	committed int64
	lost      int64 // records below are gone, and need have no effect
}

type input struct {
	offset int64
	key    uint32
	poison bool
	number uint64
}

// origin is a record's place.
type origin struct {
	partition int32
	offset    int64
}

func newPrefix() *prefix {
	return &prefix{keys: map[string]uint32{}, inputs: map[int32]*inputs{}, aside: map[origin]bool{}}
}

func (p *prefix) key(name string) uint32 {
	k, ok := p.keys[name]
	if !ok {
		k = uint32(len(p.highest))
		p.keys[name] = k
		p.highest = append(p.highest, 0)
	}
	return k
}

func (p *prefix) of(partition int32) *inputs {
	in := p.inputs[partition]
	if in == nil {
		in = new(inputs)
		p.inputs[partition] = in
	}
	return in
}

// input takes a record of the group's input; a poisoned one must be set aside
// instead of having an effect.
func (p *prefix) input(at origin, name string, number uint64, poison bool) {
	in := p.of(at.partition)
	in.next = at.offset + 1
	if at.offset < in.lost {
		return
	}
	i := input{offset: at.offset, number: number, poison: poison}
	if !poison {
		i.key = p.key(name)
	}
	in.waiting = append(in.waiting, i)
}

// lose forgets the input below an offset: a broker has lost it, and the group
// may pass over it.
func (p *prefix) lose(partition int32, below int64) {
	in := p.of(partition)
	in.lost = max(in.lost, below)
	n := 0
	for n < len(in.waiting) && in.waiting[n].offset < below {
		n++
	}
	in.waiting = in.waiting[n:]
}

// effect takes what the group's table has.
func (p *prefix) effect(name string, number uint64) {
	if k := p.key(name); p.highest[k] < number {
		p.highest[k] = number
	}
}

// setAside takes the origin of a quarantined record.
func (p *prefix) setAside(at origin) { p.aside[at] = true }

// commit checks an offset that was committed before everything that was taken
// was read. It returns the offsets of unfinished records below it, and whether
// it went back.
func (p *prefix) commit(partition int32, committed int64) (unfinished []int64, back bool) {
	in := p.of(partition)
	if committed < in.committed {
		return nil, true
	}
	in.committed = committed
	n := 0
	for _, i := range in.waiting {
		if i.offset >= committed {
			break
		}
		n++
		if i.poison && p.aside[origin{partition, i.offset}] || !i.poison && p.highest[i.key] >= i.number {
			p.checked++
			continue
		}
		unfinished = append(unfinished, i.offset)
	}
	in.waiting = in.waiting[n:]
	return unfinished, false
}
