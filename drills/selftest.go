package drills

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"
	"time"
)

// proof says which drill must notice that a mechanism is switched off.
type proof struct {
	mechanism string
	drill     string
	rounds    int
}

var proofs = []proof{
	{"gate", "kill-burst", 6},
	{"barrier", "kill-burst", 6},
	{"fence", "zombie", 3},
	{"version", "zombie", 3},
	{"repair", "zombie", 3},
	{"log-check", "offset-ahead", 1},
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
	var all []Proven
	for _, p := range proofs {
		one, err := p.prove(ctx, o)
		if err != nil {
			return all, err
		}
		all = append(all, one)
	}
	return all, nil
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
		out.Noticed = out.Result.Verdict == Different
		if out.Result.Verdict == Failed {
			return out, fmt.Errorf("without %s: %s", p.mechanism, out.Result.Reason)
		}
		if out.Noticed || out.Attempts == maxAttempts {
			return out, nil
		}
		o.Seed++
	}
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
