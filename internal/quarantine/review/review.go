// Package review is what operators do with quarantined records: list them,
// look at one, send it through its origin topic again, or give it up. Who
// decided what, when and why is in the control database; the records stay in
// their stream until its retention ends.
package review

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tidemark/tidemark/internal/control"
	"github.com/tidemark/tidemark/internal/kafkaaccess"
	"github.com/tidemark/tidemark/internal/kafkaadmin"
	"github.com/tidemark/tidemark/internal/quarantine"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// State of a quarantined record.
type State string

// The states.
const (
	Open      State = "open"
	Replayed  State = "replayed"
	Discarded State = "discarded"
)

// Item is a quarantined record.
type Item struct {
	ID        int64 // offset in stream quarantine, of its first copy
	Copies    int   // how often it was set aside, before and after replays of others
	Reason    string
	Detail    string
	Origin    control.Origin
	Key       []byte
	Value     []byte // nil for a null payload
	Truncated bool
	State     State
	Decision  *control.Decision // nil while open
}

// Filter chooses items; the zero value is all of them.
type Filter struct {
	Reason string // a quarantine reason in lower case, such as unknown_kind
	Topic  string // origin
	State  State
}

func (f Filter) takes(i Item) bool {
	return (f.Reason == "" || f.Reason == i.Reason) && (f.Topic == "" || f.Topic == i.Origin.Topic) && (f.State == "" || f.State == i.State)
}

// Reasons lists the closed list of reasons, and Unreadable.
func Reasons() (out []string) {
	for n := range len(tidemarkv1.QuarantineReason_name) {
		if n > 0 {
			out = append(out, quarantine.Label(quarantine.Reason(n)))
		}
	}
	return append(out, Unreadable)
}

// Desk is where records are reviewed.
type Desk struct {
	client  *kgo.Client
	brokers []string
	access  *kafkaaccess.Access
	topic   string
	control *control.DB
}

// New makes a Desk; it connects to Kafka when it is used.
func New(brokers []string, access *kafkaaccess.Access, topo *topology.Topology, db *control.DB) (*Desk, error) {
	client, err := kafkaadmin.Client(brokers, access, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		return nil, err
	}
	return &Desk{client: client, brokers: brokers, access: access, topic: topo.Topic(topology.Quarantine), control: db}, nil
}

// Close ends the connections to Kafka.
func (d *Desk) Close() { d.client.Close() }

// List reads the quarantine and gives the items that a filter takes, oldest
// first.
func (d *Desk) List(ctx context.Context, f Filter) ([]Item, error) {
	decisions, err := d.control.Decisions(ctx)
	if err != nil {
		return nil, err
	}
	decided := map[control.Origin]*control.Decision{}
	for i, x := range decisions {
		decided[at(x.Origin)] = &decisions[i]
	}
	var all []Item
	known := map[control.Origin]int{}
	err = d.read(ctx, func(r *kgo.Record) error {
		item := decode(r)
		if i, copied := known[at(item.Origin)]; copied {
			all[i].Copies++
			return nil
		}
		known[at(item.Origin)] = len(all)
		if item.Decision = decided[at(item.Origin)]; item.Decision != nil {
			item.State = map[string]State{control.Replayed: Replayed, control.Discarded: Discarded}[item.Decision.Decision]
		}
		all = append(all, item)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("reading the quarantine: %w", err)
	}
	var out []Item
	for _, i := range all {
		if f.takes(i) {
			out = append(out, i)
		}
	}
	return out, nil
}

// at makes an origin comparable.
func at(o control.Origin) control.Origin {
	o.FirstSeen = o.FirstSeen.UTC().Round(time.Microsecond)
	return o
}

// Unreadable is the reason of what stands in the quarantine without being a
// quarantined record.
const Unreadable = "unreadable"

func decode(r *kgo.Record) Item {
	var q tidemarkv1.Quarantined
	if err := q.UnmarshalVT(r.Value); err != nil {
		return Item{
			ID: r.Offset, Copies: 1, Reason: Unreadable, Detail: "it is not a quarantined record", State: Open, Key: r.Key, Value: r.Value,
			Origin: control.Origin{Topic: r.Topic, Partition: int(r.Partition), Offset: r.Offset, FirstSeen: r.Timestamp.UTC()},
		}
	}
	if q.Value == nil && q.Reason != quarantine.NullPayload {
		q.Value = []byte{} // protobuf does not tell empty from none
	}
	return Item{
		ID: r.Offset, Copies: 1, Reason: quarantine.Label(q.Reason), Detail: q.Detail, State: Open,
		Origin: control.Origin{Topic: q.Topic, Partition: int(q.Partition), Offset: q.Offset, FirstSeen: time.UnixMicro(q.FirstSeenUs).UTC()},
		Key:    q.Key, Value: q.Value, Truncated: q.Truncated,
	}
}

// read visits every record of the quarantine.
func (d *Desk) read(ctx context.Context, visit func(*kgo.Record) error) error {
	client, err := kafkaadmin.Client(d.brokers, d.access, kgo.KeepControlRecords())
	if err != nil {
		return err
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	starts, err := admin.ListStartOffsets(ctx, d.topic)
	if err == nil {
		err = starts.Error()
	}
	if err != nil {
		return err
	}
	ends, err := admin.ListEndOffsets(ctx, d.topic)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return err
	}
	left := map[int32]int64{}
	from := map[int32]kgo.Offset{}
	ends.Each(func(o kadm.ListedOffset) {
		if start, _ := starts.Lookup(o.Topic, o.Partition); start.Offset < o.Offset {
			left[o.Partition], from[o.Partition] = o.Offset, kgo.NewOffset().At(start.Offset)
		}
	})
	client.AddConsumePartitions(map[string]map[int32]kgo.Offset{d.topic: from})
	for len(left) > 0 {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return err
		}
		for _, r := range fetches.Records() {
			end, reading := left[r.Partition]
			if !reading || r.Offset >= end {
				continue
			}
			if !r.Attrs.IsControl() {
				if err := visit(r); err != nil {
					return err
				}
			}
			if r.Offset == end-1 {
				delete(left, r.Partition)
			}
		}
	}
	return nil
}

