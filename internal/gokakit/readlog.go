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
