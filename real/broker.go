package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// brokerName is the name of the process of node n, from 1.
func brokerName(n int) string { return fmt.Sprintf("kafka-%d", n) }

func (h *home) brokerNames() []string {
	names := make([]string, h.state.brokers())
	for i := range names {
		names[i] = brokerName(i + 1)
	}
	return names
}

// addresses are those of the state's brokers.
func (s state) addresses() []string {
	all := make([]string, len(s.BrokerPorts))
	for i, port := range s.BrokerPorts {
		all[i] = address(port)
	}
	return all
}

// serverProperties are the settings of node n: broker and controller in one.
// One quorum has 1 or 3 of them; what Kafka keeps for itself is on each, and
// two of three must have it.
func (h *home) serverProperties(n int) string {
	s := h.state
	voters := make([]string, s.brokers())
	for i, port := range s.ControllerPorts {
		voters[i] = fmt.Sprintf("%d@%s", i+1, address(port))
	}
	rf, isr := s.brokers(), max(1, s.brokers()-1)
	lines := []string{
		"process.roles=broker,controller",
		fmt.Sprintf("node.id=%d", n),
		"controller.quorum.voters=" + strings.Join(voters, ","),
		fmt.Sprintf("listeners=PLAINTEXT://%s,CONTROLLER://%s", address(s.BrokerPorts[n-1]), address(s.ControllerPorts[n-1])),
		"advertised.listeners=PLAINTEXT://" + address(s.BrokerPorts[n-1]),
		"inter.broker.listener.name=PLAINTEXT",
		"controller.listener.names=CONTROLLER",
		"listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
		"log.dirs=" + h.dataDir(n),
		"auto.create.topics.enable=false",
		"group.initial.rebalance.delay.ms=0",
		"group.min.session.timeout.ms=500",
	}
	for _, topic := range []string{"offsets.topic", "transaction.state.log", "share.coordinator.state.topic"} {
		lines = append(lines, fmt.Sprintf("%s.replication.factor=%d", topic, rf), topic+".num.partitions=8")
	}
	return strings.Join(append(lines,
		fmt.Sprintf("transaction.state.log.min.isr=%d", isr),
		fmt.Sprintf("share.coordinator.state.topic.min.isr=%d", isr),
		fmt.Sprintf("default.replication.factor=%d", rf),
	), "\n") + "\n"
}

func (h *home) dataDir(n int) string { return h.path("data", brokerName(n)) }

func (h *home) propertiesFile(n int) string { return h.path(brokerName(n) + ".properties") }

// format gives every node that has none its storage.
func (h *home) format(ctx context.Context, java, path string) error {
	errs := make([]error, h.state.brokers())
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() { errs[i] = h.formatNode(ctx, java, path, i+1) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (h *home) formatNode(ctx context.Context, java, path string, n int) error {
	if _, err := os.Stat(h.dataDir(n) + "/meta.properties"); err == nil {
		return nil
	}
	// What a format that was cut short left is in the way of the next.
	if err := os.RemoveAll(h.dataDir(n)); err != nil {
		return fmt.Errorf("formatting the storage of broker %d: %w", n, err)
	}
	cmd := exec.CommandContext(ctx, java, h.mark("format"), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData",
		"-Dlog4j2.configurationFile="+h.path("log4j2.properties"), "-cp", path,
		"kafka.tools.StorageTool", "format", "-t", h.state.ClusterID, "-c", h.propertiesFile(n))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("formatting the storage of broker %d: %w: %s", n, err, lastLines(string(out), 5))
	}
	return nil
}

// startBrokers starts those that do not run and returns their names. When it
// returns all brokers answer.
func (h *home) startBrokers(ctx context.Context, java, path string) (started []string, err error) {
	if err := h.write("log4j2.properties", log4j2); err != nil {
		return nil, err
	}
	for n := 1; n <= h.state.brokers(); n++ {
		if err := h.write(brokerName(n)+".properties", h.serverProperties(n)); err != nil {
			return nil, err
		}
	}
	if err := h.format(ctx, java, path); err != nil {
		return nil, err
	}
	for n := 1; n <= h.state.brokers(); n++ {
		if h.pid(brokerName(n)) != 0 {
			continue
		}
		j := jvm{name: brokerName(n), java: java, heap: "512m", class: "kafka.Kafka", path: path, args: []string{h.propertiesFile(n)}}
		if err := h.start(j); err != nil {
			return started, err
		}
		started = append(started, j.name)
	}
	return started, h.awaitAnswer(ctx, h.brokerNames(), h.askBrokers)
}

// askBrokers is nil when every broker answers, knows all the others, and
// there is a controller to make topics. Each is asked by itself: the others
// name a killed broker until its session ends.
func (h *home) askBrokers(ctx context.Context) error {
	for _, at := range h.state.addresses() {
		if err := askBroker(ctx, at, h.state.brokers()); err != nil {
			return err
		}
	}
	return nil
}

func askBroker(ctx context.Context, at string, brokers int) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(at), kgo.RequestRetries(0))
	if err != nil {
		return fmt.Errorf("making a Kafka client: %w", err)
	}
	defer client.Close()
	meta, err := kadm.NewClient(client).BrokerMetadata(ctx)
	if err != nil {
		return fmt.Errorf("asking the broker at %s: %w", at, err)
	}
	if len(meta.Brokers) < brokers || meta.Controller < 0 {
		return fmt.Errorf("the broker at %s knows %d of %d brokers and controller %d", at, len(meta.Brokers), brokers, meta.Controller)
	}
	return nil
}
