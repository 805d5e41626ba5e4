package faultbroker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tidemark/tidemark/internal/embedded"
)

// ServeConfig says how the broker's process runs.
type ServeConfig struct {
	DataDir string
	Ports   []int  // of the brokers of the cluster, one or more; 0: any
	Admin   string // host:port for faults; port 0 takes any
	Seed    uint64 // of delays
	Out     io.Writer
	Logger  *slog.Logger
}

// Ready is the line that Serve writes to Out once it serves.
type Ready struct {
	Kafka []string `json:"kafka"` // host:port of each broker
	Admin string   `json:"admin"`
}

// Serve runs the broker until ctx ends, then stops it gracefully.
func Serve(ctx context.Context, cfg ServeConfig) (err error) {
	l := newLinks(cfg.Seed)
	broker, err := embedded.StartKafka(embedded.KafkaConfig{DataDir: cfg.DataDir, Port: cfg.Ports[0], Listen: l.listen, Logger: cfg.Logger})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, broker.Stop()) }()
	nodes, err := startNodes(broker, l, cfg.Ports[1:])
	if err != nil {
		return err
	}
	at, err := net.Listen("tcp", cfg.Admin)
	if err != nil {
		return fmt.Errorf("listening for faults: %w", err)
	}
	s := &server{cluster: broker.Cluster(), links: l, nodes: nodes, faults: map[int]*installed{}}
	web := &http.Server{Handler: s.handler(), ReadHeaderTimeout: 5 * time.Second}
	if err := json.NewEncoder(cfg.Out).Encode(Ready{Kafka: nodes.addresses(), Admin: at.Addr().String()}); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = web.Close() })
	defer stop()
	if err := web.Serve(at); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving faults: %w", err)
	}
	return nil
}

// server holds the installed faults.
type server struct {
	cluster *kfake.Cluster
	links   *links
	nodes   *nodes

	mu     sync.Mutex
	last   int
	faults map[int]*installed
}

type installed struct {
	fault  Fault
	handle *kfake.FaultHandle // of Answer
}

// Installed is a fault and how often it has hit.
type Installed struct {
	ID    int   `json:"id"`
	Fault Fault `json:"fault"`
	Hits  int   `json:"hits"`
}

func (s *server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /faults", s.install)
	mux.HandleFunc("GET /faults/{id}", s.show)
	mux.HandleFunc("DELETE /faults/{id}", s.heal)
	mux.HandleFunc("DELETE /faults", s.healAll)
	mux.HandleFunc("POST /compact", s.compact)
	mux.HandleFunc("POST /nodes/{id}/{what}", s.node)
	return mux
}

const maxFaultBytes = 64 << 10

func (s *server) install(w http.ResponseWriter, r *http.Request) {
	var f Fault
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxFaultBytes)).Decode(&f); err != nil {
		http.Error(w, "reading the fault: "+err.Error(), http.StatusBadRequest)
		return
	}
	if err := f.check(); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last++
	i := &installed{fault: f}
	s.faults[s.last] = i
	if f.Kind == Answer {
		i.handle = s.cluster.Fault(f.answer())
	} else {
		s.links.add(s.last, f)
	}
	_ = json.NewEncoder(w).Encode(s.describe(s.last, i))
}

// answer is the fault as kfake has it; the fault is checked.
func (f Fault) answer() kfake.Fault {
	key, _ := requestKey(f.Request)
	kafkaError, _ := errorOf(f.Error)
	count := f.Count
	if count == 0 {
		count = -1
	}
	return kfake.Fault{Keys: []kmsg.Key{key}, Topic: f.Topic, Err: kafkaError, Count: count}
}

func (s *server) describe(id int, i *installed) Installed {
	d := Installed{ID: id, Fault: i.fault}
	if i.handle != nil {
		d.Hits = i.handle.Hits()
	} else {
		d.Hits = s.links.hitsOf(id)
	}
	return d
}

func (s *server) find(w http.ResponseWriter, r *http.Request) (int, *installed) {
	id, err := strconv.Atoi(r.PathValue("id"))
	i := s.faults[id]
	if err != nil || i == nil {
		http.Error(w, "there is no such fault", http.StatusNotFound)
		return 0, nil
	}
	return id, i
}

func (s *server) show(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if id, i := s.find(w, r); i != nil {
		_ = json.NewEncoder(w).Encode(s.describe(id, i))
	}
}

func (s *server) heal(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if id, i := s.find(w, r); i != nil {
		d := s.describe(id, i)
		s.remove(id, i)
		_ = json.NewEncoder(w).Encode(d)
	}
}

func (s *server) healAll(w http.ResponseWriter, _ *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, i := range s.faults {
		s.remove(id, i)
	}
	w.WriteHeader(http.StatusNoContent)
}

// compact has every compacted topic keep the newest record of each key only,
// whatever its min.compaction.lag.ms.
func (s *server) compact(w http.ResponseWriter, _ *http.Request) {
	s.cluster.Compact()
	w.WriteHeader(http.StatusNoContent)
}

func (s *server) remove(id int, i *installed) {
	delete(s.faults, id)
	if i.handle != nil {
		i.handle.Remove()
	} else {
		s.links.remove(id)
	}
}
