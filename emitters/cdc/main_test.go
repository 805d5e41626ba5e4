package cdc

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	ossignal "os/signal"
	"syscall"
	"testing"

	"github.com/tidemark/tidemark/internal/embedded"
	"github.com/tidemark/tidemark/internal/testenv"
)

// brokerChild makes the test binary a broker: the benchmark measures this
// process's CPU and must not count Kafka's.
const brokerChild = "TIDEMARK_CDC_TEST_BROKER"

func TestMain(m *testing.M) {
	if os.Getenv(brokerChild) != "" {
		serveBroker()
		return
	}
	if cfg := os.Getenv(emitterChild); cfg != "" {
		if err := runEmitter(cfg); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	testenv.Main(m)
}

// serveBroker prints the broker's address and serves until stdin ends.
func serveBroker() {
	k, err := embedded.StartKafka(embedded.KafkaConfig{})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(k.Brokers()[0])
	_, _ = io.Copy(io.Discard, os.Stdin)
	_ = k.Stop()
}

// emitterChild makes the test binary an emitter of this configuration, JSON, so
// that a signal meets it alone.
const emitterChild = "TIDEMARK_CDC_TEST_EMITTER"

// runEmitter feeds until SIGTERM; what it logs goes to stderr.
func runEmitter(text string) error {
	var cfg Config
	if err := json.Unmarshal([]byte(text), &cfg); err != nil {
		return err
	}
	e, err := New(cfg)
	if err != nil {
		return err
	}
	ctx, stop := ossignal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	return e.Run(ctx)
}

// long makes tests run as long, or as much, as the bug log's rows say; without
// it they take a scaled form of seconds.
var long = os.Getenv("TIDEMARK_TEST_LONG") != ""

// scaled is whole in a long run, else part.
func scaled[T any](part, whole T) T {
	if long {
		return whole
	}
	return part
}
