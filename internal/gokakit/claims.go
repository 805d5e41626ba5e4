package gokakit

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kadm"
)

// A static member that comes back to a stable group is given what it had: the
// plan is not made anew, even if the member reads other topics than before. A
// version that reads one topic more would not read it, in silence, until
// something else makes the group plan again (G18 of the bug log). Such a
// member gives up its place in the group and joins as a new one.

// checkClaims is nil when the same partitions of every input are claimed, and
// of nothing else.
func (a *attempt) checkClaims(claims map[string][]int32) error {
	var inputs []string
	for _, name := range a.cfg.Topology.Group(a.cfg.Group).Inputs {
		inputs = append(inputs, a.cfg.Topology.Topic(name))
	}
	instance := a.instance()
	if claimsFit(claims, inputs) || instance == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(a.ctx, adminTimeout)
	defer cancel()
	left, err := a.logs.admin.LeaveGroup(ctx, kadm.LeaveGroup(a.group).InstanceIDs(instance).Reason("it reads other topics than before"))
	for _, l := range left {
		err = errors.Join(err, l.Err)
	}
	if err != nil {
		return fmt.Errorf("leaving group %s, whose plan gives %v of other topics than this version reads: %w", a.group, claims, err)
	}
	return fmt.Errorf("group %s still has the plan for another version's topics, %v; this one reads %v and joins anew", a.group, claims, inputs)
}

// claimsFit tells whether the same partitions of every input are claimed.
func claimsFit(claims map[string][]int32, inputs []string) bool {
	of := func(topic string) []int32 { return slices.Sorted(slices.Values(claims[topic])) }
	for topic := range claims {
		if len(claims[topic]) > 0 && !slices.Contains(inputs, topic) {
			return false
		}
	}
	return !slices.ContainsFunc(inputs, func(topic string) bool { return !slices.Equal(of(topic), of(inputs[0])) })
}
