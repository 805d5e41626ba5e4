// Package idset holds sets of outbox ids: Set, a compact bitmap that grows
// where ids arrive, and Ranges, a sorted list that can be stored, sent and
// shown. Ids are above 0.
package idset

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"
)

// Range is the ids From..To, both included.
type Range struct{ From, To int64 }

// Count is how many ids are in r.
func (r Range) Count() int64 { return r.To - r.From + 1 }

// Ranges is a set of ids: ascending ranges that do not touch.
type Ranges []Range

// Of makes Ranges of ids in any order.
func Of(ids ...int64) Ranges {
	sorted := slices.Clone(ids)
	slices.Sort(sorted)
	var out Ranges
	for _, id := range sorted {
		out = out.Append(id)
	}
	return out
}

// Append adds an id that is not below the highest one.
func (r Ranges) Append(id int64) Ranges { return r.AppendRange(Range{id, id}) }

// AppendRange adds a range that does not begin below the last one.
func (r Ranges) AppendRange(add Range) Ranges {
	if n := len(r); n > 0 && add.From <= r[n-1].To+1 {
		r[n-1].To = max(r[n-1].To, add.To)
		return r
	}
	return append(r, add)
}

// Count is how many ids are in r.
func (r Ranges) Count() (n int64) {
	for _, one := range r {
		n += one.Count()
	}
	return n
}

// Contains tells whether id is in r.
func (r Ranges) Contains(id int64) bool {
	i := sort.Search(len(r), func(i int) bool { return r[i].To >= id })
	return i < len(r) && r[i].From <= id
}

// Union is every id of r or s.
func (r Ranges) Union(s Ranges) Ranges {
	all := append(slices.Clone(r), s...)
	slices.SortFunc(all, func(a, b Range) int {
		if a.From < b.From {
			return -1
		}
		return 1
	})
	var out Ranges
	for _, one := range all {
		out = out.AppendRange(one)
	}
	return out
}

// Without is every id of r that is not in s.
func (r Ranges) Without(s Ranges) Ranges {
	var out Ranges
	i := 0
	for _, one := range r {
		for i < len(s) && s[i].To < one.From {
			i++
		}
		at := one.From
		for j := i; j < len(s) && s[j].From <= one.To; j++ {
			if s[j].From > at {
				out = append(out, Range{at, s[j].From - 1})
			}
			at = max(at, s[j].To+1)
		}
		if at <= one.To {
			out = append(out, Range{at, one.To})
		}
	}
	return out
}

// Within is every id of r in from..to.
func (r Ranges) Within(from, to int64) Ranges {
	var out Ranges
	for _, one := range r {
		one.From, one.To = max(one.From, from), min(one.To, to)
		if one.From <= one.To {
			out = append(out, one)
		}
	}
	return out
}

// Ids lists at most limit ids in ascending order.
func (r Ranges) Ids(limit int) []int64 {
	var out []int64
	for _, one := range r {
		for id := one.From; id <= one.To; id++ {
			if len(out) == limit {
				return out
			}
			out = append(out, id)
		}
	}
	return out
}

// Coarse is r with at most limit ranges: the narrowest holes are filled, so
// that it may contain more ids. exact tells that it does not.
func (r Ranges) Coarse(limit int) (out Ranges, exact bool) {
	if len(r) <= limit {
		return r, true
	}
	holes := make([]int64, 0, len(r)-1)
	for i := 1; i < len(r); i++ {
		holes = append(holes, r[i].From-r[i-1].To)
	}
	slices.Sort(holes)
	// Holes up to this width are filled, and of equal ones as many as needed.
	fill := len(r) - limit
	width := holes[fill-1]
	narrower := sort.Search(len(holes), func(i int) bool { return holes[i] >= width })
	equal := fill - narrower
	out = Ranges{r[0]}
	for _, one := range r[1:] {
		last := &out[len(out)-1]
		hole := one.From - last.To
		if hole == width && equal > 0 {
			equal--
			last.To = one.To
		} else if hole < width {
			last.To = one.To
		} else {
			out = append(out, one)
		}
	}
	return out, false
}

// MarshalBinary writes r as unsigned varints: for each range the distance from
// the end of the one before and its length.
func (r Ranges) MarshalBinary() ([]byte, error) {
	var b []byte
	at := int64(0)
	for _, one := range r {
		b = binary.AppendUvarint(b, uint64(one.From-at))
		b = binary.AppendUvarint(b, uint64(one.To-one.From))
		at = one.To
	}
	return b, nil
}

var errRanges = errors.New("reading id ranges: the bytes are not ascending ranges")

// UnmarshalBinary reads what MarshalBinary wrote.
func (r *Ranges) UnmarshalBinary(b []byte) error {
	var out Ranges
	at := int64(0)
	for len(b) > 0 {
		gap, n := binary.Uvarint(b)
		if n <= 0 {
			return errRanges
		}
		length, m := binary.Uvarint(b[n:])
		if m <= 0 {
			return errRanges
		}
		one := Range{From: at + int64(gap), To: at + int64(gap) + int64(length)}
		touches := len(out) > 0 && one.From <= at+1
		if gap == 0 || one.From <= at || one.To < one.From || touches {
			return errRanges
		}
		out, at, b = append(out, one), one.To, b[n+m:]
	}
	*r = out
	return nil
}

// String is r for people: 17, 20-24.
func (r Ranges) String() string {
	parts := make([]string, len(r))
	for i, one := range r {
		parts[i] = strconv.FormatInt(one.From, 10)
		if one.To > one.From {
			parts[i] += "-" + strconv.FormatInt(one.To, 10)
		}
	}
	return strings.Join(parts, ", ")
}

// Multirange is r as PostgreSQL's int8multirange: {[17,18),[20,25)}.
func (r Ranges) Multirange() string {
	parts := make([]string, len(r))
	for i, one := range r {
		parts[i] = fmt.Sprintf("[%d,%d)", one.From, one.To+1)
	}
	return "{" + strings.Join(parts, ",") + "}"
}

// ParseMultirange reads an int8multirange as PostgreSQL prints it.
func ParseMultirange(s string) (Ranges, error) {
	inner, ok := strings.CutPrefix(s, "{")
	inner, ok2 := strings.CutSuffix(inner, "}")
	if !ok || !ok2 {
		return nil, fmt.Errorf("reading id ranges: %.40q is not a multirange", s)
	}
	var out Ranges
	for inner != "" {
		var one Range
		if n, err := fmt.Sscanf(inner, "[%d,%d)", &one.From, &one.To); err != nil || n != 2 {
			return nil, fmt.Errorf("reading id ranges: %.40q is not a range", inner)
		}
		one.To--
		out = append(out, one)
		end := strings.IndexByte(inner, ')') + 1
		inner = strings.TrimPrefix(inner[end:], ",")
	}
	return out, nil
}
