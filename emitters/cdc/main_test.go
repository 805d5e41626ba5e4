package cdc

import (
	"fmt"
	"io"
	"os"
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
