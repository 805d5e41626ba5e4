package main

import (
	"context"
	"errors"
	"sync"
	"time"
)

// pinger asks a dependency every second whether it answers, so that readiness
// never waits for it.
type pinger struct {
	ping func(context.Context) error
	mu   sync.Mutex
	err  error
}

const (
	pingInterval = time.Second
	pingTimeout  = 2 * time.Second
)

func newPinger(ping func(context.Context) error) *pinger {
	return &pinger{ping: ping, err: errors.New("not asked yet")}
}

func (p *pinger) run(ctx context.Context) error {
	tick := time.NewTicker(pingInterval)
	defer tick.Stop()
	for {
		limited, cancel := context.WithTimeout(ctx, pingTimeout)
		err := p.ping(limited)
		cancel()
		p.mu.Lock()
		p.err = err
		p.mu.Unlock()
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (p *pinger) ready() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}
