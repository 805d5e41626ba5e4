package member

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/tidemark/tidemark/drills/proc"
)

// Member is a member over all its lives, seen from the drill.
type Member struct {
	Spec Spec
	// Disk that StateDir lies on; nil: the machine's, which is not filled.
	Disk *proc.Disk
	log  string

	mu      sync.Mutex
	program string // of the next life; "": this one
	process *proc.Process
	life    *life
	past    Figures // of ended lives
	most    int64   // resident memory, bytes
	reasons []string
}

// life is what one process has said so far.
type life struct {
	started      time.Time
	ready, first chan struct{}
	isReady      bool
	figures      Figures
	toReady      time.Duration
	toFirst      time.Duration
}

// New makes a member that does not run yet; its log is appended to a file in
// dir.
func New(spec Spec, dir string) *Member {
	return &Member{Spec: spec, log: filepath.Join(dir, spec.Instance+".log")}
}

// Start begins a new life.
func (m *Member) Start() error {
	spec, err := json.Marshal(m.Spec)
	if err != nil {
		return err
	}
	l := &life{started: time.Now(), ready: make(chan struct{}), first: make(chan struct{})}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.life != nil {
		m.past = m.past.plus(m.life.figures)
	}
	m.life = l
	p, err := proc.Start(proc.Config{Name: "member " + m.Spec.Instance, Program: m.program, Args: []string{Command, string(spec)}, Log: m.log,
		OnLine: func(line []byte) { m.hear(l, line) }})
	if err != nil {
		return err
	}
	m.process = p
	return nil
}

// Become makes the next life one of another program; "" is this one. Versions
// of tidemark share Spec and Sign: a version leaves out what it does not know.
func (m *Member) Become(program string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.program = program
}

// Program is what the next life runs; "" is this program.
func (m *Member) Program() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.program
}

// maxReasons bounds what is remembered of why a member was not ready.
const maxReasons = 200

func (m *Member) hear(l *life, line []byte) {
	var s Sign
	if json.Unmarshal(line, &s) != nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	l.figures = s.Figures
	switch s.Event {
	case Ready:
		l.isReady = true
		if l.toReady == 0 {
			l.toReady = time.Since(l.started)
			close(l.ready)
		}
	case Unready:
		l.isReady = false
		if len(m.reasons) == maxReasons {
			m.reasons = m.reasons[1:]
		}
		m.reasons = append(m.reasons, s.Reason)
	case First:
		l.toFirst = time.Since(l.started)
		close(l.first)
	}
	m.measure()
}

// measure notes the memory; the caller holds the lock.
func (m *Member) measure() {
	if m.process == nil {
		return
	}
	if now, most := m.process.Memory(); max(now, most) > m.most {
		m.most = max(now, most)
	}
}

// Process is the process of the present life.
func (m *Member) Process() *proc.Process {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.process
}

// IsReady tells whether the member consumes, as it says itself.
func (m *Member) IsReady() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.life != nil && m.life.isReady && m.process.Running()
}

// ReadyOnce is closed when the present life was ready for the first time.
func (m *Member) ReadyOnce() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.life.ready
}

// FirstRecord is closed when the present life has handled a record.
func (m *Member) FirstRecord() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.life.first
}

// Times are how long the present life took to be ready and to its first
// record; 0 for not yet.
func (m *Member) Times() (toReady, toFirst time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.life.toReady, m.life.toFirst
}

// Figures of all lives, up to the last sign of each.
func (m *Member) Figures() Figures {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.life == nil {
		return m.past
	}
	return m.past.plus(m.life.figures)
}

// MostMemory is the highest resident memory seen, in bytes.
func (m *Member) MostMemory() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.measure()
	return m.most
}

// Reasons are the latest reasons for not being ready, of all lives.
func (m *Member) Reasons() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]string(nil), m.reasons...)
}

// ForgetReasons begins the list of reasons anew.
func (m *Member) ForgetReasons() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reasons = nil
}

// FullDisk lets no file of the member grow: its disk is filled, or, where it
// has none, the kernel limits the process. It returns what a write says then.
func (m *Member) FullDisk() (said string, err error) {
	if m.Disk != nil {
		return "no space left on device", m.Disk.Fill()
	}
	return "file too large", m.Process().FullDisk(true)
}

// FreeDisk ends FullDisk.
func (m *Member) FreeDisk() error {
	if m.Disk != nil {
		return m.Disk.Free()
	}
	p := m.Process()
	if err := p.FullDisk(false); err != nil && p.Running() {
		return err
	}
	return nil
}

// WipeState removes the member's local stores; it must not run.
func (m *Member) WipeState() error {
	if err := os.RemoveAll(m.Spec.StateDir); err != nil {
		return fmt.Errorf("wiping the state of %s: %w", m.Spec.Instance, err)
	}
	return nil
}

// SaveState copies the local stores, replacing an earlier copy; RestoreState
// brings the copy back. The member must not run.
func (m *Member) SaveState() error { return replaceDir(m.saved(), m.Spec.StateDir) }

// RestoreState see SaveState.
func (m *Member) RestoreState() error { return replaceDir(m.Spec.StateDir, m.saved()) }

func (m *Member) saved() string { return m.Spec.StateDir + ".saved" }

// replaceDir makes to a copy of from; one that does not exist is empty.
func replaceDir(to, from string) error {
	if err := os.RemoveAll(to); err != nil {
		return fmt.Errorf("replacing a state folder: %w", err)
	}
	if err := os.MkdirAll(from, 0o755); err != nil {
		return fmt.Errorf("replacing a state folder: %w", err)
	}
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		return fmt.Errorf("copying a state folder: %w", err)
	}
	return nil
}
