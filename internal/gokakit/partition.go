package gokakit

import (
	"context"
	"fmt"
)

// Partition is what a handler sees of the partition that its record came from:
// the table, if the processor has one, and the ordered way out.
type Partition struct {
	number int
	store  *store
	lane   *lane

	cancel context.CancelCauseFunc
	owned  chan struct{} // closed when Owned has returned; nil when not running
}

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
// stale are written again, then the processor's Owned runs beside the handler
// until the partition is lost.
func (p *Partition) own(a *attempt) error {
	if a.cfg.weak&WithoutRepair == 0 {
		if err := p.repair(a); err != nil {
			return err
		}
	}
	if a.cfg.Owned == nil {
		return nil
	}
	ctx, cancel := context.WithCancelCause(a.ctx)
	p.cancel, p.owned = cancel, make(chan struct{})
	go func() {
		defer close(p.owned)
		if err := a.cfg.Owned(ctx, p); err != nil && ctx.Err() == nil {
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

// lose stops Owned and drains the lane.
func (p *Partition) lose() {
	if p.cancel != nil {
		p.cancel(fmt.Errorf("partition %d moved away or is closing", p.number))
		<-p.owned
	}
	p.lane.close()
}
