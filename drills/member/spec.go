// Package member is a process that runs the real projection and display
// processors as members of their groups, for drills to kill and pause.
package member

import (
	"time"

	"github.com/tidemark/tidemark/internal/gokakit"
	"github.com/tidemark/tidemark/topology"
)

// Command is the hidden command that runs a member: Command SPEC, a Spec as
// JSON.
const Command = "drill-member"

// Spec says how a member runs.
type Spec struct {
	Brokers  []string        `json:"brokers"`
	Topology topology.Config `json:"topology"`
	Instance string          `json:"instance"`
	StateDir string          `json:"stateDir"`
	Session  time.Duration   `json:"session"`
	Refresh  time.Duration   `json:"refresh"`
	// WriteBehind is small in drills, so that little traffic reaches the disk.
	WriteBehind int              `json:"writeBehind"`
	HotStandby  bool             `json:"hotStandby"`
	Weakness    gokakit.Weakness `json:"weakness"`
}

// Manifest is the route of every bucket in a drill.
func Manifest(t topology.Config) topology.Manifest {
	return topology.NewManifest(1, 1, 1, topology.DefaultBucketSpace(), t.CountPartitions)
}

// Sign is a line that a member writes to stdout.
type Sign struct {
	// Event is one of the events below.
	Event string `json:"event"`
	// Reason is why a member is not ready.
	Reason string `json:"reason,omitempty"`
	// Figures of both processors together, so far.
	Figures Figures `json:"figures"`
}

// Events of a member's life.
const (
	Ready   = "ready"   // both processors consume
	Unready = "unready" // or no longer do, for another reason than before
	First   = "first"   // the first input record was handled
	Tick    = "tick"    // a second has passed
)

// Figures are what a member has done since it started.
type Figures struct {
	Records  int64 `json:"records"`
	Rebuilds int64 `json:"rebuilds"`
	Fenced   int64 `json:"fenced"`
	Repairs  int64 `json:"repairs"`
}

func (f Figures) plus(g Figures) Figures {
	return Figures{f.Records + g.Records, f.Rebuilds + g.Rebuilds, f.Fenced + g.Fenced, f.Repairs + g.Repairs}
}
