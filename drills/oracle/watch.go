package oracle

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tidemark/tidemark/topology"
)

// ClientID of everything the oracle does; no fault is meant for it.
const ClientID = "oracle"

// Watcher reads every topic from its start for as long as a drill runs, and
// checks what can be checked at once.
type Watcher struct {
	topo     *topology.Topology
	brokers  []string
	log      *slog.Logger
	client   *kgo.Client
	admin    *kadm.Client
	findings *Findings
	stop     context.CancelFunc
	tasks    sync.WaitGroup

	mu        sync.Mutex
	moved     *sync.Cond // signalled after each round
	round     int
	positions map[string]map[int32]int64 // next offset that is read
	view      *view
	samples   int64 // commits that were checked
	skipped   int64 // commits that could not be, the broker being broken
}

// watched are the streams that are read.
var watched = []string{topology.BucketChanges, topology.ProjectionTable, topology.PartialCounts, topology.DisplayTable, topology.Quarantine}

// Watch starts to watch the topics of a topology; what is wrong goes to
// findings.
func Watch(brokers []string, topo *topology.Topology, findings *Findings, log *slog.Logger) (*Watcher, error) {
	from := map[string]map[int32]kgo.Offset{}
	w := &Watcher{topo: topo, brokers: brokers, log: log, findings: findings, positions: map[string]map[int32]int64{}, view: newView(topo, findings)}
	w.moved = sync.NewCond(&w.mu)
	for _, name := range watched {
		s := topo.Stream(name)
		from[s.Topic], w.positions[s.Topic] = map[int32]kgo.Offset{}, map[int32]int64{}
		for p := range int32(s.Partitions) {
			from[s.Topic][p] = kgo.NewOffset().AtStart()
		}
	}
	cl, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ClientID(ClientID), kgo.ConsumePartitions(from),
		kgo.KeepControlRecords(), kgo.FetchMaxWait(100*time.Millisecond), kgo.MetadataMinAge(100*time.Millisecond))
	if err != nil {
		return nil, fmt.Errorf("oracle: making a Kafka client: %w", err)
	}
	w.client, w.admin = cl, kadm.NewClient(cl)
	ctx, cancel := context.WithCancel(context.Background())
	w.stop = cancel
	w.tasks.Go(func() { w.read(ctx) })
	w.tasks.Go(func() { w.sample(ctx) })
	return w, nil
}

// Close stops watching; a second call does nothing.
func (w *Watcher) Close() {
	w.stop()
	w.mu.Lock()
	w.moved.Broadcast()
	w.mu.Unlock()
	w.tasks.Wait()
	w.client.Close()
}

func (w *Watcher) read(ctx context.Context) {
	for {
		fetches := w.client.PollFetches(ctx)
		if ctx.Err() != nil {
			return
		}
		for _, e := range fetches.Errors() {
			w.log.Debug("oracle: reading", "topic", e.Topic, "partition", e.Partition, "error", e.Err)
		}
		w.take(fetches)
	}
}

func (w *Watcher) take(fetches kgo.Fetches) {
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.round++
	fetches.EachRecord(func(r *kgo.Record) {
		w.positions[r.Topic][r.Partition] = r.Offset + 1
		if !r.Attrs.IsControl() {
			w.view.take(r, w.round, now)
		}
	})
	w.moved.Broadcast()
}

// await waits until everything that stands in the streams now is read.
func (w *Watcher) await(ctx context.Context, streams ...string) error {
	var topics []string
	for _, s := range streams {
		topics = append(topics, w.topo.Topic(s))
	}
	starts, err := w.admin.ListStartOffsets(ctx, topics...)
	if err == nil {
		err = starts.Error()
	}
	if err != nil {
		return fmt.Errorf("listing the topics' starts: %w", err)
	}
	ends, err := w.admin.ListEndOffsets(ctx, topics...)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return fmt.Errorf("listing the topics' ends: %w", err)
	}
	wake := context.AfterFunc(ctx, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.moved.Broadcast()
	})
	defer wake()
	w.mu.Lock()
	defer w.mu.Unlock()
	for !w.reached(starts, ends) {
		if ctx.Err() != nil {
			return fmt.Errorf("reading the topics to their ends: %w", ctx.Err())
		}
		w.moved.Wait()
	}
	return nil
}

