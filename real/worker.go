package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
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
	return h.awaitAnswer(ctx, []string{workerName}, h.askWorker)
}

func (s state) connectURL() string { return "http://" + address(s.ConnectPort) }

// debezium is the class of the connector that a worker must know.
const debezium = "io.debezium.connector.postgresql.PostgresConnector"

// askWorker is nil when the worker has joined its group and has Debezium.
func (h *home) askWorker(ctx context.Context) error {
	var plugins []struct {
		Class string `json:"class"`
	}
	if err := connectCall(ctx, http.MethodGet, h.state.connectURL()+"/connector-plugins", nil, &plugins); err != nil {
		return err
	}
	for _, p := range plugins {
		if p.Class == debezium {
			// Answered by the herder, which is there after the group is.
			return connectCall(ctx, http.MethodGet, h.state.connectURL()+"/connectors", nil, new([]string))
		}
	}
	return errors.New("the Connect worker does not know " + debezium + ": its jars are not what real/poms/connect.xml names")
}

// connectError is an answer of the worker's REST interface that is not good.
type connectError struct {
	Status  int
	Message string
}

func (e *connectError) Error() string {
	return fmt.Sprintf("the Connect worker answers %d: %s", e.Status, e.Message)
}

// connectClient keeps no connection: calls are rare.
var connectClient = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// connectCall sends body, if any, as JSON, and reads the answer into v, if
// any.
func connectCall(ctx context.Context, method, url string, body, v any) error {
	var text strings.Builder
	if body != nil {
		if err := json.NewEncoder(&text).Encode(body); err != nil {
			return fmt.Errorf("encoding a request for the Connect worker: %w", err)
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(text.String()))
	if err != nil {
		return fmt.Errorf("calling the Connect worker: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := connectClient.Do(req)
	if err != nil {
		return fmt.Errorf("calling the Connect worker: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode >= 300 {
		var said struct {
			Message string `json:"message"`
		}
		_ = json.NewDecoder(resp.Body).Decode(&said) // an empty message will do
		return &connectError{resp.StatusCode, said.Message}
	}
	if v == nil {
		return nil
	}
	if err := json.NewDecoder(resp.Body).Decode(v); err != nil {
		return fmt.Errorf("reading the Connect worker's answer: %w", err)
	}
	return nil
}
