package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/tidemark/tidemark/internal/config"
	"github.com/tidemark/tidemark/internal/control"
	"github.com/tidemark/tidemark/topology"
)

func newTap() *cobra.Command {
	var from string
	var follow bool
	cmd := &cobra.Command{
		Use:   "tap STREAM",
		Short: "Print a stream's records as JSON lines",
		Long: "Print a stream's or table's records as JSON lines: partition, offset, time, key, value. A value that\n" +
			"cannot be decoded is null and has its reason in the field error.\n" +
			"The audit has who read which stream, before anything is printed: records name users.\n" +
			"Without --follow it ends where each partition ended when it began; with it, at Ctrl-C.\n\n" +
			"Streams: " + strings.Join(streamNames(), ", ") + ".",
		Example: "  tidemark tap quarantine\n" +
			"  tidemark tap facts --from latest --follow\n" +
			"  tidemark tap cdc --from 2026-08-19T10:20:30Z | jq .value.after",
		Args: exactly(1, "a STREAM of "+strings.Join(streamNames(), ", ")),
	}
	at := whereFlags(cmd)
	by := asFlag(cmd)
	reason := reasonFlag(cmd)
	cmd.Flags().StringVar(&from, "from", "earliest", "`WHERE` to begin: earliest, latest, or a time such as 2026-08-19T10:20:30Z")
	cmd.Flags().BoolVar(&follow, "follow", false, "go on with what comes")
	cmd.RunE = func(cmd *cobra.Command, given []string) error {
		begin, err := parseBegin(from)
		if err != nil {
			return err
		}
		if !strings.Contains(given[0], ".") && !slices.Contains(streamNames(), given[0]) {
			return unknownStream(given[0])
		}
		who, err := by.name()
		if err != nil {
			return err
		}
		cfg, err := at.load(config.PartKafka, config.PartControl)
		if err != nil {
			return err
		}
		topo, err := cfg.Topology()
		if err != nil {
			return err
		}
		for _, s := range topo.Streams {
			if given[0] == s.Name || given[0] == s.Topic {
				e := control.Entry{Who: who, Action: "stream.read", Subject: "stream:" + s.Name, Reason: *reason, Detail: map[string]any{"from": from, "follow": follow}}
				if err := auditBefore(cmd.Context(), cfg, e); err != nil {
					return err
				}
				return tap(cmd.Context(), cfg, s, begin, follow, cmd.OutOrStdout())
			}
		}
		return unknownStream(given[0])
	}
	return cmd
}

// streamNames are the names of the streams, the same in every deployment.
func streamNames() []string {
	topo, err := topology.New(topology.DefaultConfig())
	if err != nil {
		panic(err) // the default is valid
	}
	var names []string
	for _, s := range topo.Streams {
		names = append(names, s.Name)
	}
	return names
}

func unknownStream(name string) error {
	return usagef("stream %q is not one of %s", name, strings.Join(streamNames(), ", "))
}

// begin is where a tap begins: earliest, latest, or a time.
type begin struct {
	latest bool
	at     time.Time // zero: not a time
}

func parseBegin(from string) (begin, error) {
	switch from {
	case "earliest":
		return begin{}, nil
	case "latest":
		return begin{latest: true}, nil
	}
	t, err := time.Parse(time.RFC3339, from)
	if err != nil {
		return begin{}, usagef("--from %q is not earliest, latest or a time such as 2026-08-19T10:20:30Z", from)
	}
	return begin{at: t}, nil
}

// Memory of a tap: what is fetched and not printed yet.
const (
	tapFetchBytes     = 4 << 20 // per broker
	tapPartitionBytes = 1 << 20
	tapPoll           = 1000 // records
)

// tap prints a stream's partitions from where they begin to where they end
// now, or until ctx ends.
func tap(ctx context.Context, cfg config.Config, s topology.Stream, from begin, follow bool, out io.Writer) error {
	client, err := kafkaClient(cfg, kgo.FetchMaxBytes(tapFetchBytes), kgo.FetchMaxPartitionBytes(tapPartitionBytes), kgo.MaxConcurrentFetches(1))
	if err != nil {
		return err
	}
	defer client.Close()
	first, end, err := tapBounds(ctx, kadm.NewClient(client), s, from)
	if err != nil {
		return err
	}
	if follow {
		clear(end)
	} else {
		for p := range first {
			if first[p] >= end[p] {
				delete(first, p)
				delete(end, p)
			}
		}
	}
	partitions := map[int32]kgo.Offset{}
	for p, o := range first {
		partitions[p] = kgo.NewOffset().At(o)
	}
	client.AddConsumePartitions(map[string]map[int32]kgo.Offset{s.Topic: partitions})
	buffered := bufio.NewWriterSize(out, 64<<10)
	enc := json.NewEncoder(buffered)
	enc.SetEscapeHTML(false)
	for follow || len(end) > 0 {
		fetches := client.PollRecords(ctx, tapPoll)
		if ctx.Err() != nil {
			return interrupted(ctx, follow)
		}
		if errs := fetches.Errors(); len(errs) > 0 {
			return fmt.Errorf("reading %s: %w", s.Topic, errs[0].Err)
		}
		if err := tapRecords(enc, s, fetches, end, follow); err != nil {
			return err
		}
		if err := buffered.Flush(); err != nil {
			return fmt.Errorf("writing: %w", err)
		}
	}
	return nil
}

// interrupted is the end of a tap by its caller: of one that follows, as meant.
func interrupted(ctx context.Context, follow bool) error {
	if follow {
		return nil
	}
	return ctx.Err()
}

// tapRecords prints records up to the partitions' ends, and forgets each end
// that is reached.
func tapRecords(enc *json.Encoder, s topology.Stream, fetches kgo.Fetches, end map[int32]int64, follow bool) error {
	for records := fetches.RecordIter(); !records.Done(); {
		r := records.Next()
		last, open := end[r.Partition]
		if !follow && r.Offset >= last-1 {
			delete(end, r.Partition)
		}
		if !follow && (!open || r.Offset >= last) {
			continue
		}
		if err := enc.Encode(tapRecord(s, r)); err != nil {
			return fmt.Errorf("writing: %w", err)
		}
	}
	return nil
}

// tapBounds are the first offset to read of each partition and the one after
// its last.
func tapBounds(ctx context.Context, admin *kadm.Client, s topology.Stream, from begin) (first, end map[int32]int64, err error) {
	ends, err := listed(admin.ListEndOffsets(ctx, s.Topic))
	if err != nil {
		return nil, nil, fmt.Errorf("asking for the ends of %s: %w", s.Topic, err)
	}
	starts := ends
	switch {
	case from.latest:
	case from.at.IsZero():
		starts, err = listed(admin.ListStartOffsets(ctx, s.Topic))
	default:
		starts, err = listed(admin.ListOffsetsAfterMilli(ctx, from.at.UnixMilli(), s.Topic))
	}
	if err != nil {
		return nil, nil, fmt.Errorf("asking where to begin in %s: %w", s.Topic, err)
	}
	first, end = map[int32]int64{}, map[int32]int64{}
	starts.Each(func(o kadm.ListedOffset) { first[o.Partition] = o.Offset })
	ends.Each(func(o kadm.ListedOffset) { end[o.Partition] = o.Offset })
	return first, end, nil
}

func listed(offsets kadm.ListedOffsets, err error) (kadm.ListedOffsets, error) {
	if err == nil {
		err = offsets.Error()
	}
	return offsets, err
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
