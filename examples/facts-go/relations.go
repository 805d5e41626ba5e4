package main

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// relations is what a reader of facts keeps: of each (kind, target, user) the
// highest version and its state. Taking a record twice, late or out of order
// changes nothing, so it does not matter from where reading goes on after a
// restart, as long as nothing is left out.
type relations map[relation]current

type relation struct {
	kind         tidemarkv1.Kind
	target, user string
}

type current struct {
	version uint64
	state   tidemarkv1.State
}

type outcome string

const (
	applied  outcome = "applied"
	old      outcome = "old"
	unusable outcome = "unusable"
)

// apply takes a record's value. Its key, headers and offset say nothing that
// is needed here: versions alone order a relation's facts.
func (all relations) apply(value []byte) outcome {
	if value == nil {
		return unusable // tidemark writes no tombstones; a foreign one deletes nothing
	}
	var change tidemarkv1.RelationChange
	if proto.Unmarshal(value, &change) != nil { // fields of later versions are skipped
		return unusable
	}
	// A kind or state of a later version is a number without a name, and kept.
	key := relation{change.Kind, change.TargetId, change.UserId}
	next := current{change.RelationVersion, change.State}
	if key.kind == 0 || key.target == "" || key.user == "" || next.version == 0 || next.state == 0 {
		return unusable
	}
	if next.version <= all[key].version {
		return old
	}
	all[key] = next
	return applied
}

// print writes every relation as a line "kind target user version state",
// sorted, with tabs in between.
func (all relations) print(w io.Writer) error {
	var lines []string
	for k, v := range all {
		kind := strings.ToLower(strings.TrimPrefix(k.kind.String(), "KIND_"))
		state := strings.TrimPrefix(v.state.String(), "STATE_")
		lines = append(lines, strings.Join([]string{kind, k.target, k.user, strconv.FormatUint(v.version, 10), state}, "\t"))
	}
	slices.Sort(lines)
	for _, line := range lines {
		if _, err := fmt.Fprintln(w, line); err != nil {
			return err
		}
	}
	return nil
}
