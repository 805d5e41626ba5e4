package cache

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/tidemark/tidemark/topology"
)

// Order is how one value of a count's key stands to another: of the same
// manifest the one of the later projection, and of one projection the one of the
// higher seq, is the later one.
type Order struct {
	Seq        uint64
	Manifest   uint64 // of the routes by which it was counted
	Projection uint64 // generation of the projection
}

// DisplayCount is a target's displayed count.
type DisplayCount struct {
	Kind   topology.Kind
	Target string
	Order
	Counts                       topology.Counts
	GeneratedAtUs, CommittedAtUs int64 // as in the display table
	Partials                     int   // count partitions that have spoken of the target
}

// BucketCount is a target's count in one count partition: in those of its virtual
// buckets that the manifest routes there. Display knows no finer.
type BucketCount struct {
	Kind   topology.Kind
	Target string
	Number int
	Order
	Counts topology.Counts
}

// CountProgress says how far the counts of one display partition have come. It
// is written behind what it speaks of, so that whoever reads it first, and counts
// then, has counts that include at least what it says.
type CountProgress struct {
	// Manifest of the generation.
	Manifest uint64 `json:"manifest"`
	// Offset of the display table's log; what stands there before is in the cache.
	Offset uint64 `json:"offset"`
	// Whole is false while the partition is copied for the first time; Read of
	// about About targets are then copied.
	Whole bool  `json:"whole"`
	Read  int64 `json:"read"`
	About int64 `json:"about"`
	// Sampled rows were read back and compared. Fault says what was found wrong.
	Sampled int64  `json:"sampled"`
	Fault   string `json:"fault,omitempty"`
	// AsOf is what every count of the partition includes, by shard; a shard of
	// which nothing is known is missing.
	AsOf []ShardSeal `json:"asOf"`
}

// ShardSeal is a seal of a shard: what was committed before it is included.
type ShardSeal struct {
	Shard             int    `json:"shard"`
	Seal              uint64 `json:"seal"`
	PreviousCommitLSN uint64 `json:"previousCommitLsn"`
	LSN               uint64 `json:"lsn"`
	SealedAtUs        int64  `json:"sealedAtUs"`
}

// CountWrite is a value on its way to a key of counts.
type CountWrite struct {
	key   Key
	order Order
	value string
}

// head is how each value of counts begins: seq|manifest|projection|generation.
func (o Order) head(g Generation) []byte {
	b := strconv.AppendUint(make([]byte, 0, 96), o.Seq, 10)
	for _, n := range [...]uint64{o.Manifest, o.Projection, g.ID} {
		b = strconv.AppendUint(append(b, '|'), n, 10)
	}
	return b
}

func numbers(b []byte, all ...int64) []byte {
	for _, n := range all {
		b = strconv.AppendInt(append(b, '|'), n, 10)
	}
	return b
}

// WriteDisplay is the write of a displayed count.
func (g Generation) WriteDisplay(d DisplayCount) CountWrite {
	value := numbers(d.head(g), d.Counts.Raw, d.Counts.Disliked, d.GeneratedAtUs, d.CommittedAtUs, int64(d.Partials))
	return CountWrite{g.DisplayKey(d.Kind, d.Target), d.Order, string(hidden(value, d.Counts))}
}

// WriteBucket is the write of a bucket's count.
func (g Generation) WriteBucket(c BucketCount) CountWrite {
	return CountWrite{g.CountKey(c.Kind, c.Target, c.Number), c.Order, string(hidden(numbers(c.head(g), c.Counts.Raw, c.Counts.Disliked), c.Counts))}
}

// hidden ends a value with the relations that risk and policy hide, if any. A
// reader from before there were such refuses it, as it does every value of a form
// that it does not know, and does not show the raw count.
func hidden(b []byte, c topology.Counts) []byte {
	if c.RiskHidden == 0 && c.PolicyHidden == 0 {
		return b
	}
	return numbers(b, c.RiskHidden, c.PolicyHidden)
}

// WriteProgress is the write of a display partition's progress.
func (g Generation) WriteProgress(partition int, p CountProgress) (CountWrite, error) {
	text, err := json.Marshal(p)
	o := Order{Seq: p.Offset, Manifest: p.Manifest}
	return CountWrite{g.progressKey(partition), o, string(append(append(o.head(g), '|'), text...))}, err
}

// ErrManifest says that a count was counted by other routes than its cache
// generation's: it belongs to another one.
var ErrManifest = errors.New("counted by other routes than the cache generation's")

// CountWriter writes counts. Only the processor that keeps the display table may
// have one (E4), for rows that are acked; the linter holds everybody else off.
type CountWriter struct{ client *Client }

// NewCountWriter makes one.
func NewCountWriter(c *Client) *CountWriter { return &CountWriter{c} }

// writeCount takes the generation's manifest and the value. A value that is not
// later than the one that stands changes nothing: of a lower seq, an older
// projection or another manifest. A full server keeps the older value: it is
// late, and the progress, which is not written before everything else is, says so.
var writeCount = NewScript(`
local function order(value)
  local seq, manifest, projection = string.match(value, '^(%d+)|(%d+)|(%d+)|')
  return tonumber(seq or 0), manifest, tonumber(projection or 0)
end
local seq, manifest, projection = order(ARGV[5])
if manifest ~= ARGV[4] then return 0 end
local old = redis.call('GET', KEYS[1])
if old then
  local oldSeq, oldManifest, oldProjection = order(old)
  if oldManifest and oldManifest ~= manifest then return 0 end
  if oldProjection > projection or oldProjection == projection and oldSeq > seq then return 0 end
end
redis.call('SET', KEYS[1], ARGV[5])
return 1`)

