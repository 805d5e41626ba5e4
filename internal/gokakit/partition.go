package gokakit

import (
	"context"
	"fmt"
	"sync"
)

// Partition is what a handler sees of the partition that its record came from:
// the table, if the processor has one, and the ordered way out.
type Partition struct {
	number int
	store  *store // nil without a table
	lane   *lane
	logs   *topics
	client Client
	table  string
	owner  Owner             // nil when the processor has none
	inputs map[string]uint32 // by topic

	mu     sync.Mutex
	lost   bool // for good: a partition that comes back is a new one
	cancel context.CancelCauseFunc
	owned  chan struct{} // closed when the owner's Run or Follow has returned; nil when not running
}

// Owner accompanies a partition of a table while it is owned.
type Owner interface {
	// Settled is told of each acked table write, in order, on the lane's
	// goroutine. It must not block, least of all on an emission, and must not
	// keep rows.
	Settled(key string, value []byte, offset int64, rows []Derived)
	// Run runs beside the handler until ctx ends; it must then return soon.
	// An error fails the processor.
	Run(ctx context.Context) error
}

// Performer is an Owner whose handler has effects outside Kafka.
type Performer interface {
	Owner
	// Perform makes effects that Partition.Perform was given, in order, on the
	// lane's goroutine. What was put and emitted before each of them is acked, and
	// what comes behind them waits: no offset is committed before its effects are
	// made (I17). It may take its time, but must end soon after Run's context; an
	// error fails the processor, which then sees the records again. It must not
	// keep effects.
	Perform(effects []any) error
}

// Follower is an Owner that also accompanies a partition while it is kept warm
// here and owned elsewhere (ProcessorConfig.HotStandby).
type Follower interface {
	Owner
	// Follow runs, as Run does, from when the log is read as far as it went at
	// the opening, while what comes is read on.
	Follow(ctx context.Context) error
}

// Owner is what NewOwner made for this partition.
func (p *Partition) Owner() Owner { return p.owner }

// Number is the partition's number.
func (p *Partition) Number() int { return p.number }

// InputEpoch tells incarnations of an input topic apart: it changes when the
// topic is deleted and made anew, and its offsets begin again.
func (p *Partition) InputEpoch(topic string) uint32 { return p.inputs[topic] }

// Get reads the newest value of a key, this handler's own writes included; nil
// when there is none. The caller must not change it.
func (p *Partition) Get(key string) ([]byte, error) {
	if p.store == nil {
		return nil, errNoTable
	}
	return p.store.get(key)
}

// Derived reads the newest derived row; nil when there is none.
func (p *Partition) Derived(group, item string) ([]byte, error) {
	if p.store == nil {
		return nil, errNoTable
	}
	return p.store.derived(group, item)
}

// Put writes a value to the table and its changelog; its derived rows change
// in the same step. The value must not be changed afterwards. The key must
// belong to this partition.
func (p *Partition) Put(key string, value []byte) error { return p.lane.put(key, value, false) }

// Emit sends a record to an output topic.
func (p *Partition) Emit(topic, key string, value []byte) error {
	return p.lane.emit(topic, key, value)
}

// Perform has the Owner, which must be a Performer, make an effect once
// everything put or emitted before is acked.
func (p *Partition) Perform(effect any) error { return p.lane.effect(effect) }

// Barrier calls f once everything put or emitted before is acked, or with the
// error that made that impossible.
func (p *Partition) Barrier(f func(error)) { p.lane.barrier(f) }

// AckedOffset is the changelog offset that acked writes reach; -1 for none.
func (p *Partition) AckedOffset() int64 {
	if p.store == nil {
		return -1
	}
	return p.store.offset()
}

// ScanAcked visits the acked rows of a group in item order and returns the
// changelog offset that they reach. visit must not call the Partition.
func (p *Partition) ScanAcked(group string, visit func(item string, value []byte) error) (int64, error) {
	if p.store == nil {
		return 0, errNoTable
	}
	return p.store.scanGroup(group, visit)
}

// AckedUnder reads the acked values whose keys begin with each of the prefixes,
// by prefix and key. Of a prefix with more than most of them it reads most+1, any.
// No prefix may begin with another one.
func (p *Partition) AckedUnder(prefixes []string, most int) (map[string]map[string][]byte, error) {
	if p.store == nil {
		return nil, errNoTable
	}
	return p.store.ackedUnder(prefixes, most)
}

// Snapshot lets read see the table as it stands on disk: values and index of
// one moment, the effect of a prefix of the changelog. Show brings newer rows
// there. read must not keep the snapshot.
func (p *Partition) Snapshot(read func(*Snapshot) error) error {
	if p.store == nil {
		return errNoTable
	}
	return p.store.read(read)
}

// Show begins to bring acked rows to where Snapshot sees them, unless some are
// on their way there already. It says whether all are there.
func (p *Partition) Show() (all bool, err error) {
	if p.store == nil {
		return false, errNoTable
	}
	return p.store.show()
}

// own takes a recovered partition over: keys whose newest changelog record is
// stale are written again, then the owner runs beside the handler until the
// partition is lost. Losing it may overtake this.
func (p *Partition) own(a *attempt) error {
	if !a.cfg.weak.has(WithoutRepair) {
		if err := p.repair(a); err != nil {
			return err
		}
	}
	if p.owner != nil {
		p.accompany(a, p.owner.Run)
	}
	return nil
}

// follow keeps a partition that is owned elsewhere.
func (p *Partition) follow(a *attempt) {
	if f, ok := p.owner.(Follower); ok {
		p.accompany(a, f.Follow)
	}
}

// accompany runs beside the partition until it is lost. Of a partition that is
// reopened, whoever comes first stays.
func (p *Partition) accompany(a *attempt, run func(context.Context) error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lost || p.owned != nil {
		return
	}
	ctx, cancel := context.WithCancelCause(a.ctx)
	p.cancel, p.owned = cancel, make(chan struct{})
	go func() {
		defer close(p.owned)
		if err := a.guard(func() error { return run(ctx) }); err != nil && ctx.Err() == nil {
			a.fail(fmt.Errorf("group %s, partition %d: %w", a.group, p.number, err))
		}
	}()
}

// repair writes the winners again, byte for byte: a repair is no event, and
// leaves every sequence as it is.
func (p *Partition) repair(a *attempt) error {
	keys := p.store.staleKeys()
	for _, key := range keys {
		v, err := p.store.get(key)
		if err != nil {
			return err
		}
		if err := p.lane.put(key, v, true); err != nil {
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
	p.mu.Lock()
	p.lost = true
	cancel, owned := p.cancel, p.owned
	p.mu.Unlock()
	if cancel != nil {
		cancel(fmt.Errorf("partition %d moved away or is closing", p.number))
		<-owned
	}
	p.lane.close()
}
