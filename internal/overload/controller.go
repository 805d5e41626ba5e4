package overload

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Signal is one thing that a process can be pressed by. At Limit it bears as
// much as it should.
type Signal struct {
	Name         string
	Value, Limit float64
	// Most is the level that the signal brings at most: what later ones give up
	// would not help against it. 0: Refuse.
	Most Level
}

// at is by how much the signal presses a process of a level. One that has
// brought all that it may keeps that level, and brings no further one.
func (s Signal) at(l Level, r Rules) float64 {
	p := s.Value / s.Limit
	switch {
	case s.Most == 0 || l < s.Most:
		return p
	case l == s.Most:
		return min(p, (r.High+r.Low)/2)
	}
	return 0
}

// pressure is the highest of all, and of which signal, at a level.
func pressure(signals []Signal, l Level, r Rules) (p float64, name string) {
	for _, s := range signals {
		if q := s.at(l, r); q > p || name == "" {
			p, name = q, s.Name
		}
	}
	return p, name
}

// Config of a Controller.
type Config struct {
	Guard *Guard
	Rules Rules // zero: DefaultRules
	// Interval between two looks: 1 s.
	Interval time.Duration
	// Latency of commands, by its 99th percentile, that is too long: 500 ms. Of a
	// shard that takes longer fewer may be in flight.
	Latency time.Duration
	// More signals, asked for once an interval; may be nil.
	More func() []Signal
	// Forced is the level that an operator wants; ok is false when the controller
	// decides. nil: it does.
	Forced func() (l Level, ok bool)
	// Apply makes a level take effect; called at each change, first with Normal.
	Apply      func(Level)
	Logger     *slog.Logger
	Registerer prometheus.Registerer // nil: no metrics
}

// Controller looks at a process's pressure and sets its level.
type Controller struct {
	cfg   Config
	state State
	why   atomic.Pointer[string]
	own   atomic.Pointer[own]

	level     prometheus.Gauge
	pressures *prometheus.GaugeVec
}

// NewController makes one; Run starts it.
func NewController(c Config) (*Controller, error) {
	if c.Rules == (Rules{}) {
		c.Rules = DefaultRules()
	}
	if c.Interval == 0 {
		c.Interval = time.Second
	}
	if c.Latency == 0 {
		c.Latency = 500 * time.Millisecond
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Apply == nil {
		c.Apply = func(Level) {}
	}
	d := &Controller{
		cfg:       c,
		level:     prometheus.NewGauge(prometheus.GaugeOpts{Name: "tidemark_overload_level", Help: "How far the process has gone to keep its commands: 0 normal, 1 slow-display, 2 pause-consumers, 3 tight-limits, 4 bound-reads, 5 refuse."}),
		pressures: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "tidemark_overload_pressure", Help: "What presses the process, by signal; 1 is as much as it should bear."}, []string{"signal"}),
	}
	return d, d.register(c.Registerer)
}

func (d *Controller) register(reg prometheus.Registerer) error {
	if reg == nil {
		return nil
	}
	g := d.cfg.Guard
	errs := []error{reg.Register(d.level), reg.Register(d.pressures)}
	for sort, name := range []string{"commands", "queries"} {
		labels := prometheus.Labels{"sort": name}
		errs = append(errs,
			reg.Register(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "tidemark_overload_refused_total", Help: "Requests that were refused at once since too many were in flight, or by the level.", ConstLabels: labels},
				func() float64 { return float64(g.refused[sort].Load()) })),
			reg.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "tidemark_overload_in_flight", Help: "Commands of the fullest shard, and queries, that are being served.", ConstLabels: labels},
				func() float64 {
					if sort == 1 {
						return float64(g.queries.Load())
					}
					_, n := g.fullest()
					return float64(n)
				})))
	}
	return errors.Join(errs...)
}

// Run looks every interval until ctx ends.
func (d *Controller) Run(ctx context.Context) error {
	d.cfg.Apply(d.cfg.Guard.Level())
	tick := time.NewTicker(d.cfg.Interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			d.look(now)
		}
	}
}

// look measures and decides once.
func (d *Controller) look(now time.Time) {
	g := d.cfg.Guard
	share, _ := g.fullest()
	signals := []Signal{
		{Name: "commands-in-flight", Value: share, Limit: inFlightHigh},
		{Name: "command-latency", Value: g.pace(d.cfg.Latency).Seconds(), Limit: d.cfg.Latency.Seconds()},
		{Name: "queries-in-flight", Value: float64(g.queries.Load()) / float64(g.queriesMost), Limit: inFlightHigh},
	}
	if d.cfg.More != nil {
		signals = append(signals, d.cfg.More()...)
	}
	for _, s := range signals {
		d.pressures.WithLabelValues(s.Name).Set(s.Value / s.Limit)
	}
	p, why := pressure(signals, d.state.Level, d.cfg.Rules)
	d.state = d.state.Next(p, now, d.cfg.Rules)
	want := d.state.Level
	d.own.Store(&own{want, describe(want, why)})
	if d.cfg.Forced != nil {
		if l, ok := d.cfg.Forced(); ok {
			want, why = l, byOperator
		}
	}
	d.set(want, why)
}

// inFlightHigh is the share in flight that is too much: below what is refused, so
// that levels come before refusals.
const inFlightHigh = 0.75

func (d *Controller) set(want Level, why string) {
	text := describe(want, why)
	d.why.Store(&text)
	was := Level(d.cfg.Guard.level.Swap(int32(want)))
	d.level.Set(float64(want))
	if was != want {
		d.cfg.Logger.Warn("overload level changed", "component", "overload", "from", was.String(), "to", want.String(), "signal", why)
		d.cfg.Apply(want)
	}
}

const byOperator = "set by an operator"

func describe(l Level, why string) string {
	if l == Normal && why != byOperator {
		return l.String()
	}
	return l.String() + " (" + why + ")"
}

// own is the level that the process would have without an operator.
type own struct {
	level Level
	text  string
}

// Own is the level that the process has gone to by itself, and why.
func (d *Controller) Own() (Level, string) {
	if o := d.own.Load(); o != nil {
		return o.level, o.text
	}
	return Normal, Normal.String()
}

// Detail is the level and what brought it, for readiness.
func (d *Controller) Detail() string {
	if text := d.why.Load(); text != nil {
		return *text
	}
	return Normal.String()
}
