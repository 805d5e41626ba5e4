package risk

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark/tidemark/internal/filestamp"
	"github.com/tidemark/tidemark/internal/pause"
	"github.com/tidemark/tidemark/topology"
)

// Config of a Decider.
type Config struct {
	// RulesFile is a rule file; empty: there are no rules.
	RulesFile string
	// Service is asked about what no rule decided; nil: there is none.
	Service *ServiceConfig
	// AskAlways asks it about everything; the stricter verdict stands.
	AskAlways bool
	// Unavailable is the verdict where the service gives no answer.
	Unavailable Action
	Logger      *slog.Logger          // default: discard
	Registerer  prometheus.Registerer // nil: no metrics
}

// lookEvery is the time between two looks at whether the files have changed.
const lookEvery = time.Second

// Decider decides with the newest rules that can be used, and a service. It is
// safe for concurrent use.
type Decider struct {
	cfg     Config
	log     *slog.Logger
	service *service // nil: none
	m       *measures
	current atomic.Pointer[loaded]

	seen filestamp.Seen // of the rules and their lists; of renew alone

	mu        sync.Mutex
	badRules  error // why the rule file is not what is in use
	badSecret error // the same of the secret's
	asking    error // the service's last failure; nil after an answer
}

// loaded are rules in use, and how often each matched since.
type loaded struct {
	rules *Rules
	at    time.Time
	hits  map[*Rule]*atomic.Int64
}

// New reads the files once, to say now what is wrong with them.
func New(c Config) (*Decider, error) {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	d := &Decider{cfg: c, log: c.Logger.With("component", "risk")}
	var err error
	if d.m, err = newMeasures(c.Registerer); err != nil {
		return nil, err
	}
	rules := new(Rules)
	if c.RulesFile != "" {
		if rules, d.seen, err = load(c.RulesFile); err != nil {
			return nil, err
		}
	}
	d.use(rules)
	if c.Service != nil {
		if d.service, err = newService(*c.Service); err != nil {
			return nil, err
		}
	}
	return d, nil
}

func (d *Decider) use(r *Rules) {
	l := &loaded{rules: r, at: time.Now().UTC(), hits: make(map[*Rule]*atomic.Int64, len(r.list))}
	for _, rule := range r.list {
		l.hits[rule] = new(atomic.Int64)
	}
	d.current.Store(l)
	d.m.inUse(r)
}

// Decide gives a verdict on a command that would begin a relation. It never
// fails: where the service does not answer, the configuration decides.
func (d *Decider) Decide(ctx context.Context, q Question) Verdict {
	v := d.byRules(q)
	switch {
	case d.service == nil:
	case v.Source == Nobody:
		v = d.byService(ctx, q)
	case d.cfg.AskAlways:
		// A rule's verdict needs no answer to stand.
		if asked := d.byService(ctx, q); asked.Source == ByService {
			v = stricter(v, asked)
		}
	}
	d.m.decided(v)
	return v
}

func (d *Decider) byRules(q Question) Verdict {
	l := d.current.Load()
	ruling := l.rules.Decide(q)
	for _, rule := range ruling.Tried {
		l.hits[rule].Add(1)
		d.m.tried(rule.Verdict)
	}
	if ruling.Rule == nil {
		return Verdict{}
	}
	l.hits[ruling.Rule].Add(1)
	return ruling.Rule.Verdict
}

func (d *Decider) byService(ctx context.Context, q Question) Verdict {
	start := time.Now()
	v, err := d.service.ask(ctx, q)
	d.m.asked.WithLabelValues(resultOf(err)).Observe(time.Since(start).Seconds())
	if ctx.Err() == nil {
		d.asked(err)
	}
	if err == nil {
		return v
	}
	v = Verdict{Action: d.cfg.Unavailable, Reason: ReasonUnavailable, Source: Unavailable}
	if v.Action == Hide {
		v.By = topology.HiddenByRisk
	}
	return v
}

