package drills

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tidemark/tidemark/drills/oracle"
	"github.com/tidemark/tidemark/drills/paging"
	"github.com/tidemark/tidemark/drills/reading"
)

// proof says which drill must notice that a mechanism is switched off.
type proof struct {
	mechanism string
	drill     string
	rounds    int
	// stuck: that something does not come back is a difference too.
	stuck bool
}

var proofs = []proof{
	{mechanism: "gate", drill: "kill-slow", rounds: 6},
	{mechanism: "atomicity", drill: "kill", rounds: 6},
	{mechanism: "barrier", drill: "kill-burst", rounds: 6},
	{mechanism: "order", drill: "produce-errors", rounds: 6},
	{mechanism: "duplicates", drill: "duplicates", rounds: 1},
	{mechanism: "hiding", drill: "duplicates", rounds: 1},
	{mechanism: "fence", drill: "zombie", rounds: 3},
	{mechanism: "fence", drill: "late-append", rounds: 1},
	{mechanism: "version", drill: "late-append", rounds: 1},
	{mechanism: "repair", drill: "late-append", rounds: 1},
	{mechanism: "ownership", drill: "standby-late", rounds: 1},
	{mechanism: "log-check", drill: "offset-ahead", rounds: 1, stuck: true},
	{mechanism: "rebuild", drill: "zombie", rounds: 1, stuck: true},
	{mechanism: "whole-list", drill: "rebalance-while-paging", rounds: 1},
	{mechanism: "whole-list", drill: "kill-likers", rounds: 1},
	{mechanism: "popping", drill: "kill-likers", rounds: 1},
	{mechanism: "operation", drill: "lost-response", rounds: 1},
	{mechanism: "floor", drill: "redis-late-task", rounds: 1},
	{mechanism: "generation", drill: "redis-old-generation", rounds: 1},
	{mechanism: "stamp", drill: "redis-failover", rounds: 1},
	{mechanism: "one-writer", drill: "redis-floor-kill", rounds: 1},
	{mechanism: "minimum", drill: "redis-floor-kill", rounds: 1},
}

// Proven is what became of one proof.
type Proven struct {
	Mechanism string  `json:"mechanism"` // that was switched off
	Drill     string  `json:"drill"`
	Noticed   bool    `json:"noticed"`
	Attempts  int     `json:"attempts"`
	Seconds   float64 `json:"seconds"`
	Result    Result  `json:"result"` // of the last attempt
}

// maxAttempts: what happens when is drawn from a seed, and a seed may be kind.
const maxAttempts = 4

// SelfTest switches off one mechanism after the other and has a drill look for
// the difference. One that finds none cannot be relied on.
func SelfTest(ctx context.Context, o Options) ([]Proven, error) {
	all := make([]Proven, len(proofs))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(max(1, o.Parallel))
	for i, p := range proofs {
		g.Go(func() (err error) {
			all[i], err = p.prove(ctx, o)
			return err
		})
	}
	return all, g.Wait()
}

func (p proof) prove(ctx context.Context, o Options) (Proven, error) {
	out, start := Proven{Mechanism: p.mechanism, Drill: p.drill}, time.Now()
	var err error
	if o.Weakness, err = ParseWeakness([]string{p.mechanism}); err != nil {
		return out, err
	}
	o.Keep = false
	for out.Attempts = 1; ; out.Attempts++ {
		r, err := Run(ctx, []Entry{{p.drill, p.rounds}}, o)
		if err != nil {
			return out, err
		}
		out.Result, out.Seconds = r.Results[0], time.Since(start).Seconds()
		out.Noticed = p.telling(out.Result.Found)
		if out.Result.Verdict == Failed {
			return out, fmt.Errorf("without %s: %s", p.mechanism, out.Result.Reason)
		}
		if out.Noticed || out.Attempts == maxAttempts {
			return out, nil
		}
		o.Seed++
	}
}

// telling says whether something was found that a slow machine does not
// explain: with a mechanism switched off, patience is short, and what is
// compared before all is quiet differs.
func (p proof) telling(found map[oracle.Class]int64) bool {
	if p.stuck && found[Stuck] > 0 {
		return true
	}
	for class := range found {
		if class != Stuck && class != Unquiet && (found[Unquiet] == 0 || whileRunning[class]) {
			return true
		}
	}
	return false
}

// whileRunning are the classes that need no quiet.
var whileRunning = map[oracle.Class]bool{
	oracle.EarlyCommit: true, oracle.CommitBack: true, oracle.SequenceConflict: true, oracle.DisplayBack: true,
	oracle.Negative: true, oracle.Unfenced: true, Contended: true,
	DecidedTwice: true, reading.Wrong: true, reading.Below: true, CacheWrong: true,
	paging.Missing: true, paging.Twice: true, paging.Disorder: true, paging.Short: true,
}

// WriteProofs writes what a self-test found for people.
func WriteProofs(w io.Writer, all []Proven) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "WITHOUT\tDRILL\tNOTICED\tATTEMPTS\tSECONDS\tBY")
	for _, p := range all {
		found := map[string]int{}
		for class, n := range p.Result.Found {
			found[string(class)] = int(n)
		}
		fmt.Fprintf(tw, "%s\t%s\t%v\t%d\t%.0f\t%s\n", p.Mechanism, p.Drill, p.Noticed, p.Attempts, p.Seconds, tally(found))
	}
	return tw.Flush()
}
