package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tidemark/tidemark/internal/child"
	"github.com/tidemark/tidemark/internal/embedded"
	"github.com/tidemark/tidemark/internal/kafkaadmin"
	"github.com/tidemark/tidemark/topology"
)

const brokerCommand = "broker"

// runBroker is the child process of startBroker: a broker until stdin ends.
func runBroker() error {
	k, err := embedded.StartKafka(embedded.KafkaConfig{})
	if err != nil {
		return err
	}
	fmt.Println(strings.Join(k.Brokers(), ","))
	_, _ = io.Copy(io.Discard, os.Stdin)
	return k.Stop()
}

// broker is a running broker, beside what is measured.
type broker struct {
	addresses []string // host:port
	pid       int      // 0 for one that was given
	stop      func()
}

// startBroker starts the embedded broker in a process of its own, beside what
// is measured, or takes the one in TIDEMARK_BENCH_KAFKA.
func startBroker() (*broker, error) {
	if given := os.Getenv("TIDEMARK_BENCH_KAFKA"); given != "" {
		return &broker{addresses: strings.Split(given, ","), stop: func() {}}, nil
	}
	cmd := exec.Command(os.Args[0], brokerCommand)
	out, said := io.Pipe()
	cmd.Stdout, cmd.Stderr = said, os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	done, err := child.Start(cmd, syscall.SIGKILL)
	if err != nil {
		return nil, fmt.Errorf("starting the broker: %w", err)
	}
	over := make(chan struct{})
	go func() { <-done; _ = said.Close(); close(over) }()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return nil, fmt.Errorf("starting the broker: %w", err)
	}
	return &broker{addresses: strings.Split(strings.TrimSpace(line), ","), pid: cmd.Process.Pid, stop: func() { _ = in.Close(); <-over }}, nil
}

// stage is a broker with tidemark's topics, and a client that writes to the
// partitions that it is told.
type stage struct {
	*broker
	topo   *topology.Topology
	client *kgo.Client
}

func startStage(ctx context.Context) (*stage, error) {
	b, err := startBroker()
	if err != nil {
		return nil, err
	}
	s := &stage{broker: b}
	if s.topo, err = topology.New(topology.DefaultConfig()); err == nil {
		s.client, err = kgo.NewClient(kgo.SeedBrokers(b.addresses...), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.MaxBufferedRecords(100_000))
	}
	if err == nil {
		err = kafkaadmin.Create(ctx, s.client, s.topo)
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *stage) close() {
	if s.client != nil {
		s.client.Close()
	}
	s.stop()
}

// coreSeconds is the CPU time of the broker's process so far; 0 for one that
// was given.
func (b *broker) coreSeconds() float64 {
	if b.pid == 0 {
		return 0
	}
	t, _ := ticks(b.pid)
	return float64(t) / ticksPerSecond
}

// coreSeconds is the CPU time of this process so far.
func coreSeconds() float64 {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return float64(u.Utime.Sec+u.Stime.Sec) + float64(u.Utime.Usec+u.Stime.Usec)/1e6
}
