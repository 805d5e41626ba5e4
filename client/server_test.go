package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"
)

// A fault is what becomes of one request on its way.
type fault struct {
	Lost     bool          // never arrives
	Before   time.Duration // on the way there
	Again    time.Duration // 0: arrives once; else a copy arrives so much later
	After    time.Duration // on the way back
	Drop     bool          // the answer is lost
	Status   int           // 0: handled; else a gateway's answer in its place
	Retry    string        // Retry-After of that
	Cut      bool          // the answer ends early
	Previous bool          // the answer to the request before comes instead
}

// A server is the API's commands in memory, behind a bad network. It has the
// rules of the real one: an operation is decided once, an id belongs to one
// command, a stale base version is refused.
type server struct {
	underway   sync.WaitGroup // requests that have not arrived yet
	mu         sync.Mutex
	faults     []fault
	relations  map[string]Confirmed
	operations map[string]decidedOperation
	sent       []string // operation ids, of every request
	last       []byte   // answer before
	expire     func(id string) bool
	refuse     string // problem type that everything is refused with
}

type decidedOperation struct {
	command string
	stale   bool
}

func newServer() *server {
	return &server{relations: map[string]Confirmed{}, operations: map[string]decidedOperation{}}
}

func (s *server) at(r Relation) Confirmed {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.relation(r.path())
}

func (s *server) relation(path string) Confirmed {
	if c, ok := s.relations[path]; ok {
		return c
	}
	for _, k := range kinds {
		if strings.HasSuffix(path, k.after) {
			return Confirmed{State: k.states[0]}
		}
	}
	panic("no relation: " + path)
}

// write is another device's command.
func (s *server) write(r Relation, to State) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.change(r.path(), to)
}

func (s *server) change(path string, to State) {
	c := s.relation(path)
	if c.State != to {
		now := time.Now()
		s.relations[path] = Confirmed{State: to, Version: c.Version + 1, StateChangedAt: &now}
	}
}

type reply struct {
	status int
	header http.Header
	body   []byte
}

func problem(status int, kind string, current *Confirmed) reply {
	b, _ := json.Marshal(map[string]any{"type": problemPrefix + kind, "title": kind, "status": status, "currentRelation": current})
	return reply{status: status, body: b}
}

// handle decides one command.
func (s *server) handle(path, id string, text []byte) reply {
	s.mu.Lock()
	defer s.mu.Unlock()
	var b body
	if err := json.Unmarshal(text, &b); err != nil {
		return problem(400, "invalid-request", nil)
	}
	if s.refuse != "" {
		return problem(403, s.refuse, nil)
	}
	command := path + string(text)
	op, replayed := s.operations[id]
	if replayed && op.command != command {
		return problem(422, "idempotency-key-reused", nil)
	}
	if !replayed {
		if s.expire != nil && s.expire(id) {
			current := s.relation(path)
			return problem(410, "operation-expired", &current)
		}
		op = decidedOperation{command: command, stale: b.BaseVersion != nil && *b.BaseVersion != s.relation(path).Version}
		s.operations[id] = op
		if !op.stale {
			s.change(path, b.DesiredState)
		}
	}
	current := s.relation(path)
	if op.stale {
		return problem(409, "stale-base-version", &current)
	}
	answer, _ := json.Marshal(map[string]any{
		"state": current.State, "relationVersion": current.Version, "stateChangedAt": current.StateChangedAt,
		"operationId": id, "replayed": replayed, "currentRelation": current, "a field of later": 1,
	})
	return reply{status: 200, body: answer}
}

var errDropped = errors.New("the connection was cut")

