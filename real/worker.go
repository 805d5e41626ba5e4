package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/tidemark/tidemark/internal/debezium"
)

// workerName is the name of the Connect worker's process.
const workerName = "connect"

// workerProperties are the settings of the Connect worker: distributed, so
// that connectors and their offsets survive a restart in Kafka's topics, and
// alone in its group.
func (h *home) workerProperties() string {
	lines := []string{
		"bootstrap.servers=" + strings.Join(h.state.addresses(), ","),
		"group.id=connect",
		"listeners=http://" + address(h.state.ConnectPort),
		"rest.advertised.host.name=127.0.0.1",
		"plugin.discovery=service_load",
		"key.converter=org.apache.kafka.connect.storage.StringConverter",
		"value.converter=org.apache.kafka.connect.json.JsonConverter",
		"value.converter.schemas.enable=false",
		"offset.flush.interval.ms=1000",
		"scheduled.rebalance.max.delay.ms=0",
		"topic.creation.enable=true",
		"offset.storage.partitions=1",
		"status.storage.partitions=1",
	}
	for _, topic := range []string{"offset", "config", "status"} {
		lines = append(lines,
			fmt.Sprintf("%s.storage.topic=connect.%s", topic, topic),
			fmt.Sprintf("%s.storage.replication.factor=%d", topic, h.state.brokers()))
	}
	return strings.Join(lines, "\n") + "\n"
}

// startWorker starts the worker; when it returns it takes connectors.
func (h *home) startWorker(ctx context.Context, java, path string) error {
	if err := h.write("connect.properties", h.workerProperties()); err != nil {
		return err
	}
	j := jvm{name: workerName, java: java, heap: "512m", path: path,
		class: "org.apache.kafka.connect.cli.ConnectDistributed", args: []string{h.path("connect.properties")}}
	if err := h.start(j); err != nil {
		return err
	}
	return h.awaitAnswer(ctx, []string{workerName}, debezium.Worker{URL: h.state.connectURL()}.Ready)
}

func (s state) connectURL() string { return "http://" + address(s.ConnectPort) }
