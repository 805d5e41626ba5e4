package gokakit

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/tidemark/tidemark/internal/testenv"
)

// G14: a table topic that was made anew is never taken for an empty table of
// the offsets that were committed for the old one; an operator's own offsets
// are believed.
func TestG14TableMadeAnew(t *testing.T) {
	t.Parallel()
	for name, weak := range map[string]Weakness{"as it is": 0, "without log check": WithoutLogCheck} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			m := w.start(nil)
			w.ready(m)
			w.send(10)
			if d := w.counted(); d != "" {
				t.Fatal(d)
			}
			m.stop()
			w.delete(w.table)
			testenv.CreateTopics(t, w.broker, w.topo)
			w.connect()
			m = w.start(func(c *ProcessorConfig) { c.weak = weak })
			if weak != 0 {
				w.ready(m)
				w.send(2)
				if w.counted() == "" {
					t.Fatal("what the lost table held does not matter to the test")
				}
				return
			}
			eventuallyNamed(t, m.Ready, w.table, "made anew")
			w.send(2)
			eventuallyNamed(t, m.Ready, w.table, "made anew")
			if n := w.end(w.table, 0); n > 0 {
				t.Fatalf("%d records were written to a table that was lost", n)
			}
			m.stop()
			w.resetByHand()
			w.start(nil)
			if d := w.counted(); d != "" {
				t.Fatalf("after the input was read again: %s", d)
			}
		})
	}
}

// resetByHand sets the group's offsets to the input's start, as Kafka's own
// tools do: without metadata. The group must be empty.
func (w *world) resetByHand() {
	w.t.Helper()
	var from kadm.Offsets
	for p := range int32(4) {
		from.AddOffset(w.input, p, 0, -1)
	}
	testenv.Eventually(w.t, soon, func() error {
		answers, err := w.admin.CommitOffsets(w.t.Context(), w.group, from)
		if err != nil {
			return err
		}
		return answers.Error()
	})
}
