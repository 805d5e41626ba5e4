package main

import "time"

// slow is when a step is worth a word.
const slow = time.Second

// steps says what a start is at: each step of a first start, and later only
// those that take their time.
type steps struct {
	say   func(format string, a ...any)
	all   bool
	timer *time.Timer
}

// at begins a step and ends the one before it.
func (s *steps) at(step string) {
	s.end()
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
