package testenv

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/tidemark/tidemark/internal/embedded"
	"github.com/tidemark/tidemark/internal/kafkaadmin"
	"github.com/tidemark/tidemark/topology"
)

// KafkaVariable names the brokers, host:port[,...], that tests use in place of
// embedded ones.
const KafkaVariable = "TIDEMARK_TEST_KAFKA"

// External tells whether the tests' broker is not an embedded one: its data is
// not the test's alone, and nothing injects faults into it.
func External() bool { return os.Getenv(KafkaVariable) != "" }

// kafkas is what the tests of this binary have of Kafka.
var kafkas struct {
	sync.Mutex
	embedded map[string]*embedded.Kafka // by address
	tests    map[string]*tenant         // by test name; external brokers only
	run      string                     // tells this process's prefixes from others'
	prefixes int
}

// tenant is a test on a broker that it shares with others.
type tenant struct {
	prefix  string
	brokers bool // Kafka was called for this prefix
}

// Kafka gives the test an empty broker: an embedded one in memory, or, on an
// external broker, a new prefix, whose topics go when the test ends.
func Kafka(t testing.TB) []string {
	t.Helper()
	if !External() {
		return start(t).Brokers()
	}
	brokers := strings.Split(os.Getenv(KafkaVariable), ",")
	kafkas.Lock()
	defer kafkas.Unlock()
	if at := kafkas.tests[t.Name()]; at != nil && at.brokers {
		newTenant(t.Name())
	}
	at := currentTenant(t.Name())
	at.brokers = true
	prefix := at.prefix
	t.Cleanup(func() {
		if err := removeTopics(brokers, prefix); err != nil {
			t.Logf("removing topics of %s: %v", prefix, err)
		}
	})
	return brokers
}

// Broker starts an embedded broker for the test; its Cluster injects faults.
// On an external broker the test is skipped.
func Broker(t testing.TB) *embedded.Kafka {
	t.Helper()
	if External() {
		t.Skip("needs faults, which only the embedded broker has")
	}
	return start(t)
}

// Cluster is what injects faults into brokers that Kafka gave. On an external
// broker the test is skipped.
func Cluster(t testing.TB, brokers []string) *kfake.Cluster {
	t.Helper()
	if External() {
		t.Skip("needs faults, which only the embedded broker has")
	}
	kafkas.Lock()
	defer kafkas.Unlock()
	k := kafkas.embedded[brokers[0]]
	if k == nil {
		t.Fatalf("%v are not brokers of testenv.Kafka", brokers)
	}
	return k.Cluster()
}

// Prefix is the prefix of the test's topics and groups: the default one on an
// embedded broker; one that nobody else has on an external broker, the same
// until the test calls Kafka once more.
func Prefix(t testing.TB) string {
	if !External() {
		return topology.DefaultConfig().Prefix
	}
	kafkas.Lock()
	defer kafkas.Unlock()
	return currentTenant(t.Name()).prefix
}

// currentTenant needs the lock.
func currentTenant(test string) *tenant {
	if at := kafkas.tests[test]; at != nil {
		return at
	}
	return newTenant(test)
}

// newTenant needs the lock.
func newTenant(test string) *tenant {
	if kafkas.tests == nil {
		kafkas.tests, kafkas.run = map[string]*tenant{}, strings.ToLower(rand.Text()[:10])
	}
	kafkas.prefixes++
	at := &tenant{prefix: fmt.Sprintf("test.%s.n%d", kafkas.run, kafkas.prefixes)}
	kafkas.tests[test] = at
	return at
}

func start(t testing.TB) *embedded.Kafka {
	t.Helper()
	k, err := embedded.StartKafka(embedded.KafkaConfig{})
	if err != nil {
		t.Fatal(err)
	}
	name := k.Brokers()[0]
	kafkas.Lock()
	defer kafkas.Unlock()
	if kafkas.embedded == nil {
		kafkas.embedded = map[string]*embedded.Kafka{}
	}
	kafkas.embedded[name] = k
	t.Cleanup(func() {
		if err := k.Stop(); err != nil {
			t.Error(err)
		}
		kafkas.Lock()
		defer kafkas.Unlock()
		delete(kafkas.embedded, name)
	})
	return k
}

// removeTopics removes a prefix's topics, and its groups as far as they are
// empty: a static member is in its group until its session ends.
func removeTopics(brokers []string, prefix string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	client, err := kafkaadmin.Client(brokers, nil)
	if err != nil {
		return err
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	topics, err := admin.ListTopics(ctx)
	if err != nil {
		return err
	}
	groups, err := admin.ListGroups(ctx)
	if err != nil {
		return err
	}
	ours := func(all []string) (some []string) {
		for _, name := range all {
			if strings.HasPrefix(name, prefix+".") {
				some = append(some, name)
			}
		}
		return some
	}
	if some := ours(topics.Names()); len(some) > 0 {
		if _, err := admin.DeleteTopics(ctx, some...); err != nil {
			return err
		}
	}
	if some := ours(groups.Groups()); len(some) > 0 {
		_, err = admin.DeleteGroups(ctx, some...)
	}
	return err
}
