package gokakit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lovoo/goka"
)

// begin is told of each generation first.
func (a *attempt) begin(session context.Context) {
	a.metrics.generations.Inc()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.session = session
}

// assign is told of each generation's partitions before they are opened.
func (a *attempt) assign(claims goka.Assignment) {
	a.mu.Lock()
	defer a.mu.Unlock()
	clear(a.assigned)
	for partition := range claims {
		a.assigned[int(partition)] = true
	}
}

// partition finds a partition, or makes that of a stateless processor.
func (a *attempt) partition(number int) (*Partition, error) {
	a.mu.RLock()
	p := a.partitions[number]
	a.mu.RUnlock()
	if p != nil {
		return p, nil
	}
	if a.stores != nil {
		return nil, fmt.Errorf("partition %d: %w", number, errClosed)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if p = a.partitions[number]; p == nil {
		p = &Partition{number: number, logs: a.logs, inputs: a.inputs, lane: newLane(a.producer, number, nil, "", nil)}
		a.partitions[number] = p
	}
	return p, nil
}

func (a *attempt) opened(n int, s *store) {
	p := &Partition{number: n, store: s, logs: a.logs, client: a.cfg.Client, table: a.table, inputs: a.inputs}
	if a.cfg.NewOwner != nil {
		p.owner = a.cfg.NewOwner(p)
	}
	p.lane = newLane(a.producer, n, s, a.table, p.owner)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.partitions[n] = p
	if len(a.recovering) == 0 {
		a.reading = time.Now()
	}
	a.recovering[n] = true
}

func (a *attempt) load(n int, s *store) error {
	a.mu.RLock()
	session := a.session
	a.mu.RUnlock()
	return a.stores.load(session, a.cfg.Client, n, s)
}

// recovered takes a partition over if it is assigned: a standby reads, and
// never writes. Goka also says so when a rebalance has ended the reading
// halfway; nothing may follow from that.
func (a *attempt) recovered(n int, s *store) error {
	a.mu.Lock()
	p := a.partitions[n]
	whole := p != nil && p.store == s && a.ctx.Err() == nil && a.session.Err() == nil && s.whole()
	whole = whole || p != nil && a.cfg.weak.has(WithoutOwnership)
	if whole {
		delete(a.recovering, n)
	}
	owned := whole && (a.assigned[n] || a.cfg.weak.has(WithoutOwnership))
	a.mu.Unlock()
	if !owned {
		if whole {
			p.follow(a)
		}
		return nil
	}
	return p.own(a)
}

func (a *attempt) closing(n int, s *store) {
	a.mu.Lock()
	p := a.partitions[n]
	if p == nil || p.store != s {
		a.mu.Unlock()
		return
	}
	delete(a.partitions, n)
	delete(a.recovering, n)
	a.mu.Unlock()
	p.lose()
}

// closeStateless ends the lanes of a processor without a table.
func (a *attempt) closeStateless() {
	a.producer.stop(errors.New("the processor stopped"))
	a.mu.Lock()
	defer a.mu.Unlock()
	for n, p := range a.partitions {
		p.lane.close()
		delete(a.partitions, n)
	}
}
