package gokakit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"github.com/lovoo/goka"
	gometrics "github.com/rcrowley/go-metrics"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tidemark/tidemark/internal/kafkaaccess"
)

// Sarama's own metrics cost time in every request, and nobody reads them.
func init() { gometrics.UseNilMetrics = true }

// Client says how Kafka is reached.
type Client struct {
	Brokers  []string            // host:port
	Access   *kafkaaccess.Access // nil: plain
	ClientID string              // default tidemark
	// Session is how long an owner may be silent before its partitions move
	// on; at least 2 s, default 6 s.
	Session time.Duration
	// Linger is how long the producer waits for a batch to fill, default 2 ms.
	Linger time.Duration
}

func (c Client) withDefaults() Client {
	if c.ClientID == "" {
		c.ClientID = "tidemark"
	}
	if c.Session == 0 {
		c.Session = 6 * time.Second
	}
	if c.Linger == 0 {
		c.Linger = 2 * time.Millisecond
	}
	return c
}

// Bounds of what a client may choose.
const (
	minSession = 2 * time.Second
	maxSession = 5 * time.Minute
	maxLinger  = time.Second
)

func (c Client) check() error {
	switch {
	case len(c.Brokers) == 0:
		return errors.New("kafka client: no brokers given")
	case c.Session < minSession:
		return fmt.Errorf("kafka client: session %v is under %v, too short to survive a pause", c.Session, minSession)
	case c.Session > maxSession:
		return fmt.Errorf("kafka client: session %v is over %v: the partitions of a dead owner would wait as long", c.Session, maxSession)
	case c.Linger < 0 || c.Linger > maxLinger:
		return fmt.Errorf("kafka client: linger %v is not in 0..%v", c.Linger, maxLinger)
	}
	return nil
}

// franz builds a franz-go client.
func (c Client) franz(opts ...kgo.Opt) (*kgo.Client, error) {
	base := []kgo.Opt{kgo.SeedBrokers(c.Brokers...), kgo.ClientID(c.ClientID)}
	base = append(base, c.Access.Franz()...)
	cl, err := kgo.NewClient(append(base, opts...)...)
	if err != nil {
		return nil, fmt.Errorf("building kafka client: %w", err)
	}
	return cl, nil
}

// sarama is the configuration of everything that goka consumes with. The
// instance makes group membership static, so that a restart under the same
// name costs no rebalance. settings_test.go pins it.
func (c Client) sarama(instance string, line *lifeline) (*sarama.Config, error) {
	s := sarama.NewConfig()
	s.Version = sarama.V2_8_0_0
	s.ClientID = c.ClientID
	s.ChannelBufferSize = 4096
	// The lifeline shakes hands, too.
	s.Net.Proxy.Enable, s.Net.Proxy.Dialer = true, line
	s.Metadata.Retry.BackoffFunc = func(int, int) time.Duration {
		if line.isCut() {
			return 0
		}
		return 250 * time.Millisecond
	}
	s.Consumer.Return.Errors = true
	s.Consumer.MaxProcessingTime = time.Second
	// Heartbeats queue behind the long poll of a fetch.
	s.Consumer.MaxWaitTime = 100 * time.Millisecond
	s.Consumer.Fetch.Default = 1 << 20
	s.Consumer.Offsets.Initial = sarama.OffsetOldest
	s.Consumer.Offsets.AutoCommit.Interval = 200 * time.Millisecond
	s.Consumer.Group.Session.Timeout = c.Session
	s.Consumer.Group.Heartbeat.Interval = c.Session / 5
	// A member that is draining its partitions has this long to come back.
	s.Consumer.Group.Rebalance.Timeout = 20 * time.Second
	s.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{goka.CopartitioningStrategy}
	// Records that the log has lost must not be skipped in silence.
	s.Consumer.Group.ResetInvalidOffsets = false
	s.Consumer.Group.InstanceId = instance
	return s, c.Access.FillSarama(s)
}

// topics is goka's topic manager on franz-go. It creates nothing: topics come
// from the topology, and a missing one is an error by name.
type topics struct {
	ctx    context.Context // of the attempt: what is asked ends with it
	client *kgo.Client
	admin  *kadm.Client

	mu    sync.Mutex
	known map[string][]int32 // partitions by topic
}