// RoundTrip takes a request through the network. What is on its way arrives
// although the client has given up.
func (s *server) RoundTrip(req *http.Request) (*http.Response, error) {
	text, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	path, id := req.URL.EscapedPath(), req.Header.Get("Idempotency-Key")
	s.mu.Lock()
	s.sent = append(s.sent, id)
	var f fault
	if len(s.faults) > 0 {
		f, s.faults = s.faults[0], s.faults[1:]
	}
	s.mu.Unlock()
	if f.Lost {
		return nil, errDropped
	}
	back := make(chan reply, 1)
	s.underway.Go(func() {
		time.Sleep(f.Before)
		r := reply{status: f.Status, header: http.Header{"Retry-After": {f.Retry}}, body: []byte("<html>")}
		if f.Status == 0 {
			r = s.handle(path, id, text)
		}
		if f.Again > 0 {
			time.Sleep(f.Again)
			s.handle(path, id, text)
		}
		time.Sleep(f.After)
		back <- r
	})
	select {
	case r := <-back:
		return s.respond(req.Context(), f, r)
	case <-req.Context().Done():
		return nil, req.Context().Err()
	}
}

func (s *server) respond(ctx context.Context, f fault, r reply) (*http.Response, error) {
	s.mu.Lock()
	previous := s.last
	s.last = r.body
	s.mu.Unlock()
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case f.Drop:
		return nil, errDropped
	case f.Cut:
		r.body = r.body[:len(r.body)/2]
	case f.Previous && previous != nil:
		r = reply{status: 200, body: previous}
	}
	if r.header == nil {
		r.header = http.Header{}
	}
	return &http.Response{StatusCode: r.status, Header: r.header, Body: io.NopCloser(bytes.NewReader(r.body))}, nil
}

func (s *server) config() Config {
	return Config{
		URL: "http://api.test", User: "u7", HTTP: &http.Client{Transport: s},
		Token:    func(context.Context) (string, error) { return "token", nil },
		RetryMin: 10 * time.Millisecond, RetryMax: time.Second, AttemptTimeout: time.Second,
	}
}

var errKilled = errors.New("the process was killed")

// A memDisk is a journal file of which only what was synced is sure to be
// there after a kill. Writes whose number is in fail write half and fail.
type memDisk struct {
	mu             sync.Mutex
	synced, unsure []byte // unsure: as the process sees it
	writes         int
	fail           map[int]bool
	killed         bool
}

func (d *memDisk) do(f func() error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.killed {
		return errKilled
	}
	return f()
}

func (d *memDisk) Open() (f file, data []byte, err error) {
	err = d.do(func() error { data = bytes.Clone(d.unsure); return nil })
	return d, data, err
}

func (d *memDisk) Replace(data []byte) (file, error) {
	return d, d.do(func() error {
		d.writes++
		if d.fail[d.writes] {
			return fmt.Errorf("no space for a new file")
		}
		d.synced, d.unsure = bytes.Clone(data), bytes.Clone(data)
		return nil
	})
}

func (d *memDisk) WriteAt(b []byte, at int64) (int, error) {
	return len(b), d.do(func() error {
		d.writes++
		failed := d.fail[d.writes]
		if failed {
			b = b[:len(b)/2]
		}
		if need := int(at) + len(b) - len(d.unsure); need > 0 {
			d.unsure = append(d.unsure, make([]byte, need)...)
		}
		copy(d.unsure[at:], b)
		if failed {
			return errors.New("no space")
		}
		return nil
	})
}

func (d *memDisk) Truncate(size int64) error {
	return d.do(func() error { d.unsure = d.unsure[:size]; return nil })
}

func (d *memDisk) Sync() error {
	return d.do(func() error {
		d.writes++
		if d.fail[d.writes] {
			return errors.New("the disk does not answer")
		}
		d.synced = bytes.Clone(d.unsure)
		return nil
	})
}

func (d *memDisk) Close() error { return nil }

func (d *memDisk) kill() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.killed = true
}

// after is the disk after a kill: of what was not synced the first cut bytes
// are there, and behind them what stood there before.
func (d *memDisk) after(cut int) *memDisk {
	d.mu.Lock()
	defer d.mu.Unlock()
	same := 0
	for same < len(d.synced) && same < len(d.unsure) && d.synced[same] == d.unsure[same] {
		same++
	}
	end := min(same+cut, len(d.unsure))
	data := append(bytes.Clone(d.unsure[:end]), d.synced[min(end, len(d.synced)):]...)
	return &memDisk{synced: data, unsure: bytes.Clone(data)}
}
