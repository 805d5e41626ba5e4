package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/pprof"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/tidemark/tidemark/drills/proc"
	"github.com/tidemark/tidemark/internal/gokakit"
	"github.com/tidemark/tidemark/processors/likers"
	"github.com/tidemark/tidemark/processors/projection"
	"github.com/tidemark/tidemark/topology"
)

// workerCommand runs one processor alone in a process: workerCommand SPEC, a
// workerSpec as JSON.
const workerCommand = "worker"

type workerSpec struct {
	Likers   bool            `json:"likers,omitempty"` // answering others; else a projection
	Instance string          `json:"instance"`
	Brokers  []string        `json:"brokers"`
	Topology topology.Config `json:"topology"`
	StateDir string          `json:"stateDir"`
	Profile  string          `json:"profile,omitempty"` // of the CPU, until ready for the first time
}

// sign is a line that a worker writes when the reason why it is not ready
// changes; no reason: it is.
type sign struct {
	Reason      string `json:"reason"`
	Generations int    `json:"generations"`
}

func runWorker(spec string) error {
	var s workerSpec
	if err := json.Unmarshal([]byte(spec), &s); err != nil {
		return fmt.Errorf("reading the worker's spec: %w", err)
	}
	topo, err := topology.New(s.Topology)
	if err != nil {
		return err
	}
	reg := prometheus.NewRegistry()
	run, ready, err := s.processor(topo, reg)
	if err != nil {
		return err
	}
	if s.Profile != "" {
		f, err := os.Create(s.Profile)
		if err != nil {
			return err
		}
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	go tell(ctx, ready, reg)
	return run(ctx)
}

// processor makes what the worker runs.
func (s workerSpec) processor(topo *topology.Topology, reg prometheus.Registerer) (run func(context.Context) error, ready func() error, err error) {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	client := gokakit.Client{Brokers: s.Brokers}
	if !s.Likers {
		p, err := projection.New(projection.Config{
			Client: client, Topology: topo,
			Manifest: topology.NewManifest(1, 1, 1, topology.DefaultBucketSpace(), topo.Config.CountPartitions),
			StateDir: s.StateDir, Instance: s.Instance, Registerer: reg, Logger: log,
		})
		if err != nil {
			return nil, nil, err
		}
		return p.Run, p.Ready, nil
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	l, err := likers.New(likers.Config{
		Client: client, Topology: topo, Reverse: topology.NewReverseGeneration(1, topo.Config.LikerPartitions, topo.Config.ReverseShards),
		StateDir: s.StateDir, Instance: s.Instance, Advertise: listener.Addr().String(), Registerer: reg, Logger: log,
	})
	if err != nil {
		return nil, nil, err
	}
	return func(ctx context.Context) error {
		g, ctx := errgroup.WithContext(ctx)
		g.Go(func() error { return l.Run(ctx) })
		g.Go(func() error {
			return likers.NewServer(l, likers.ServerConfig{Listener: listener, Logger: log}).Run(ctx)
		})
		return g.Wait()
	}, l.Ready, nil
}

// tell writes signs until ctx ends.
func tell(ctx context.Context, ready func() error, reg prometheus.Gatherer) {
	out, said := json.NewEncoder(os.Stdout), "nothing"
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		reason := ""
		if err := ready(); err != nil {
			reason = err.Error()
		}
		if reason != said {
			said = reason
			if reason == "" {
				pprof.StopCPUProfile() // nothing when none runs
			}
			_ = out.Encode(sign{reason, generations(reg)})
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func generations(reg prometheus.Gatherer) (n int) {
	families, _ := reg.Gather()
	for _, f := range families {
		if f.GetName() == "tidemark_processor_generations_total" {
			for _, m := range f.Metric {
				n += int(m.GetCounter().GetValue())
			}
		}
	}
	return n
}

// worker is a worker's process, seen from outside.
type worker struct {
	*proc.Process
	started time.Time

	mu          sync.Mutex
	joined      time.Time // when it first read a log
	ready       time.Time // when it was first ready
	generations int       // most that were told
	reasons     []string
	isReady     chan struct{}
}

func startWorker(spec workerSpec, dir string) (*worker, error) {
	text, err := json.Marshal(spec)
	if err != nil {
		return nil, err
	}
	w := &worker{started: time.Now(), isReady: make(chan struct{})}
	w.Process, err = proc.Start(proc.Config{Name: "worker " + spec.Instance, Args: []string{workerCommand, string(text)}, Log: filepath.Join(dir, spec.Instance+".log"), OnLine: w.hear})
	return w, err
}

func (w *worker) hear(line []byte) {
	var s sign
	if json.Unmarshal(line, &s) != nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.generations = max(w.generations, s.Generations)
	if s.Reason == "" {
		if w.ready.IsZero() {
			w.ready = time.Now()
			close(w.isReady)
		}
		return
	}
	if w.joined.IsZero() && s.Generations > 0 {
		w.joined = time.Now()
	}
	w.reasons = append(w.reasons, s.Reason)
}

// awaitReady waits until the worker consumes.
func (w *worker) awaitReady(ctx context.Context) error {
	select {
	case <-w.isReady:
		return nil
	case <-w.Done():
		return w.Died()
	case <-ctx.Done():
		return ctx.Err()
	}
}