const adminTimeout = 10 * time.Second

func (c Client) topics(ctx context.Context) (*topics, error) {
	cl, err := c.franz()
	if err != nil {
		return nil, err
	}
	return &topics{ctx: ctx, client: cl, admin: kadm.NewClient(cl), known: map[string][]int32{}}, nil
}

func (t *topics) EnsureTableExists(topic string, partitions int) error {
	have, err := t.Partitions(topic)
	if err == nil && len(have) != partitions {
		err = fmt.Errorf("topic %s has %d partitions, %d are needed", topic, len(have), partitions)
	}
	return err
}

func (t *topics) EnsureStreamExists(topic string, partitions int) error {
	return t.EnsureTableExists(topic, partitions)
}

func (t *topics) EnsureTopicExists(topic string, partitions, _ int, _ map[string]string) error {
	return t.EnsureTableExists(topic, partitions)
}

// Partitions are asked once per attempt: when goka asks again in the middle of
// a rebalance and gets an error, it panics.
func (t *topics) Partitions(topic string) ([]int32, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if have := t.known[topic]; have != nil {
		return have, nil
	}
	d, err := t.detail(topic)
	if err != nil {
		return nil, err
	}
	t.known[topic] = d.Partitions.Numbers()
	return t.known[topic], nil
}

func (t *topics) detail(topic string) (kadm.TopicDetail, error) {
	ctx, cancel := context.WithTimeout(t.ctx, adminTimeout)
	defer cancel()
	ds, err := t.admin.ListTopics(ctx, topic)
	if err != nil {
		return kadm.TopicDetail{}, fmt.Errorf("asking kafka about topic %s: %w", topic, err)
	}
	d := ds[topic]
	if d.Err != nil {
		return kadm.TopicDetail{}, fmt.Errorf("topic %s: %w (create the topics with `tidemark topology create`)", topic, d.Err)
	}
	return d, nil
}

// GetOffset gives the first offset (sarama.OffsetOldest) or the one after the
// last (sarama.OffsetNewest) of a partition.
func (t *topics) GetOffset(topic string, partition int32, which int64) (int64, error) {
	ctx, cancel := context.WithTimeout(t.ctx, adminTimeout)
	defer cancel()
	list := t.admin.ListStartOffsets
	if which == sarama.OffsetNewest {
		list = t.admin.ListEndOffsets
	}
	offsets, err := list(ctx, topic)
	if err == nil {
		o, ok := offsets.Lookup(topic, partition)
		if ok && o.Err == nil {
			return o.Offset, nil
		}
		err = o.Err
		if !ok {
			err = errors.New("the partition does not exist")
		}
	}
	return 0, fmt.Errorf("asking kafka for the offsets of %s/%d: %w", topic, partition, err)
}

// Close is goka's to call, more than once and too early; close is ours.
func (t *topics) Close() error { return nil }

func (t *topics) close() { t.client.Close() }

// logBounds are the first offset of a partition, the one after the last, and
// the topic's id, which changes when the topic is made anew.
type logBounds struct {
	start, end int64
	topicID    [16]byte
}

func (t *topics) bounds(topic string, partition int) (logBounds, error) {
	d, err := t.detail(topic)
	if err != nil {
		return logBounds{}, err
	}
	b := logBounds{topicID: d.ID}
	if b.start, err = t.GetOffset(topic, int32(partition), sarama.OffsetOldest); err != nil {
		return b, err
	}
	b.end, err = t.GetOffset(topic, int32(partition), sarama.OffsetNewest)
	return b, err
}

// gokaLog carries goka's lines to slog at debug level: what a user must know,
// the processor says itself.
type gokaLog struct{ log *slog.Logger }

func (l gokaLog) Print(a ...any)   { l.Printf("%s", fmt.Sprint(a...)) }
func (l gokaLog) Println(a ...any) { l.Printf("%s", fmt.Sprint(a...)) }
func (l gokaLog) Printf(f string, a ...any) {
	if l.log.Enabled(context.Background(), slog.LevelDebug) {
		l.log.Debug(fmt.Sprintf(f, a...))
	}
}
