package likers

import (
	"sync"
	"time"
)

// heat counts how often lists are read, of a partition. It remembers two windows
// of time, and in each at most so many lists: one that is read often is among the
// first of any window, so that nobody holds it off with questions about others.
type heat struct {
	window time.Duration
	most   int // lists

	mu          sync.Mutex
	began       time.Time // of the window that is
	now, before map[string]uint64
}

func newHeat(window time.Duration, most int) *heat {
	return &heat{window: window, most: most, now: map[string]uint64{}, before: map[string]uint64{}}
}

// read counts n pages of a list.
func (h *heat) read(list string, n uint64, at time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.turn(at)
	if _, known := h.now[list]; known || len(h.now) < h.most {
		h.now[list] += n
	}
}

// turn begins another window when it is time to.
func (h *heat) turn(at time.Time) {
	switch passed := at.Sub(h.began); {
	case passed < h.window:
		return
	case passed < 2*h.window:
		h.before, h.now = h.now, h.before
		h.began = h.began.Add(h.window)
	default: // nothing was read for a window
		clear(h.before)
		h.began = at
	}
	clear(h.now)
}

// perMinute gives the pages a minute of each list that is read at all: over the
// window that is, and the part of the one before that makes it a whole one.
func (h *heat) perMinute(at time.Time) map[string]float64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.turn(at)
	left := 1 - float64(at.Sub(h.began))/float64(h.window)
	rates := make(map[string]float64, len(h.now))
	for list, n := range h.now {
		rates[list] += float64(n)
	}
	for list, n := range h.before {
		rates[list] += float64(n) * left
	}
	for list := range rates {
		rates[list] *= float64(time.Minute) / float64(h.window)
	}
	return rates
}