// asked remembers how asking went, and says in the log when that turned.
func (d *Decider) asked(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case err != nil && d.asking == nil:
		d.log.Warn("the risk service gives no answer; commands get the verdict of risk.service.unavailable", "error", err, "verdict", d.cfg.Unavailable.String())
	case err == nil && d.asking != nil:
		d.log.Info("the risk service answers again")
	}
	d.asking = err
}

// Run looks once a second whether files have changed, until ctx ends.
func (d *Decider) Run(ctx context.Context) error {
	for pause.For(ctx, lookEvery) {
		d.renew()
	}
	if d.service != nil {
		d.service.client.CloseIdleConnections()
	}
	return nil
}

// renew reads again what has changed. What cannot be used leaves in use what was.
func (d *Decider) renew() {
	if d.cfg.RulesFile != "" && d.seen.Changed() {
		d.renewed(&d.badRules, d.reload())
	}
	if d.service != nil && d.service.secretChanged() {
		d.renewed(&d.badSecret, d.service.readSecret())
	}
}

func (d *Decider) renewed(what *error, failure error) {
	if failure != nil {
		d.log.Warn("a changed file of risk cannot be used; what was read before stays in use", "error", failure)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	*what = failure
}

func (d *Decider) reload() (err error) {
	var rules *Rules
	if rules, d.seen, err = load(d.cfg.RulesFile); err != nil {
		d.m.reloads.WithLabelValues("error").Inc()
		d.m.outdated.Set(1)
		return err
	}
	d.m.reloads.WithLabelValues("ok").Inc()
	d.use(rules)
	d.log.Info("new rules of risk are in use", "version", rules.version, "rules", len(rules.list))
	return nil
}

// Ready says that commands can be decided: they always can.
func (d *Decider) Ready() error { return nil }

// Detail says what is in use, and what is not as it should be.
func (d *Decider) Detail() string {
	l := d.current.Load()
	text := fmt.Sprintf("%d rules, version %s", len(l.rules.list), l.rules.version)
	if d.cfg.RulesFile == "" {
		text = "no rules"
	}
	failure, asking := d.failures()
	if failure != nil {
		text += fmt.Sprintf("; since %s: %v", l.at.Format(time.RFC3339), failure)
	}
	if asking != nil {
		text += fmt.Sprintf("; the service gives no answer: %v", asking)
	}
	return text
}

func (d *Decider) failures() (failure, asking error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return errors.Join(d.badRules, d.badSecret), d.asking
}

// Report is what an operator sees of a process's rules.
type Report struct {
	Version  string       `json:"version"`
	LoadedAt time.Time    `json:"loadedAt"`
	Failure  string       `json:"failure,omitempty"` // why a changed file is not in use
	Service  string       `json:"service,omitempty"` // its last failure; empty: none, or no service
	Rules    []RuleReport `json:"rules"`
}

// RuleReport is a rule and how often it decided, or would have with dryRun, since
// LoadedAt.
type RuleReport struct {
	Name    string `json:"name"`
	Action  string `json:"action"`
	By      string `json:"by,omitempty"`
	Reason  string `json:"reason"`
	DryRun  bool   `json:"dryRun"`
	Matched int64  `json:"matched"`
}

// Report tells what is in use.
func (d *Decider) Report(context.Context) (any, error) {
	l := d.current.Load()
	r := Report{Version: l.rules.version, LoadedAt: l.at, Rules: make([]RuleReport, len(l.rules.list))}
	failure, asking := d.failures()
	if failure != nil {
		r.Failure = failure.Error()
	}
	if asking != nil {
		r.Service = asking.Error()
	}
	for i, rule := range l.rules.list {
		r.Rules[i] = RuleReport{rule.Name, rule.Verdict.Action.String(), rule.Verdict.By.String(), rule.Verdict.Reason, rule.DryRun, l.hits[rule].Load()}
	}
	return r, nil
}
