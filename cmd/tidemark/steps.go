package main

import (
	"slices"
	"time"
)

// slow is when a step is worth a word.
const slow = time.Second

// steps says what a start is at: each step of a first start, and later only
// those that take their time. A step that is tried again is said once.
type steps struct {
	say   func(format string, a ...any)
	all   bool
	said  []string
	timer *time.Timer
}

// at begins a step and ends the one before it.
func (s *steps) at(step string) {
	s.end()
	if slices.Contains(s.said, step) {
		return
	}
	s.said = append(s.said, step)
	if s.all {
		s.say("%s", step)
		return
	}
	s.timer = time.AfterFunc(slow, func() { s.say("%s", step) })
}

func (s *steps) end() {
	if s.timer != nil {
		s.timer.Stop()
	}
}
