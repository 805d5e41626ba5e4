package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/tidemark/tidemark/topology"
)

func newTap() *cobra.Command {
	var from string
	var follow bool
	cmd := &cobra.Command{
		Use:   "tap STREAM",
		Short: "Print a stream's records as JSON lines",
		Long: "Print a stream's or table's records as JSON lines: partition, offset, time, key, value.\n" +
			"Without --follow it ends where each partition ended when it began.",
		Args: args(cobra.ExactArgs(1)),
	}
	at := whereFlags(cmd)
	cmd.Flags().StringVar(&from, "from", "earliest", "earliest, latest, or a time (RFC 3339)")
	cmd.Flags().BoolVar(&follow, "follow", false, "go on with what comes")
	cmd.RunE = func(cmd *cobra.Command, given []string) error {
		cfg, err := at.load()
		if err != nil {
			return err
		}
		topo, err := cfg.Topology()
		if err != nil {
			return err
		}
		stream, err := findStream(topo, given[0])
		if err != nil {
			return err
		}
		client, err := kafkaClient(cfg)
		if err != nil {
			return err
		}
		defer client.Close()
		return tap(cmd.Context(), client, stream, from, follow, cmd.OutOrStdout())
	}
	return cmd
}

func findStream(topo *topology.Topology, name string) (topology.Stream, error) {
	var names []string
	for _, s := range topo.Streams {
		if name == s.Name || name == s.Topic {
			return s, nil
		}
		names = append(names, s.Name)
	}
	return topology.Stream{}, usagef("stream %q is not one of %s", name, strings.Join(names, ", "))
}

// tap reads a stream's partitions from where they begin to where they end now,
// or for ever.
func tap(ctx context.Context, client *kgo.Client, s topology.Stream, from string, follow bool, w io.Writer) error {
	begin, end, err := tapBounds(ctx, kadm.NewClient(client), s, from)
	if err != nil {
		return err
	}
	open := map[int32]int64{}
	partitions := map[int32]kgo.Offset{}
	for p, o := range begin {
		if follow || o < end[p] {
			open[p] = end[p]
			partitions[p] = kgo.NewOffset().At(o)
		}
	}
	client.AddConsumePartitions(map[string]map[int32]kgo.Offset{s.Topic: partitions})
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	for follow || len(open) > 0 {
		fetches := client.PollFetches(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if errs := fetches.Errors(); len(errs) > 0 {
			return fmt.Errorf("reading %s: %w", s.Topic, errs[0].Err)
		}
		for _, r := range fetches.Records() {
			last, isOpen := open[r.Partition]
			if !follow && (!isOpen || r.Offset >= last) {
				delete(open, r.Partition)
				continue
			}
			if err := enc.Encode(tapRecord(s, r)); err != nil {
				return err
			}
			if !follow && r.Offset >= last-1 {
				delete(open, r.Partition)
			}
		}
	}
	return nil
}

// tapBounds are the first offset to read of each partition and the one after
// its last.
func tapBounds(ctx context.Context, admin *kadm.Client, s topology.Stream, from string) (begin, end map[int32]int64, err error) {
	ends, err := admin.ListEndOffsets(ctx, s.Topic)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return nil, nil, fmt.Errorf("asking for the ends of %s: %w", s.Topic, err)
	}
	starts := ends
	switch from {
	case "latest":
	case "earliest":
		starts, err = admin.ListStartOffsets(ctx, s.Topic)
	default:
		t, parseErr := time.Parse(time.RFC3339, from)
		if parseErr != nil {
			return nil, nil, usagef("--from %q is not earliest, latest or a time such as 2026-08-19T10:20:30Z", from)
		}
		starts, err = admin.ListOffsetsAfterMilli(ctx, t.UnixMilli(), s.Topic)
	}
	if err == nil {
		err = starts.Error()
	}
	if err != nil {
		return nil, nil, fmt.Errorf("asking where to begin in %s: %w", s.Topic, err)
	}
	begin, end = map[int32]int64{}, map[int32]int64{}
	starts.Each(func(o kadm.ListedOffset) { begin[o.Partition] = o.Offset })
	ends.Each(func(o kadm.ListedOffset) { end[o.Partition] = o.Offset })
	return begin, end, nil
}

// tapped is one line.
type tapped struct {
	Partition int32           `json:"partition"`
	Offset    int64           `json:"offset"`
	Time      time.Time       `json:"time"`
	Key       string          `json:"key"`
	Value     json.RawMessage `json:"value"`
	Error     string          `json:"error,omitempty"` // why the value is not decoded
}

func tapRecord(s topology.Stream, r *kgo.Record) tapped {
	t := tapped{Partition: r.Partition, Offset: r.Offset, Time: r.Timestamp.UTC(), Key: string(r.Key)}
	value, err := decodeValue(s, r.Value)
	if err != nil {
		t.Error = err.Error()
	}
	t.Value = value
	return t
}

// decodeValue gives a value as JSON; null for none or for one that cannot be
// decoded.
func decodeValue(s topology.Stream, value []byte) (json.RawMessage, error) {
	null := json.RawMessage("null")
	if value == nil {
		return null, nil
	}
	if !strings.HasPrefix(s.Value, "tidemark.v1.") {
		if !json.Valid(value) {
			return null, fmt.Errorf("the value is not JSON")
		}
		return value, nil
	}
	mt, err := protoregistry.GlobalTypes.FindMessageByName(protoreflect.FullName(s.Value))
	if err != nil {
		return null, fmt.Errorf("schema %s: %w", s.Value, err)
	}
	m := mt.New().Interface()
	if err := proto.Unmarshal(value, m); err != nil {
		return null, fmt.Errorf("the value is not a %s", s.Value)
	}
	b, err := protojson.MarshalOptions{EmitUnpopulated: false}.Marshal(m)
	if err != nil {
		return null, fmt.Errorf("printing a %s: %w", s.Value, err)
	}
	return b, nil
}