func (w *Watcher) reached(starts, ends kadm.ListedOffsets) bool {
	reached := true
	ends.Each(func(end kadm.ListedOffset) {
		start, _ := starts.Lookup(end.Topic, end.Partition)
		if end.Offset > start.Offset && w.positions[end.Topic][end.Partition] < end.Offset {
			reached = false
		}
	})
	return reached
}

const (
	sampleEvery    = 250 * time.Millisecond
	samplePatience = 5 * time.Second
)

// sample checks commits until ctx ends.
func (w *Watcher) sample(ctx context.Context) {
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for _, g := range []string{topology.ProjectionGroup, topology.DisplayGroup} {
			once, cancel := context.WithTimeout(ctx, samplePatience)
			err := w.check(once, g)
			cancel()
			if ctx.Err() == nil {
				w.count(err)
			}
		}
	}
}

func (w *Watcher) count(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		w.skipped++
		w.log.Debug("oracle: a sample of commits is left out", "error", err)
		return
	}
	w.samples++
}

// check reads what a group has committed, then its input and all that the
// input had brought about until then, and compares (I17).
func (w *Watcher) check(ctx context.Context, group string) error {
	g := w.topo.Group(group)
	committed, err := w.admin.FetchOffsets(ctx, g.ID)
	if err == nil {
		err = committed.Error()
	}
	if err != nil {
		return fmt.Errorf("reading commits: %w", err)
	}
	if err := w.await(ctx, g.Inputs[0], g.Table, topology.Quarantine); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.view.prefixes[group]
	committed.Each(func(o kadm.OffsetResponse) {
		if o.At < 0 || o.Topic != w.topo.Topic(g.Inputs[0]) {
			return
		}
		was := p.of(o.Partition).committed
		unfinished, back := p.commit(o.Partition, o.At)
		if back {
			w.findings.Add(CommitBack, "group %s, %s/%d: committed %d after %d", g.ID, o.Topic, o.Partition, o.At, was)
		}
		if n := len(unfinished); n > 0 {
			w.findings.AddMany(EarlyCommit, int64(n), "group %s, %s/%d: committed %d, but %d records below have no effect, the first at offset %d", g.ID, o.Topic, o.Partition, o.At, n, unfinished[0])
		}
	})
	return nil
}

// Watched are the figures of a watcher.
type Watched struct {
	Records   map[string]int64 `json:"records"` // by stream
	Samples   int64            `json:"commitSamples"`
	Skipped   int64            `json:"commitSamplesSkipped"`
	Finished  int64            `json:"recordsBelowCommits"` // found finished
	Poison    int64            `json:"poisonRecords"`
	SetAside  int64            `json:"setAside"`
	ZombieOld int64            `json:"lateSequences"`   // lower numbers behind higher ones, content as before
	ZombieNew int64            `json:"unseenSequences"` // lower partial counts that nobody had sent before
	Forgotten int64            `json:"forgottenSequences"`
	Foreign   int64            `json:"foreignRecords"` // in a changelog, of a writer that another had followed
	Late      int64            `json:"lateVersions"`   // lower versions in the changelogs behind higher ones
}

// Watched gives the figures so far.
func (w *Watcher) Watched() Watched {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.view.figures()
	s.Samples, s.Skipped = w.samples, w.skipped
	return s
}

// TableEnd is how many records each partition of the projection's changelog
// has had, as far as it is read.
func (w *Watcher) TableEnd() []int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.topo.Stream(topology.ProjectionTable)
	ends := make([]int64, s.Partitions)
	for p, o := range w.positions[s.Topic] {
		ends[p] = o
	}
	return ends
}
