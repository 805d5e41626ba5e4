package oracle

import "github.com/tidemark/tidemark/topology"

// order watches sequence numbers that must carry one content each and rise,
// apart from what a paused writer repeats.
type order struct {
	series map[string]*series
	old    int64 // lower numbers behind higher ones, with the content they always had
	unseen int64 // lower numbers that had not been seen before
	lost   int64 // lower numbers that are remembered no more
	twice  int64 // numbers seen again at once, with the same content
}

// series remembers the latest numbers of one key, in ascending order.
type series struct {
	recent  []numbered
	dropped uint64 // highest number that is remembered no more
}

type numbered struct {
	seq     uint64
	content content
}

// content is what a number stands for.
type content struct {
	counts topology.Counts
	at     int64
}

// maxRecent is how many numbers of a key are remembered.
const maxRecent = 2048

// verdict on one number.
type verdict int

const (
	risen     verdict = iota // higher than all before
	repeated                 // seen before with the same content
	conflict                 // seen before with another content
	neverSeen                // lower than the highest, and never seen
	forgotten                // so old that it is remembered no more
)

func newOrder() *order { return &order{series: map[string]*series{}} }

func (o *order) take(key string, seq uint64, c content) verdict {
	s := o.series[key]
	if s == nil {
		s = new(series)
		o.series[key] = s
	}
	n := len(s.recent)
	if n == 0 || seq > s.recent[n-1].seq {
		s.append(numbered{seq, c})
		return risen
	}
	if seq <= s.dropped {
		o.lost++
		return forgotten
	}
	at := s.find(seq)
	switch {
	case at < n && s.recent[at].seq == seq && s.recent[at].content != c:
		return conflict
	case at < n && s.recent[at].seq == seq && at == n-1:
		o.twice++
		return repeated
	case at < n && s.recent[at].seq == seq:
		o.old++
		return repeated
	}
	o.unseen++
	s.recent = append(s.recent, numbered{})
	copy(s.recent[at+1:], s.recent[at:])
	s.recent[at] = numbered{seq, c}
	return neverSeen
}

func (s *series) append(n numbered) {
	if len(s.recent) >= 2*maxRecent {
		s.dropped = s.recent[maxRecent-1].seq
		s.recent = append(s.recent[:0], s.recent[maxRecent:]...)
	}
	s.recent = append(s.recent, n)
}

// find gives the first place whose number is not below seq.
func (s *series) find(seq uint64) int {
	lo, hi := 0, len(s.recent)
	for lo < hi {
		if mid := (lo + hi) / 2; s.recent[mid].seq < seq {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}
