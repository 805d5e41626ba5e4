package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidemark/tidemark/api"
)

// sendersCommand sends commands from a process of its own: sendersCommand SPEC, a
// sendersSpec as JSON. It writes what became of them.
const sendersCommand = "senders"

type sendersSpec struct {
	Addr      string  `json:"addr"`
	Key       []byte  `json:"key"` // of the tokens
	Name      string  `json:"name"`
	Callers   int     `json:"callers"`   // that wait for their answers, on a connection each
	PerSecond float64 `json:"perSecond"` // instead, whatever becomes of them; 0: callers
}

// sent is what became of the commands that were due after the warm time.
type sent struct {
	Good    int64   `json:"good"`
	Refused int64   `json:"refused"`
	Late    int64   `json:"late"` // or lost
	Unsent  int64   `json:"unsent"`
	All     int64   `json:"all"`   // answers, with the warm time
	Cores   float64 `json:"cores"` // seconds of a core that the senders used, likewise

	serverCores float64
}

func (s sent) goodput() float64 { return float64(s.Good) / overloadPhase.Seconds() }

// server and senders are microseconds of a core per answer.
func (s sent) server() float64  { return s.serverCores * 1e6 / float64(max(s.All, 1)) }
func (s sent) senders() float64 { return s.Cores * 1e6 / float64(max(s.All, 1)) }

// perCore is the goodput of each core that the senders leave to the server and
// PostgreSQL.
func (s sent) perCore() float64 {
	left := float64(runtime.NumCPU()) - s.Cores/(overloadWarm+overloadPhase).Seconds()
	return s.goodput() / left
}

// send runs senders and measures what this process, the server, uses meanwhile.
func send(ctx context.Context, spec sendersSpec) (sent, error) {
	text, err := json.Marshal(spec)
	if err != nil {
		return sent{}, err
	}
	self, err := os.Executable()
	if err != nil {
		return sent{}, err
	}
	cmd := exec.CommandContext(ctx, self, sendersCommand, string(text))
	cmd.Stderr = os.Stderr
	before := coreSeconds()
	out, err := cmd.Output()
	if err != nil {
		return sent{}, fmt.Errorf("sending commands: %w", err)
	}
	var s sent
	if err := json.Unmarshal(out, &s); err != nil {
		return sent{}, fmt.Errorf("reading what became of the commands: %w", err)
	}
	s.serverCores = coreSeconds() - before
	return s, nil
}

func runSenders(text string) error {
	var spec sendersSpec
	if err := json.Unmarshal([]byte(text), &spec); err != nil {
		return fmt.Errorf("reading the senders' spec: %w", err)
	}
	s := senders{sendersSpec: spec}
	for user := range 1000 {
		token, err := api.MintToken(spec.Key, fmt.Sprintf("u%d", user), "", time.Hour)
		if err != nil {
			return err
		}
		s.tokens = append(s.tokens, token)
	}
	s.begun = time.Now()
	s.from, s.to = s.begun.Add(overloadWarm), s.begun.Add(overloadWarm+overloadPhase)
	if spec.PerSecond == 0 {
		s.closed()
	} else {
		s.open()
	}
	return json.NewEncoder(os.Stdout).Encode(sent{
		Good: s.good.Load(), Refused: s.refused.Load(), Late: s.late.Load(), Unsent: s.unsent, All: s.all.Load(), Cores: coreSeconds(),
	})
}

type senders struct {
	sendersSpec
	tokens          []string
	next            atomic.Int64
	begun, from, to time.Time
	callers         sync.WaitGroup

	good, refused, late, all atomic.Int64
	unsent                   int64
}

// closed has callers that each wait for their answer.
func (s *senders) closed() {
	for range s.Callers {
		s.callers.Go(func() {
			var c caller
			for now := time.Now(); now.Before(s.to); now = time.Now() {
				s.one(&c, now)
			}
			c.close()
		})
	}
	s.callers.Wait()
}

// open has commands due at a pace. Each goes to a caller that waits for nothing,
// or to one more, up to overloadOpen.
func (s *senders) open() {
	idle := make(chan time.Time)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	callers, n := 0, 0
	for now := range tick.C {
		if now.After(s.to) {
			break
		}
		for ; float64(n) < now.Sub(s.begun).Seconds()*s.PerSecond; n++ {
			select {
			case idle <- now:
				continue
			default:
			}
			if callers == overloadOpen {
				if now.After(s.from) {
					s.unsent++
				}
				continue
			}
			callers++
			s.callers.Go(func() {
				var c caller
				s.one(&c, now)
				for due := range idle {
					s.one(&c, due)
				}
				c.close()
			})
		}
	}
	close(idle)
	s.callers.Wait()
}

// one sets a relation that was never set, and counts what became of it.
func (s *senders) one(c *caller, due time.Time) {
	n := s.next.Add(1)
	body := `{"desiredState":"LIKED"}`
	c.request = fmt.Appendf(c.request[:0], "PUT /v1/videos/V%d/like-relation HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer %s\r\nIdempotency-Key: %s-%d\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		n, s.tokens[n%int64(len(s.tokens))], s.Name, n, len(body), body)
	status, err := c.ask(s.Addr, due.Add(overloadDeadline))
	if err == nil {
		s.all.Add(1)
	}
	switch {
	case due.Before(s.from):
	case err == nil && status == http.StatusOK && time.Since(due) <= overloadDeadline:
		s.good.Add(1)
	case err == nil && status == http.StatusServiceUnavailable && time.Since(due) <= overloadDeadline:
		s.refused.Add(1)
	default:
		s.late.Add(1)
	}
}

// caller has a connection, made anew after one that gave no answer in time.
type caller struct {
	client  *batchClient
	request []byte
}

func (c *caller) ask(addr string, deadline time.Time) (status int, err error) {
	if c.client == nil {
		ctx, cancel := context.WithDeadline(context.Background(), deadline)
		defer cancel()
		if c.client, err = dialBatch(ctx, addr); err != nil {
			return 0, err
		}
	}
	if status, err = c.client.answer(c.request, deadline); err != nil {
		c.close()
	}
	return status, err
}

func (c *caller) close() {
	if c.client != nil {
		c.client.close()
		c.client = nil
	}
}
