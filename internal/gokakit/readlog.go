package gokakit

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// ReadLog reads the table's changelog from one offset up to and including
// another, in order, and visits each record that compaction has left. It ends
// early with ctx.
func (p *Partition) ReadLog(ctx context.Context, from, to int64, visit func(key string, value []byte, offset int64) error) error {
	b, err := p.logs.bounds(p.table, p.number)
	if err != nil {
		return err
	}
	from, to = max(from, b.start), min(to, b.end-1)
	return readLog(ctx, p.client, p.table, p.number, from, to, func(records []*kgo.Record) error {
		for _, r := range records {
			if err := visit(string(r.Key), r.Value, r.Offset); err != nil {
				return err
			}
		}
		return nil
	})
}

// readLog visits the records of a changelog from one offset up to and
// including another, some at a time; they must not be kept. The log must reach
// from from to to. It ends early with ctx.
func readLog(ctx context.Context, c Client, table string, partition int, from, to int64, visit func([]*kgo.Record) error) error {
	if from > to {
		return nil
	}
	cl, err := c.franz(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{
		table: {int32(partition): kgo.NewOffset().At(from)},
	}), kgo.ConsumeResetOffset(kgo.NoResetOffset()), kgo.FetchMaxWait(100*time.Millisecond), kgo.FetchMaxPartitionBytes(2<<20))
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
			return fmt.Errorf("reading changelog %s/%d: %w", table, partition, errs[0].Err)
		}
		records := fetches.Records()
		if n := len(records); n > 0 && records[n-1].Offset >= to {
			for n > 0 && records[n-1].Offset > to {
				n--
			}
			return visit(records[:n])
		}
		if err := visit(records); err != nil {
			return err
		}
	}
}
