package owners

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tidemark/tidemark/internal/gokakit"
	"github.com/tidemark/tidemark/internal/testenv"
	"github.com/tidemark/tidemark/topology"
)

func TestMain(m *testing.M) { testenv.Main(m) }

const partitions = 4

// noRows is the schema of a table that stays empty.
type noRows struct{}

func (noRows) Version([]byte) (uint64, error) { return 0, nil }

func (noRows) Derive(string, []byte, func(gokakit.Derived)) error { return nil }

// member runs a member of the group of topo that tells an address.
func member(t *testing.T, brokers []string, topo *topology.Topology, instance, address string) (stop func()) {
	t.Helper()
	p, err := gokakit.NewProcessor(gokakit.ProcessorConfig{
		Client: gokakit.Client{Brokers: brokers, Session: 2 * time.Second}, Topology: topo, Group: topology.IntakeGroup,
		Handle: func(*gokakit.Partition, topology.Record) error { return nil }, Instance: instance, Advertise: address,
		Schema: noRows{}, StateDir: t.TempDir(),
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := p.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	stop = sync.OnceFunc(func() { cancel(); running.Wait() })
	t.Cleanup(stop)
	return stop
}

// await asks until every partition's owner is one of addresses, and each of
// them owns one.
func await(t *testing.T, d *Directory, addresses ...string) {
	t.Helper()
	testenv.Eventually(t, time.Minute, func() error {
		owned := map[string]int{}
		for p := range partitions {
			address, err := d.Owner(t.Context(), p)
			if err != nil {
				return err
			}
			owned[address]++
			d.Forget(p, address)
		}
		sum := 0
		for _, a := range addresses {
			if owned[a] == 0 {
				return fmt.Errorf("%s owns nothing: %v", a, owned)
			}
			sum += owned[a]
		}
		if sum != partitions {
			return fmt.Errorf("owners are %v, not %v", owned, addresses)
		}
		return nil
	})
}

// The group tells where every partition's owner answers, also when members
// come, go, and come back at another address under the same name.
func TestOwnersAreFoundInTheGroup(t *testing.T) {
	brokers := testenv.Kafka(t)
	topo := testenv.Topology(t, func(c *topology.Config) { c.Shards = partitions })
	testenv.CreateTopics(t, brokers, topo)
	d, err := New(Config{Brokers: brokers, Group: topo.Group(topology.IntakeGroup).ID, Topic: topo.Topic(topology.CDC), MinRefresh: time.Millisecond}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	testenv.Eventually(t, time.Minute, func() error { // a new cluster has no coordinator at first
		if _, err := d.Owner(t.Context(), 0); !errors.Is(err, ErrNoOwner) {
			return fmt.Errorf("of a group without members: %w", err)
		}
		return nil
	})
	stopOne := member(t, brokers, topo, "one", "one:1")
	await(t, d, "one:1")
	stopTwo := member(t, brokers, topo, "two", "two:1")
	await(t, d, "one:1", "two:1") // one has joined anew, and still tells its address
	stopTwo()
	stopTwo = member(t, brokers, topo, "two", "two:2")
	await(t, d, "one:1", "two:2")
	if others := d.Others("one:1"); !slices.Equal(others, []string{"two:2"}) || len(d.Others("")) != 2 {
		t.Errorf("other members than one are %v", others)
	}
	stopTwo()
	await(t, d, "one:1") // once two's session has run out
	member(t, brokers, topo, "silent", "")
	testenv.Eventually(t, time.Minute, func() error {
		none := 0
		for p := range partitions {
			address, err := d.Owner(t.Context(), p)
			switch {
			case errors.Is(err, ErrNoOwner):
				none++
			case err != nil:
				return err
			}
			d.Forget(p, address)
		}
		if none == 0 || none == partitions {
			return fmt.Errorf("%d partitions of a member without an address", none)
		}
		return nil
	})
	stopOne()
}

// What is known is not asked again, and everybody who misses at once is told by
// one question.
func TestTheBrokerIsAskedOnAMiss(t *testing.T) {
	if testenv.External() {
		t.Skip("counts what an embedded broker is asked")
	}
	brokers := testenv.Kafka(t)
	topo := testenv.Topology(t, func(c *topology.Config) { c.Shards = partitions })
	testenv.CreateTopics(t, brokers, topo)
	group := topo.Group(topology.IntakeGroup).ID
	d, err := New(Config{Brokers: brokers, Group: group, Topic: topo.Topic(topology.CDC), MinRefresh: 100 * time.Millisecond}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	member(t, brokers, topo, "one", "one:1")
	await(t, d, "one:1")
	if _, err := d.Owner(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	asked := make(chan struct{}, 1000)
	c := testenv.Cluster(t, brokers)
	c.ControlKey(int16(kmsg.DescribeGroups), func(kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		asked <- struct{}{}
		return nil, nil, false
	})
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if address, err := d.Owner(ended, 1); err != nil || address != "one:1" || len(asked) != 0 {
		t.Errorf("known: %q, %v, after %d questions", address, err, len(asked))
	}
	d.Forget(1, "elsewhere:1") // was true of an earlier answer
	if _, err := d.Owner(ended, 1); err != nil {
		t.Errorf("forgotten by who knew another address: %v", err)
	}
	for p := range partitions {
		d.Forget(p, "one:1")
	}
	if _, err := d.Owner(ended, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("after the caller's end: %v", err)
	}
	var all sync.WaitGroup
	for i := range 100 {
		all.Go(func() {
			if address, err := d.Owner(t.Context(), i%partitions); err != nil || address != "one:1" {
				t.Errorf("%q, %v", address, err)
			}
		})
	}
	all.Wait()
	if n := len(asked); n < 1 || n > 2 {
		t.Errorf("100 misses asked the broker %d times", n)
	}
}

// Member data of other software, or of a version to come, is no address.
func TestForeignMembers(t *testing.T) {
	if at, all := addresses(kadm.DescribedGroup{Members: []kadm.DescribedGroupMember{{MemberID: "foreign"}}}, "topic"); len(at)+len(all) != 0 {
		t.Errorf("%v, %v", at, all)
	}
}
