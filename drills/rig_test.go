package drills

import (
	"errors"
	"strings"
	"testing"
)

// What a drill lacks is named, and a run without it stays green.
func TestDrillsSayWhatTheyLack(t *testing.T) {
	const three = "a:1,b:2,c:3"
	for _, c := range []struct {
		drill string
		env   environment
		want  string // "": nothing
	}{
		{"kill", environment{}, ""},
		{"kill", environment{kafka: "a:1"}, ""},
		{"two-versions", environment{}, "make previous"},
		{"two-versions", environment{previous: "/x"}, ""},
		{"broker-of-three", environment{}, ""},
		{"broker-of-three", environment{kafka: three}, "--brokers-command"},
		{"broker-of-three", environment{kafka: "a:1", brokersCommand: "x"}, "--real-kafka"},
		{"broker-of-three", environment{kafka: three, brokersCommand: "x"}, ""},
	} {
		d, err := Find(c.drill)
		if err != nil {
			t.Fatal(err)
		}
		r := &rig{environment: c.env, cell: d.Cell.withDefaults()}
		got := r.lacks()
		var missing missingError
		if got == nil != (c.want == "") || got != nil && (!errors.As(got, &missing) || !strings.Contains(got.Error(), c.want)) {
			t.Errorf("%s with %+v: %v, want %q", c.drill, c.env, got, c.want)
		}
	}
	x := run(t, Options{}, Entry{"two-versions", 1})
	if x.Verdict != Skipped || !strings.Contains(x.Reason, "make previous") {
		t.Errorf("%+v", x)
	}
}

// A command that real brokers are ended with is told which, and what it says
// when it fails is kept.
func TestRealNodes(t *testing.T) {
	if err := realNodes("test kill =").Kill(t.Context(), 3, 0); err == nil || !strings.Contains(err.Error(), `"test kill = kill 3"`) {
		t.Errorf("got %v", err)
	}
	if err := realNodes("test up =").Start(t.Context(), 3); err != nil {
		t.Error(err)
	}
}
