package risk

import (
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/tidemark/tidemark/topology"
)

// Question is a command that would begin a relation, with what is known of who
// sends it.
type Question struct {
	Relation topology.Relation
	// Desired is any state of the kind but its initial one.
	Desired topology.State
	Class   Class
	// Device and Sequence are the client's own words; empty and nil: not told.
	Device   string
	Sequence *uint64
	// Address is invalid where it cannot be told.
	Address netip.Addr
	At      time.Time
}

// LogValue keeps a question out of logs, whoever logs it.
func (Question) LogValue() slog.Value { return slog.StringValue("(a question of risk)") }

// Class is the sort of network that a client comes from.
type Class string

// The classes. Gateways have many people behind each address.
const (
	Subscriber Class = "subscriber"
	Gateway    Class = "gateway"
	Unknown    Class = "unknown" // the address cannot be told
)

// ParseClass reads a class's name.
func ParseClass(s string) (Class, error) {
	switch c := Class(s); c {
	case Subscriber, Gateway, Unknown:
		return c, nil
	}
	return "", fmt.Errorf("%.40q is not one of subscriber, gateway, unknown", s)
}
