// Package kafkaadmin makes and checks the topics of a topology, so that no
// process runs on topics that would lose or reorder its data.
package kafkaadmin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tidemark/tidemark/topology"
)

// Fields of a Difference that are not topic settings.
const (
	FieldTopic             = "topic" // the topic is missing
	FieldPartitions        = "partitions"
	FieldReplicationFactor = "replication factor"
)

// Missing is what a Difference has where there is nothing.
const Missing = "missing"

// Difference is one way in which the broker's topics differ from the
// topology's.
type Difference struct {
	Topic string `json:"topic"`
	Field string `json:"field"` // a Field constant or the name of a topic setting
	Want  string `json:"want"`
	Have  string `json:"have"`
}

// String reads as a sentence.
func (d Difference) String() string {
	if d.Field == FieldTopic {
		return fmt.Sprintf("topic %s is missing", d.Topic)
	}
	return fmt.Sprintf("topic %s has %s %s, not %s", d.Topic, d.Field, d.Have, d.Want)
}

// Check lists the differences in the topology's order, none when all is well.
func Check(ctx context.Context, client *kgo.Client, topo *topology.Topology) ([]Difference, error) {
	names := make([]string, 0, len(topo.Streams))
	for _, s := range topo.Streams {
		names = append(names, s.Topic)
	}
	admin := kadm.NewClient(client)
	details, err := admin.ListTopics(ctx, names...)
	if err != nil {
		return nil, fmt.Errorf("listing topics: %w", err)
	}
	var existing []string
	for _, s := range topo.Streams {
		d, ok := details[s.Topic]
		if ok && d.Err == nil {
			existing = append(existing, s.Topic)
		} else if ok && !errors.Is(d.Err, kerr.UnknownTopicOrPartition) {
			return nil, fmt.Errorf("reading topic %s: %w", s.Topic, d.Err)
		}
	}
	settings, err := readSettings(ctx, admin, existing)
	if err != nil {
		return nil, err
	}
	var diffs []Difference
	for _, s := range topo.Streams {
		if have, ok := settings[s.Topic]; ok {
			diffs = append(diffs, compare(s, topo.Config.ReplicationFactor, details[s.Topic], have)...)
		} else {
			diffs = append(diffs, Difference{Topic: s.Topic, Field: FieldTopic, Want: "exists", Have: Missing})
		}
	}
	return diffs, nil
}

// readSettings reads the effective settings of each topic.
func readSettings(ctx context.Context, admin *kadm.Client, topics []string) (map[string]map[string]string, error) {
	all := make(map[string]map[string]string, len(topics))
	if len(topics) == 0 {
		return all, nil
	}
	configs, err := admin.DescribeTopicConfigs(ctx, topics...)
	if err != nil {
		return nil, fmt.Errorf("reading topic settings: %w", err)
	}
	for _, c := range configs {
		if c.Err != nil {
			return nil, fmt.Errorf("reading settings of topic %s: %w", c.Name, c.Err)
		}
		m := make(map[string]string, len(c.Configs))
		for _, kv := range c.Configs {
			m[kv.Key] = kv.MaybeValue()
		}
		all[c.Name] = m
	}
	return all, nil
}

func compare(s topology.Stream, replicas int, have kadm.TopicDetail, settings map[string]string) []Difference {
	var diffs []Difference
	differ := func(field, want, have string) {
		if want != have {
			diffs = append(diffs, Difference{Topic: s.Topic, Field: field, Want: want, Have: have})
		}
	}
	differ(FieldPartitions, strconv.Itoa(s.Partitions), strconv.Itoa(len(have.Partitions)))
	differ(FieldReplicationFactor, strconv.Itoa(replicas), strconv.Itoa(have.Partitions.NumReplicas()))
	for _, name := range slices.Sorted(maps.Keys(s.Settings)) {
		value, ok := settings[name]
		if !ok {
			value = Missing
		}
		differ(name, s.Settings[name], value)
	}
	return diffs
}

// Create makes the missing topics and waits until the broker shows them. It
// refuses, before making any, when a topic that exists differs: changing
// partitions or settings of topics with data is an operator's decision.
func Create(ctx context.Context, client *kgo.Client, topo *topology.Topology) error {
	diffs, err := Check(ctx, client, topo)
	if err != nil {
		return err
	}
	missing, err := onlyMissing(diffs)
	if err != nil || len(missing) == 0 {
		return err
	}
	admin := kadm.NewClient(client)
	for _, s := range topo.Streams {
		if !missing[s.Topic] {
			continue
		}
		if err := create(ctx, admin, s, topo.Config.ReplicationFactor); err != nil {
			return err
		}
	}
	return awaitTopics(ctx, client, topo)
}

// onlyMissing collects the missing topics; any other difference is an error.
func onlyMissing(diffs []Difference) (map[string]bool, error) {
	missing := make(map[string]bool)
	var wrong []string
	for _, d := range diffs {
		if d.Field == FieldTopic {
			missing[d.Topic] = true
		} else {
			wrong = append(wrong, d.String())
		}
	}
	if len(wrong) > 0 {
		return nil, fmt.Errorf("topics differ from the topology: %s: change the topics with Kafka's own tools, or tidemark's configuration, until they agree", strings.Join(wrong, "; "))
	}
	return missing, nil
}

func create(ctx context.Context, admin *kadm.Client, s topology.Stream, replicas int) error {
	settings := make(map[string]*string, len(s.Settings))
	for name, value := range s.Settings {
		settings[name] = &value
	}
	_, err := admin.CreateTopic(ctx, int32(s.Partitions), int16(replicas), settings, s.Topic)
	if err != nil && !errors.Is(err, kerr.TopicAlreadyExists) { // another process is as quick
		return fmt.Errorf("creating topic %s: %w", s.Topic, err)
	}
	return nil
}

// awaitTopics waits until every broker's metadata shows the new topics, or
// ctx ends.
func awaitTopics(ctx context.Context, client *kgo.Client, topo *topology.Topology) error {
	for {
		diffs, err := Check(ctx, client, topo)
		if err == nil && len(diffs) == 0 {
			return nil
		}
		if err == nil {
			if _, err := onlyMissing(diffs); err != nil {
				return err
			}
			err = errors.New(diffs[0].String())
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for new topics: %w: %w", ctx.Err(), err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}
