// Package owners finds the process that owns a partition, from the consumer
// group itself: each member tells its address in its member data
// (gokakit.ProcessorConfig.Advertise), and the group's leader has told the
// broker which partitions are whose.
//
// What was found is kept until someone says that it does not hold (Forget):
// the owner alone knows whether it still is the owner, and says so when it is
// asked. So an answer of Owner is a hint, never a proof.
//
// Metrics: tidemark_owners_refreshes_total.
package owners

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/singleflight"

	"github.com/tidemark/tidemark/internal/kafkaaccess"
	"github.com/tidemark/tidemark/internal/kafkaadmin"
	"github.com/tidemark/tidemark/internal/pause"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// ErrNoOwner says that nobody owns a partition now, or that its owner tells no
// address: the group is being rebalanced, or has no member.
var ErrNoOwner = errors.New("no owner")

// Config of a Directory.
type Config struct {
	Brokers []string
	Access  *kafkaaccess.Access // nil: plain
	Group   string              // consumer group
	Topic   string              // an input of the group, whose partitions are owned
	// MinRefresh is the least time between two questions to the broker; default
	// 50 ms.
	MinRefresh time.Duration
}

// Directory knows the owners of a group's partitions.
type Directory struct {
	cfg       Config
	client    *kgo.Client
	admin     *kadm.Client
	flight    singleflight.Group
	refreshes prometheus.Counter

	mu    sync.Mutex
	at    map[int]string // address by partition
	all   []string       // addresses of all members
	asked time.Time      // when the broker was asked last
}

// New makes a Directory; it asks nobody yet.
func New(cfg Config, reg prometheus.Registerer) (*Directory, error) {
	if cfg.MinRefresh == 0 {
		cfg.MinRefresh = 50 * time.Millisecond
	}
	d := &Directory{cfg: cfg, at: map[int]string{}, refreshes: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "tidemark_owners_refreshes_total", Help: "Times that the consumer group was asked who owns which partition.",
	})}
	if reg != nil {
		if err := reg.Register(d.refreshes); err != nil {
			return nil, fmt.Errorf("owners of group %s: registering metrics: %w", cfg.Group, err)
		}
	}
	var err error
	if d.client, err = kafkaadmin.Client(cfg.Brokers, cfg.Access); err != nil {
		return nil, err
	}
	d.admin = kadm.NewClient(d.client)
	return d, nil
}

// Close ends the connections to the brokers.
func (d *Directory) Close() { d.client.Close() }

// Owner is the address of a partition's owner, as far as it is known.
func (d *Directory) Owner(ctx context.Context, partition int) (string, error) {
	if address := d.known(partition); address != "" {
		return address, nil
	}
	// Whoever comes while the broker is asked waits for the same answer, with a
	// context of its own: the first one's end must not be everybody's.
	done := d.flight.DoChan("", func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), refreshTimeout)
		defer cancel()
		return nil, d.refresh(ctx)
	})
	select {
	case <-ctx.Done():
		return "", ctx.Err()
	case r := <-done:
		if r.Err != nil {
			return "", r.Err
		}
	}
	if address := d.known(partition); address != "" {
		return address, nil
	}
	return "", fmt.Errorf("partition %d of %s in group %s: %w", partition, d.cfg.Topic, d.cfg.Group, ErrNoOwner)
}

const refreshTimeout = 5 * time.Second

func (d *Directory) known(partition int) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.at[partition]
}

// Forget says that a partition was not served at an address. Who is told
// otherwise meanwhile keeps that.
func (d *Directory) Forget(partition int, address string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.at[partition] == address {
		delete(d.at, partition)
	}
}

// Others are the addresses of the group's other members than the one at an
// address, as they were known last; with hot standbys each of them keeps every
// partition warm.
func (d *Directory) Others(address string) []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(d.all), func(a string) bool { return a == address })
}

// refresh asks the broker. While the group is rebalanced the broker shows
// neither member data nor assignments: what is known stays, since the old
// owners serve on until they have let go.
func (d *Directory) refresh(ctx context.Context) error {
	d.mu.Lock()
	wait := d.cfg.MinRefresh - time.Since(d.asked)
	d.mu.Unlock()
	if !pause.For(ctx, wait) {
		return ctx.Err()
	}
	d.refreshes.Inc()
	groups, err := d.admin.DescribeGroups(ctx, d.cfg.Group)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked = time.Now()
	if err != nil {
		return fmt.Errorf("asking kafka for the members of group %s: %w", d.cfg.Group, err)
	}
	g := groups[d.cfg.Group]
	if errors.Is(g.Err, kerr.GroupIDNotFound) {
		return fmt.Errorf("group %s has never had a member: %w", d.cfg.Group, ErrNoOwner)
	}
	if g.Err != nil {
		return fmt.Errorf("asking kafka for the members of group %s: %w", d.cfg.Group, g.Err)
	}
	if g.State != "Stable" {
		return fmt.Errorf("group %s is %s: %w", d.cfg.Group, g.State, ErrNoOwner)
	}
	d.at, d.all = addresses(g, d.cfg.Topic)
	return nil
}

// addresses reads who owns which partition of a topic, and who is there at all;
// members that tell no address are left out.
func addresses(g kadm.DescribedGroup, topic string) (at map[int]string, all []string) {
	at = map[int]string{}
	for _, m := range g.Members {
		joined, ok := m.Join.AsConsumer()
		assigned, okToo := m.Assigned.AsConsumer()
		if !ok || !okToo {
			continue
		}
		var data tidemarkv1.MemberData
		if err := data.UnmarshalVT(joined.UserData); err != nil || data.Address == "" {
			continue
		}
		all = append(all, data.Address)
		for _, t := range assigned.Topics {
			if t.Topic != topic {
				continue
			}
			for _, p := range t.Partitions {
				at[int(p)] = data.Address
			}
		}
	}
	slices.Sort(all)
	return at, slices.Compact(all)
}
