package verify

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/tidemark/tidemark/topology"
)

// Config says where the four sides are. Each function may be called again.
type Config struct {
	// Facts gives every relation of every shard. A yield that fails ends it
	// with that error.
	Facts func(ctx context.Context, yield func(Fact) error) error
	// Projection and Display give the records of the two tables up to where
	// they end when asked; ReadTable makes them.
	Projection, Display Table
	// Likers gives the records of the likers table; nil: lists are not compared.
	Likers Table
	// Reverse is where the rows of Likers must lie.
	Reverse topology.ReverseGeneration
	// Quiet waits until all that was committed before the call is displayed,
	// or says why it is not, when its own deadline has passed. nil: the caller
	// vouches that nothing is under way.
	Quiet func(context.Context) error
	// Activity is a number that changes when a relation changes, such as the
	// end of the facts topic. nil: the caller vouches that nobody writes.
	Activity func(context.Context) (uint64, error)

	// Contract of the bucket space, to check that relations lie in their
	// buckets; nil: not checked.
	Contract *topology.HashContract
	// MaxRelations bounds the memory: about 250 bytes each, 380 with lists.
	// Default 20,000,000.
	MaxRelations int
	// Examples is how many differences of each class are described. Default 20.
	Examples int
	// Progress is told how far the reading is. May be nil. Called by one
	// goroutine at a time.
	Progress func(Progress)
}

// Table gives a table's records, those of one partition in order, to each;
// of several partitions at the same time.
type Table func(ctx context.Context, each func(partition int, key string, value []byte) error) error

// Progress says what a verification is at.
type Progress struct {
	Stage string // quiet, projection, likers, facts, display
	Rows  int64  // read in this stage
}

const progressRows = 1 << 16 // between two calls of Progress

// Run verifies. It never fails: what it could not do is the reason of an
// unknown verdict.
func Run(ctx context.Context, c Config) Report {
	if c.MaxRelations <= 0 {
		c.MaxRelations = 20_000_000
	}
	if c.Examples <= 0 {
		c.Examples = 20
	}
	start := time.Now()
	r := c.run(ctx)
	r.Started, r.Seconds = start.UTC(), time.Since(start).Seconds()
	return r
}

func (c Config) run(ctx context.Context) Report {
	unquiet := c.quiet(ctx)
	before, activityErr := c.activity(ctx)
	sides := NewComparison(c.Contract, c.MaxRelations)
	if c.Likers != nil {
		sides.CompareLists(c.Reverse)
	}
	if err := c.read(ctx, sides); err != nil {
		return Report{Verdict: Unknown, Reason: err.Error(), Rows: sides.rows, Counts: map[Class]int64{}, Differences: []Difference{}}
	}
	found := sides.compare(c.Examples)
	if found.unproven > 0 && unquiet == nil {
		// Whatever the facts already had is under way no longer after this.
		unquiet = errors.Join(activityErr, c.changed(ctx, before))
	}
	return judge(found, sides.rows, unquiet)
}

func (c Config) quiet(ctx context.Context) error {
	if c.Quiet == nil {
		return nil
	}
	c.tell("quiet", 0)
	if err := c.Quiet(ctx); err != nil {
		return fmt.Errorf("the feed is not quiet: %w", err)
	}
	return nil
}

func (c Config) activity(ctx context.Context) (uint64, error) {
	if c.Activity == nil {
		return 0, nil
	}
	n, err := c.Activity(ctx)
	if err != nil {
		return 0, fmt.Errorf("reading the activity: %w", err)
	}
	return n, nil
}

// changed is an error when relations have changed since before.
func (c Config) changed(ctx context.Context, before uint64) error {
	if err := c.quiet(ctx); err != nil {
		return err
	}
	after, err := c.activity(ctx)
	if err == nil && after != before {
		err = errors.New("relations changed during the comparison: stop the writers and verify again")
	}
	return err
}

// read takes the sides. The facts come after the projection and the reverse
// index: then what is above its fact is never explained by time.
func (c Config) read(ctx context.Context, sides *Comparison) error {
	if err := c.readTable(ctx, "projection", c.Projection, sides.Projection); err != nil {
		return err
	}
	if c.Likers != nil {
		if err := c.readTable(ctx, "likers", c.Likers, sides.Likers); err != nil {
			return err
		}
	}
	var rows int64
	err := c.Facts(ctx, func(f Fact) error {
		if rows++; rows%progressRows == 0 {
			c.tell("facts", rows)
		}
		return sides.Fact(f)
	})
	if err != nil {
		return fmt.Errorf("reading facts: %w", err)
	}
	c.tell("facts", rows)
	return c.readTable(ctx, "display", c.Display, sides.Display)
}

func (c Config) readTable(ctx context.Context, stage string, table Table, take func(int, string, []byte) error) error {
	var mu sync.Mutex
	var rows int64
	err := table(ctx, func(partition int, key string, value []byte) error {
		mu.Lock()
		defer mu.Unlock()
		if rows++; rows%progressRows == 0 {
			c.tell(stage, rows)
		}
		return take(partition, key, value)
	})
	if err != nil {
		return fmt.Errorf("reading the %s table: %w", stage, err)
	}
	c.tell(stage, rows)
	return nil
}

func (c Config) tell(stage string, rows int64) {
	if c.Progress != nil {
		c.Progress(Progress{stage, rows})
	}
}

// judge gives the verdict: a proven difference is one whatever is under way;
// any other only when nothing is.
func judge(found result, rows Rows, unquiet error) Report {
	r := Report{
		Verdict: Equal, Quiet: unquiet == nil, Rows: rows, Targets: found.targets, Relations: found.relations,
		Totals: found.totals, Counts: found.counts, Differences: found.differences,
	}
	if r.Differences == nil {
		r.Differences = []Difference{}
	}
	switch {
	case found.proven > 0 || found.unproven > 0 && unquiet == nil:
		r.Verdict = Different
	case found.unproven > 0:
		r.Verdict = Unknown
	}
	if unquiet != nil {
		r.Reason = unquiet.Error()
	}
	return r
}
