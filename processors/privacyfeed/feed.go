package privacyfeed

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark/tidemark/internal/gokakit"
	"github.com/tidemark/tidemark/internal/quarantine"
	"github.com/tidemark/tidemark/privacy"
	"github.com/tidemark/tidemark/topology"
)

// Config says where a feed runs.
type Config struct {
	Client   gokakit.Client
	Topology *topology.Topology
	// Apply stores an event, as privacy.Store.Apply does.
	Apply func(context.Context, privacy.Event) (applied bool, err error)
	// Instance is unique among the processes that run the feed.
	Instance   string
	Logger     *slog.Logger
	Registerer prometheus.Registerer // optional
	Now        func() time.Time      // for metrics only; default time.Now
}

// Feed is a member of the privacy group.
type Feed struct {
	cfg         Config
	setAside    string // topic
	events      map[string]prometheus.Counter
	lag         prometheus.Gauge
	quarantined *quarantine.Tally
	processor   *gokakit.Processor
	ctx         context.Context // of Run
}

// Results of an event; also the values of the metric label.
const (
	applied     = "applied"
	passed      = "passed"
	quarantined = "quarantined"
)

// New checks the configuration; it does not talk to Kafka yet.
func New(cfg Config) (*Feed, error) {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	f := &Feed{cfg: cfg, setAside: cfg.Topology.Topic(topology.Quarantine), events: map[string]prometheus.Counter{}}
	events := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "tidemark_privacy_events_total", Help: "Privacy events, by what became of them."}, []string{"result"})
	for _, r := range []string{applied, passed, quarantined} {
		f.events[r] = events.WithLabelValues(r)
	}
	f.lag = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "tidemark_privacy_apply_lag_seconds", Help: "Age of the newest event when it was applied."})
	var err error
	if f.quarantined, err = quarantine.NewTally(topology.PrivacyGroup, cfg.Registerer, cfg.Logger); err != nil {
		return nil, fmt.Errorf("privacy feed: %w", err)
	}
	if cfg.Registerer != nil {
		for _, c := range []prometheus.Collector{events, f.lag} {
			if err := cfg.Registerer.Register(c); err != nil {
				return nil, fmt.Errorf("privacy feed: registering metrics: %w", err)
			}
		}
	}
	f.processor, err = gokakit.NewProcessor(gokakit.ProcessorConfig{
		Client:     cfg.Client,
		Topology:   cfg.Topology,
		Group:      topology.PrivacyGroup,
		Handle:     f.handle,
		Instance:   cfg.Instance,
		Logger:     cfg.Logger,
		Registerer: cfg.Registerer,
	})
	if err != nil {
		return nil, err
	}
	return f, nil
}

// Run applies events until ctx ends; it returns nil then. It is called once.
func (f *Feed) Run(ctx context.Context) error {
	f.ctx = ctx
	return f.processor.Run(ctx)
}

// Ready is nil while events are applied, and else says why they are not.
func (f *Feed) Ready() error { return f.processor.Ready() }

// applyLimit bounds one write: an owner that waits longer loses its partitions
// anyway, and a stop waits as long.
const applyLimit = 3 * time.Second

// handle returns only when the database has the event: what it returns nil for
// is committed. Unlike the handlers of tables it asks the outside; what makes
// that harmless is the version.
func (f *Feed) handle(p *gokakit.Partition, r gokakit.Record) error {
	e, no := decode(r)
	if no != nil {
		f.events[quarantined].Inc()
		f.quarantined.Add(r, no.Reason)
		key, value := no.Record(r)
		return p.Emit(f.setAside, key, value)
	}
	ctx, cancel := context.WithTimeout(f.ctx, applyLimit)
	defer cancel()
	ok, err := f.cfg.Apply(ctx, e)
	switch {
	case err != nil:
		return err
	case ok:
		f.events[applied].Inc()
		f.lag.Set(f.cfg.Now().Sub(r.Timestamp).Seconds())
	default:
		f.events[passed].Inc()
	}
	return nil
}
