package config

import (
	"fmt"
	"slices"
	"strings"
)

// Visibility of targets, and of the accounts that send commands (docs/privacy.md).
type Visibility struct {
	// UnknownTargets that no privacy event spoke of: AllowCommand or
	// RefuseCommand.
	UnknownTargets string `koanf:"unknown_targets"`
	// Unavailable is what commands get on targets of which nothing is remembered,
	// while the control database does not answer: AllowCommand or RefuseCommand.
	Unavailable string `koanf:"unavailable"`
	// Blocks between two users: RefuseCommand or AllowCommand between them.
	Blocks string `koanf:"blocks"`
	// StrongCheck has the statuses for which the control database is asked at
	// every command, and not what is remembered.
	StrongCheck []string `koanf:"strong_check"`
	// RememberedSubjects bounds the accounts, videos and pairs of users that a
	// process remembers, about 200 bytes each, 1000..10000000.
	RememberedSubjects int `koanf:"remembered_subjects"`
}

// Values of the settings of Visibility.
const (
	AllowCommand  = "allow"
	RefuseCommand = "refuse"
)

// strongStatuses may stand in StrongCheck: those of accounts and videos in
// privacy events, and that of what no event spoke of.
var strongStatuses = []string{"UNKNOWN", "PUBLIC", "FRIENDS", "PRIVATE", "DELETED", "TAKEN_DOWN", "REMOVED", "ACTIVE", "CLOSED", "BANNED"}

// DefaultVisibility needs no privacy events.
func DefaultVisibility() Visibility {
	return Visibility{
		UnknownTargets: AllowCommand, Unavailable: AllowCommand, Blocks: RefuseCommand,
		StrongCheck: []string{"PRIVATE", "FRIENDS"}, RememberedSubjects: 100_000,
	}
}

func (v Visibility) validate(p *problems) {
	for path, choice := range map[string]string{"unknown_targets": v.UnknownTargets, "unavailable": v.Unavailable, "blocks": v.Blocks} {
		if choice != AllowCommand && choice != RefuseCommand {
			p.add("visibility."+path, "%q is not one of %s, %s", choice, AllowCommand, RefuseCommand)
		}
	}
	for i, status := range v.StrongCheck {
		if !slices.Contains(strongStatuses, status) {
			p.add(fmt.Sprintf("visibility.strong_check[%d]", i), "%q is not one of %s", status, strings.Join(strongStatuses, ", "))
		}
	}
	if v.RememberedSubjects < 1000 || v.RememberedSubjects > 10_000_000 {
		p.add("visibility.remembered_subjects", "is %d, not in 1000..10000000", v.RememberedSubjects)
	}
}
