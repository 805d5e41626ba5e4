// Package quarantine is how a processor sets a record aside that it cannot
// use, while everything behind it flows on (B5): a refusal with a reason of
// the contract's closed list, the record for stream quarantine, and the count
// and the log line that make it seen.
package quarantine

import (
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// Reason is why a record is set aside, from the closed list of the contract.
type Reason = tidemarkv1.QuarantineReason

// Label is a reason as metrics and logs write it, such as unknown_kind.
func Label(r Reason) string {
	return strings.ToLower(strings.TrimPrefix(r.String(), "QUARANTINE_REASON_"))
}

// Refusal says why a record cannot be used. Its detail names fields and
// numbers, and never holds text from the record.
type Refusal struct {
	Reason Reason
	Detail string
}

// Refuse makes a refusal; a must hold nothing of the record but numbers.
func Refuse(reason Reason, format string, a ...any) *Refusal {
	return &Refusal{reason, fmt.Sprintf(format, a...)}
}

// Record is what goes to stream quarantine in place of r. It depends on
// nothing else, so that a second look at r writes the same.
func (no *Refusal) Record(r topology.Record) (key string, value []byte) {
	value, err := topology.NewQuarantined(r, no.Reason, no.Detail).MarshalVT()
	if err != nil {
		panic(fmt.Sprintf("quarantine: encoding a record of plain fields: %v", err)) // cannot be
	}
	return topology.QuarantineKey(r.Key), value
}

// Tally counts what a processor sets aside and logs the 1st, 2nd, 4th, 8th,
// ... of each reason, so that an input that is wrong throughout does not flood
// the log. The log tells neither key nor payload.
type Tally struct {
	log     *slog.Logger
	reasons map[Reason]*tallied
}

type tallied struct {
	prometheus.Counter
	n atomic.Uint64
}

// NewTally counts in metric tidemark_<processor>_quarantined_total{reason},
// where every reason stands at 0 from the start, so that an alert on a rise
// sees the first one. A nil registerer leaves the metric unregistered.
func NewTally(processor string, reg prometheus.Registerer, log *slog.Logger) (*Tally, error) {
	vec := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "tidemark_" + processor + "_quarantined_total", Help: "Records set aside, by reason."}, []string{"reason"})
	t := &Tally{log: log.With("component", processor), reasons: map[Reason]*tallied{}}
	for number := range tidemarkv1.QuarantineReason_name {
		r := Reason(number)
		if r == 0 {
			continue
		}
		t.reasons[r] = &tallied{Counter: vec.WithLabelValues(Label(r))}
	}
	if reg == nil {
		return t, nil
	}
	if err := reg.Register(vec); err != nil {
		return nil, fmt.Errorf("registering the count of quarantined records: %w", err)
	}
	return t, nil
}

// Add counts r as set aside.
func (t *Tally) Add(r topology.Record, reason Reason) {
	c := t.reasons[reason]
	c.Inc()
	if n := c.n.Add(1); n&(n-1) == 0 {
		t.log.Warn("quarantined a record", "reason", Label(reason), "topic", r.Topic, "partition", r.Partition, "offset", r.Offset, "so_far", n)
	}
}
