// Package testenv gives tests real infrastructure: a PostgreSQL server shared
// by the test binary with a database per test, a broker per test, and the
// topics of a topology. A package that uses it has
//
//	func TestMain(m *testing.M) { testenv.Main(m) }
//
// With TIDEMARK_TEST_KAFKA=host:port[,...] the same tests run on the broker
// that stands there, each under a prefix of its own.
package testenv

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tidemark/tidemark/internal/kafkaadmin"
	"github.com/tidemark/tidemark/topology"
)

var mainCalled atomic.Bool

// Main runs the tests, stops the shared servers, and fails when goroutines
// are left over. It exits the process.
func Main(m *testing.M) {
	mainCalled.Store(true)
	code := m.Run()
	if err := stopShared(); err != nil {
		fmt.Fprintln(os.Stderr, "testenv:", err)
		code = max(code, 1)
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, "testenv: goroutines are left over:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// Topology is the default topology after change, which may be nil. Its prefix
// is Prefix.
func Topology(t testing.TB, change func(*topology.Config)) *topology.Topology {
	t.Helper()
	c := topology.DefaultConfig()
	c.Prefix = Prefix(t)
	if change != nil {
		change(&c)
	}
	topo, err := topology.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return topo
}

// CreateTopics makes every topic of topo.
func CreateTopics(t testing.TB, brokers []string, topo *topology.Topology) {
	t.Helper()
	client, err := kafkaadmin.Client(brokers, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := kafkaadmin.Create(ctx, client, topo); err != nil {
		t.Fatal(err)
	}
}

// Eventually calls check until it returns nil, and fails the test with its
// last error after the deadline. It takes the place of every sleep.
func Eventually(t testing.TB, deadline time.Duration, check func() error) {
	t.Helper()
	end := time.Now().Add(deadline)
	pause := time.Millisecond
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("not after %v: %v", deadline, err)
		}
		time.Sleep(pause)
		pause = min(2*pause, 50*time.Millisecond)
	}
}
