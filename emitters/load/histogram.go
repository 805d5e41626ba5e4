package load

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// histogram counts durations in microseconds with an error under 0.8 % (exact
// below 256 µs), up to 2^40 µs. Its largest value is exact. Safe for
// concurrent use.
type histogram struct {
	counts  [slots]atomic.Int64
	count   atomic.Int64
	sum     atomic.Int64 // µs
	largest atomic.Int64 // µs
}

const (
	exact  = 256                       // one slot per microsecond below
	halves = 128                       // slots per doubling above
	slots  = exact + (40-8)*halves + 1 // the last takes what is larger
	most   = int64(1)<<40 - 1          // µs
)

func slotOf(us int64) int {
	if us < exact {
		return int(us)
	}
	if us > most {
		return slots - 1
	}
	doubling := bits.Len64(uint64(us)) - 9 // 0 for 256..511
	return exact + doubling*halves + int(us>>(doubling+1)) - halves
}

// highest is the largest value of a slot, in microseconds.
func highest(slot int) int64 {
	if slot < exact {
		return int64(slot)
	}
	doubling, part := (slot-exact)/halves, (slot-exact)%halves
	return int64(halves+part+1)<<(doubling+1) - 1
}

func (h *histogram) add(d time.Duration) {
	us := max(0, d.Microseconds())
	h.counts[slotOf(us)].Add(1)
	h.count.Add(1)
	h.sum.Add(us)
	for {
		old := h.largest.Load()
		if us <= old || h.largest.CompareAndSwap(old, us) {
			return
		}
	}
}

// quantile is the least value that a share q of the durations does not exceed.
func (h *histogram) quantile(q float64) time.Duration {
	total := h.count.Load()
	if total == 0 {
		return 0
	}
	rank := max(1, int64(q*float64(total)+0.999999))
	largest := h.largest.Load()
	for slot := range h.counts {
		if rank -= h.counts[slot].Load(); rank <= 0 {
			if slot < slots-1 {
				largest = min(largest, highest(slot))
			}
			break
		}
	}
	return time.Duration(largest) * time.Microsecond
}

// Latency sums up durations, in milliseconds.
type Latency struct {
	Count int64   `json:"count"`
	Mean  float64 `json:"meanMs"`
	P50   float64 `json:"p50Ms"`
	P95   float64 `json:"p95Ms"`
	P99   float64 `json:"p99Ms"`
	Max   float64 `json:"maxMs"`
}

func (h *histogram) latency() Latency {
	l := Latency{Count: h.count.Load()}
	if l.Count == 0 {
		return l
	}
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	l.Mean = float64(h.sum.Load()) / float64(l.Count) / 1000
	l.P50, l.P95, l.P99 = ms(h.quantile(0.50)), ms(h.quantile(0.95)), ms(h.quantile(0.99))
	l.Max = ms(time.Duration(h.largest.Load()) * time.Microsecond)
	return l
}
