package projection

import (
	"testing"
	"time"
)

// Under overload counts are shown at a fifth of the pace, and at once as before
// when it is over.
func TestLevelSlowDisplay(t *testing.T) {
	slow := false
	f := &flusher{projection: &projection{cfg: Config{RefreshInterval: 200 * time.Millisecond, Slow: func() bool { return slow }}}}
	for _, test := range []struct {
		slow bool
		want time.Duration
	}{{false, 200 * time.Millisecond}, {true, time.Second}, {false, 200 * time.Millisecond}} {
		if slow = test.slow; f.refreshInterval() != test.want {
			t.Errorf("overloaded %v: every %v, want %v", slow, f.refreshInterval(), test.want)
		}
	}
}
