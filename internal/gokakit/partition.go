package gokakit

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Partition is what a handler sees of the partition that its record came from:
// the table, if the processor has one, and the ordered way out.
type Partition struct {
	number int
	store  *store
	lane   *lane
	client Client
	table  string
	owner  Owner // nil when the processor has none

	cancel context.CancelCauseFunc
	owned  chan struct{} // closed when the owner's Run has returned; nil when not running
}

// Owner accompanies a partition of a table while it is owned.
type Owner interface {
	// Settled is told of each acked table write, in order, on the lane's
	// goroutine. It must not block, least of all on an emission.
	Settled(key string, value []byte, offset int64, rows []Derived)
	// Run runs beside the handler until ctx ends; it must then return soon.
	// An error fails the processor.
	Run(ctx context.Context) error
}

// Owner is what NewOwner made for this partition.
func (p *Partition) Owner() Owner { return p.owner }

// Number is the partition's number.
func (p *Partition) Number() int { return p.number }

// Get reads the newest value of a key, this handler's own writes included; nil
// when there is none. The caller must not change it.
func (p *Partition) Get(key string) ([]byte, error) { return p.store.get(key) }

// Derived reads the newest derived row; nil when there is none.
func (p *Partition) Derived(group, item string) ([]byte, error) { return p.store.derived(group, item) }

// Put writes a value to the table and its changelog; its derived rows change
// in the same step. The value must not be changed afterwards.
func (p *Partition) Put(key string, value []byte) error { return p.lane.put(key, value) }

// Emit sends a record to an output topic.
func (p *Partition) Emit(topic, key string, value []byte) error {
	return p.lane.emit(topic, key, value)
}

// Barrier calls f once everything put or emitted before is acked, or with the
// error that made that impossible.
func (p *Partition) Barrier(f func(error)) { p.lane.barrier(f) }

// AckedOffset is the changelog offset that acked writes reach; -1 for none.
func (p *Partition) AckedOffset() int64 { return p.store.offset() }

// ScanAcked visits the acked rows of a group in item order and returns the
// changelog offset that they reach. visit must not call the Partition.
func (p *Partition) ScanAcked(group string, visit func(item string, value []byte) error) (int64, error) {
	return p.store.scanGroup(group, visit)
}

// own takes a recovered partition over: keys whose newest changelog record is
// stale are written again, then the owner runs beside the handler until the
// partition is lost.
func (p *Partition) own(a *attempt) error {
	if a.cfg.weak&WithoutRepair == 0 {
		if err := p.repair(a); err != nil {
			return err
		}
	}
	if p.owner == nil {
		return nil
	}
	ctx, cancel := context.WithCancelCause(a.ctx)
	p.cancel, p.owned = cancel, make(chan struct{})
	go func() {
		defer close(p.owned)
		if err := p.owner.Run(ctx); err != nil && ctx.Err() == nil {
			a.fail(fmt.Errorf("group %s, partition %d: %w", a.group, p.number, err))
		}
	}()
	return nil
}

// repair writes the winners again, byte for byte: a repair is no event, and
// leaves every sequence as it is.
func (p *Partition) repair(a *attempt) error {
	keys := p.store.takeStale()
	for _, key := range keys {
		v, err := p.store.get(key)
		if err != nil {
			return err
		}
		if err := p.lane.put(key, v); err != nil {
			return fmt.Errorf("writing a winner again behind a stale record: %w", err)
		}
	}
	a.metrics.repairs.Add(float64(len(keys)))
	if len(keys) > 0 {
		a.log.Info("wrote winners again behind stale changelog records", "partition", p.number, "keys", len(keys))
	}
	return nil
}

// lose stops the owner and drains the lane.
func (p *Partition) lose() {
	if p.cancel != nil {
		p.cancel(fmt.Errorf("partition %d moved away or is closing", p.number))
		<-p.owned
	}
	p.lane.close()
}

// ReadLog reads the table's changelog from one offset up to and including
// another, in order, and visits each record that compaction has left. It ends
// early with ctx.
func (p *Partition) ReadLog(ctx context.Context, from, to int64, visit func(key string, value []byte, offset int64) error) error {
	if from > to {
		return nil
	}
	cl, err := p.client.franz(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{
		p.table: {int32(p.number): kgo.NewOffset().At(from)},
	}), kgo.FetchMaxWait(100*time.Millisecond))
	if err != nil {
		return err
	}
	defer cl.Close()
	for {
		fetches := cl.PollFetches(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if errs := fetches.Errors(); len(errs) > 0 {
			return fmt.Errorf("reading changelog %s/%d: %w", p.table, p.number, errs[0].Err)
		}
		for _, r := range fetches.Records() {
			if r.Offset > to {
				return nil
			}
			if err := visit(string(r.Key), r.Value, r.Offset); err != nil {
				return err
			}
			if r.Offset == to {
				return nil
			}
		}
	}
}
