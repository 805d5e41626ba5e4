package oracle

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
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
	Config
	client *kgo.Client
	admin  *kadm.Client
	stop   context.CancelFunc
	tasks  sync.WaitGroup

	mu        sync.Mutex
	moved     *sync.Cond // signalled after each round
	round     int
	positions map[string]map[int32]int64 // next offset that is read
	view      *view
	samples   int64 // commits that were checked
	skipped   int64 // commits that could not be, the broker being broken
}

// Config says what to watch.
type Config struct {
	Brokers  []string
	Topology *topology.Topology
	// System is watched whole: every change that is in cdc must be in
	// bucket-changes and liker-changes before intake has committed it, and those
	// in liker-changes in the reverse index before likers have.
	System   bool
	Findings *Findings
	Logger   *slog.Logger
}

// path is the way through a group: what it commits, and where the effects of
// that stand.
type path struct {
	group   string
	input   string
	effects []string
}

func (c Config) paths() []path {
	paths := []path{
		{topology.ProjectionGroup, topology.BucketChanges, []string{topology.ProjectionTable, topology.Quarantine}},
		{topology.DisplayGroup, topology.PartialCounts, []string{topology.DisplayTable, topology.Quarantine}},
	}
	if c.System {
		paths = append(paths,
			path{topology.IntakeGroup, topology.CDC, []string{topology.BucketChanges, topology.LikerChanges, topology.Quarantine}},
			path{topology.LikersGroup, topology.LikerChanges, []string{topology.LikersTable, topology.Quarantine}})
	}
	return paths
}

func (c Config) streams() []string {
	var all []string
	for _, p := range c.paths() {
		all = append(append(all, p.input), p.effects...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// Watch starts to watch the topics of a topology.
func Watch(c Config) (*Watcher, error) {
	from := map[string]map[int32]kgo.Offset{}
	topo := c.Topology
	w := &Watcher{Config: c, positions: map[string]map[int32]int64{}, view: newView(c)}
	w.moved = sync.NewCond(&w.mu)
	for _, name := range c.streams() {
		s := topo.Stream(name)
		from[s.Topic], w.positions[s.Topic] = map[int32]kgo.Offset{}, map[int32]int64{}
		for p := range int32(s.Partitions) {
			from[s.Topic][p] = kgo.NewOffset().AtStart()
		}
	}
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.Brokers...), kgo.ClientID(ClientID), kgo.ConsumePartitions(from),
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
			w.Logger.Debug("oracle: reading", "topic", e.Topic, "partition", e.Partition, "error", e.Err)
		}
		w.take(fetches)
	}
}

func (w *Watcher) take(fetches kgo.Fetches) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.round++
	fetches.EachRecord(func(r *kgo.Record) {
		w.positions[r.Topic][r.Partition] = r.Offset + 1
		if !r.Attrs.IsControl() {
			w.view.take(r, w.round)
		}
	})
	w.moved.Broadcast()
}

// await waits until everything that stands in the streams now is read.
func (w *Watcher) await(ctx context.Context, streams ...string) error {
	var topics []string
	for _, s := range streams {
		topics = append(topics, w.Topology.Topic(s))
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
		for _, p := range w.paths() {
			once, cancel := context.WithTimeout(ctx, samplePatience)
			err := w.check(once, p)
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
		w.Logger.Debug("oracle: a sample of commits is left out", "error", err)
		return
	}
	w.samples++
}

// check reads what a group has committed, then its input and all that the
// input had brought about until then, and compares (I17).
func (w *Watcher) check(ctx context.Context, way path) error {
	g, topic := w.Topology.Group(way.group), w.Topology.Topic(way.input)
	committed, err := w.admin.FetchOffsets(ctx, g.ID)
	if err == nil {
		err = committed.Error()
	}
	if err != nil {
		return fmt.Errorf("reading commits: %w", err)
	}
	if err := w.await(ctx, append(way.effects[:len(way.effects):len(way.effects)], way.input)...); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.view.prefixes[way.group]
	committed.Each(func(o kadm.OffsetResponse) {
		if o.At < 0 || o.Topic != topic {
			return
		}
		was := p.of(o.Partition).committed
		unfinished, back := p.commit(o.Partition, o.At)
		if back {
			w.Findings.Add(CommitBack, "group %s, %s/%d: committed %d after %d", g.ID, o.Topic, o.Partition, o.At, was)
		}
		if n := len(unfinished); n > 0 {
			w.Findings.AddMany(EarlyCommit, int64(n), "group %s, %s/%d: committed %d, but %d records below have no effect, the first at offset %d", g.ID, o.Topic, o.Partition, o.At, n, unfinished[0])
		}
	})
	return nil
}

// Lose tells that a broker is about to lose the records of a stream's partition
// below an offset, before who reads them has read all of them.
func (w *Watcher) Lose(stream string, partition int32, below int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, way := range w.paths() {
		if way.input == stream {
			w.view.prefixes[way.group].lose(partition, below)
		}
	}
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

// Displayed is, per shard, the newest seal that is displayed from everywhere.
func (w *Watcher) Displayed() []uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	seals := make([]uint64, w.Topology.Config.Shards)
	for shard := range seals {
		seals[shard] = w.view.leastDisplayed(w.Topology.Config, uint32(shard))
	}
	return seals
}

// TableEnd is how many records each partition of the projection's changelog
// has had, as far as it is read.
func (w *Watcher) TableEnd() []int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.Topology.Stream(topology.ProjectionTable)
	ends := make([]int64, s.Partitions)
	for p, o := range w.positions[s.Topic] {
		ends[p] = o
	}
	return ends
}