// ErrNotFound says that no quarantined record has an id.
var ErrNotFound = errors.New("there is no such record in the quarantine")

// Item finds a record by its id.
func (d *Desk) Item(ctx context.Context, id int64) (Item, error) {
	all, err := d.List(ctx, Filter{})
	if err != nil {
		return Item{}, err
	}
	for _, i := range all {
		if i.ID == id {
			return i, nil
		}
	}
	return Item{}, fmt.Errorf("record %d: %w", id, ErrNotFound)
}

// AuditShown notes that somebody is about to see a record's payload.
func (d *Desk) AuditShown(ctx context.Context, i Item, who, why string) error {
	return d.control.Audit(ctx, control.Entry{Who: who, Action: "quarantine.shown", Subject: i.Origin.Subject(), Reason: why})
}

// ReplayHeader marks a record that was sent again; its value is the item's id.
const ReplayHeader = "tidemark-replay"

// Replay sends the original record through its origin topic again: whoever set
// it aside sees it once more, and sets it aside anew if it still cannot be
// used.
func (d *Desk) Replay(ctx context.Context, i Item, who, why string) error {
	if i.Reason == Unreadable {
		return fmt.Errorf("record %d cannot be replayed: it is not a quarantined record", i.ID)
	}
	if i.Truncated || len(i.Key) == topology.MaxQuarantinedKey {
		return fmt.Errorf("record %d cannot be replayed: only the beginning of its key or value was kept", i.ID)
	}
	x := control.Decision{Origin: i.Origin, Decision: control.Replayed, Who: who, Reason: why}
	return d.control.Decide(ctx, x, func(ctx context.Context) error {
		r := &kgo.Record{
			Topic: i.Origin.Topic, Partition: int32(i.Origin.Partition), Key: i.Key, Value: i.Value,
			Headers: []kgo.RecordHeader{{Key: ReplayHeader, Value: []byte(strconv.FormatInt(i.ID, 10))}},
		}
		if err := d.client.ProduceSync(ctx, r).FirstErr(); err != nil {
			return fmt.Errorf("sending record %d to %s/%d: %w", i.ID, i.Origin.Topic, i.Origin.Partition, err)
		}
		return nil
	})
}

// Discard gives a record up.
func (d *Desk) Discard(ctx context.Context, i Item, who, why string) error {
	return d.control.Decide(ctx, control.Decision{Origin: i.Origin, Decision: control.Discarded, Who: who, Reason: why}, nil)
}
