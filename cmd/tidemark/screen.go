package main

import (
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"github.com/vbauerster/cupwriter"
	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
)

// screen is where a command says what it is doing: plain lines, and on a
// terminal a bar below them while something long goes on.
type screen struct {
	out      io.Writer
	terminal bool

	mu   sync.Mutex
	bars *mpb.Progress // while a meter shows a bar
}

// narrowest is the width of a terminal that a bar fits into.
const narrowest = 40

func newScreen(out io.Writer) *screen {
	w := cupwriter.New(out, false)
	width, _, err := w.GetTermSize()
	return &screen{out: out, terminal: w.IsTerminal() && err == nil && width >= narrowest}
}

// Write writes lines, above the bar if there is one. It is safe for concurrent
// use.
func (s *screen) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bars != nil {
		if n, err := s.bars.Write(b); err == nil {
			return n, nil
		}
	}
	return s.out.Write(b)
}

func (s *screen) say(format string, a ...any) { fmt.Fprintf(s, format+"\n", a...) }

// meter shows how far one thing is: a bar on a terminal, else a line per call
// of set.
type meter struct {
	screen *screen
	what   string
	text   atomic.Pointer[string]
	bar    *mpb.Bar
}

// meter begins one; end ends it. There is one at a time. total 0: not known.
func (s *screen) meter(what string, total int64) *meter {
	m := &meter{screen: s, what: what}
	m.text.Store(new(string))
	if !s.terminal {
		return m
	}
	bars := mpb.New(mpb.WithOutput(s.out))
	text := decor.Any(func(decor.Statistics) string { return " " + *m.text.Load() })
	style, width, decorators := mpb.BarFillerBuilder(mpb.SpinnerStyle()), 3, []decor.Decorator{text}
	if total > 0 {
		style, width, decorators = mpb.BarStyle(), 30, []decor.Decorator{decor.Percentage(), text}
	}
	m.bar = bars.New(total, style, mpb.BarWidth(width), mpb.PrependDecorators(decor.Name(what+" ")), mpb.AppendDecorators(decorators...), mpb.BarRemoveOnComplete())
	s.mu.Lock()
	s.bars = bars
	s.mu.Unlock()
	return m
}

// set says how far it is.
func (m *meter) set(done int64, text string) {
	if m.bar == nil {
		m.screen.say("%s: %s", m.what, text)
		return
	}
	m.text.Store(&text)
	m.bar.SetCurrent(done)
}

// end removes the bar.
func (m *meter) end() {
	if m.bar == nil {
		return
	}
	m.bar.Abort(true)
	m.screen.mu.Lock()
	bars := m.screen.bars
	m.screen.bars = nil
	m.screen.mu.Unlock()
	bars.Wait()
}