// Write brings values into a generation, pipelined per node, and says how many
// stand there now as given; the others were not later than what stood there. An
// error is the first of any: what was given may be there in part, and can be given
// again.
func (w *CountWriter) Write(ctx context.Context, g Generation, owner Owner, writes []CountWrite) (written int, err error) {
	if err := g.Check(); err != nil {
		return 0, err
	}
	calls := make([]Call, 0, len(writes))
	for _, e := range writes {
		if e.order.Manifest != g.Manifest {
			return 0, fmt.Errorf("writing a count of manifest %d to generation %d of manifest %d: %w", e.order.Manifest, g.ID, g.Manifest, ErrManifest)
		}
		if e.order.Seq <= maxVersion {
			calls = append(calls, Call{Key: e.key, Owner: owner, Args: []any{strconv.FormatUint(g.Manifest, 10), e.value}})
		}
	}
	return w.client.sum(ctx, writeCount, calls)
}

// Displays reads the displayed counts of targets, in their order; nil for one
// that the cache does not have, which says nothing of the target.
func (c *Client) Displays(ctx context.Context, g Generation, kind topology.Kind, targets []string) ([]*DisplayCount, error) {
	reads := make([]Read, len(targets))
	for i, target := range targets {
		reads[i] = Value(g.DisplayKey(kind, target))
	}
	out := make([]*DisplayCount, len(targets))
	err := c.texts(ctx, g, reads, func(i int, text string) (err error) {
		out[i], err = g.parseDisplay(kind, targets[i], text)
		return err
	})
	return out, err
}

// CountProgress reads how far display partitions have come, in their order; nil
// for one that the cache says nothing of.
func (c *Client) CountProgress(ctx context.Context, g Generation, partitions []int) ([]*CountProgress, error) {
	reads := make([]Read, len(partitions))
	for i, p := range partitions {
		reads[i] = Value(g.progressKey(p))
	}
	out := make([]*CountProgress, len(partitions))
	err := c.texts(ctx, g, reads, func(i int, text string) error {
		_, rest, err := g.parseHead(text)
		if err == nil {
			out[i] = new(CountProgress)
			err = json.Unmarshal([]byte(rest), out[i])
		}
		if err != nil {
			return fmt.Errorf("redis: the progress of display partition %d: %w", partitions[i], err)
		}
		return nil
	})
	return out, err
}

// texts reads strings and visits those that are there. An error is of the whole.
func (c *Client) texts(ctx context.Context, g Generation, reads []Read, visit func(i int, text string) error) error {
	if err := g.Check(); err != nil {
		return err
	}
	for i, reply := range c.Read(ctx, reads) {
		if reply.Err != nil {
			return reply.Err
		}
		if text, ok := reply.Value.(string); ok {
			if err := visit(i, text); err != nil {
				return err
			}
		}
	}
	return nil
}

// parseHead reads a value's order; rest is what stands behind the head.
func (g Generation) parseHead(text string) (o Order, rest string, err error) {
	var generation uint64
	rest = text
	for _, to := range [...]*uint64{&o.Seq, &o.Manifest, &o.Projection, &generation} {
		var word string
		var ok bool
		word, rest, ok = strings.Cut(rest, "|")
		n, bad := strconv.ParseUint(word, 10, 64)
		if bad != nil || !ok {
			return o, "", g.noCount(text)
		}
		*to = n
	}
	if generation != g.ID || o.Manifest != g.Manifest {
		return o, "", fmt.Errorf("redis: a count of generation %d, manifest %d, reads %.60q", g.ID, g.Manifest, text)
	}
	return o, rest, nil
}

// fields reads the numbers behind a value's head, and those that hidden may have
// ended it with into the counts.
func (g Generation) fields(text string, counts *topology.Counts, into ...*int64) (o Order, err error) {
	o, rest, err := g.parseHead(text)
	if err != nil {
		return o, err
	}
	more := true
	next := func(to *int64) bool {
		var word string
		word, rest, more = strings.Cut(rest, "|")
		*to, err = strconv.ParseInt(word, 10, 64)
		return err == nil
	}
	for _, to := range into {
		if !more || !next(to) {
			return o, g.noCount(text)
		}
	}
	if more && (!next(&counts.RiskHidden) || !more || !next(&counts.PolicyHidden) || more) {
		return o, g.noCount(text)
	}
	return o, nil
}

func (g Generation) noCount(text string) error {
	return fmt.Errorf("redis: a count of generation %d reads %.60q, which is none", g.ID, text)
}

func (g Generation) parseDisplay(kind topology.Kind, target, text string) (*DisplayCount, error) {
	d := &DisplayCount{Kind: kind, Target: target}
	var partials int64
	var err error
	d.Order, err = g.fields(text, &d.Counts, &d.Counts.Raw, &d.Counts.Disliked, &d.GeneratedAtUs, &d.CommittedAtUs, &partials)
	d.Partials = int(partials)
	if err != nil {
		return nil, err
	}
	return d, nil
}
