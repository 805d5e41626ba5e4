package topology

import (
	"fmt"

	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// Hidden says who keeps a relation out of the count that users see. Its
// numbers are those of the protobuf enum and of the relation table.
type Hidden uint8

// Who hides. A hidden relation stays a fact: its user's own state, lists and
// exports have it, and so does the raw count.
const (
	Shown          = Hidden(tidemarkv1.Hidden_HIDDEN_UNSPECIFIED)
	HiddenByRisk   = Hidden(tidemarkv1.Hidden_HIDDEN_RISK)
	HiddenByPolicy = Hidden(tidemarkv1.Hidden_HIDDEN_POLICY)
)

var hiddenNames = [...]string{Shown: "", HiddenByRisk: "risk", HiddenByPolicy: "policy"}

// Valid tells whether h is Shown or names who hides.
func (h Hidden) Valid() bool { return h <= HiddenByPolicy }

// String gives who hides as events and APIs write it: risk, policy, and empty
// for what is shown.
func (h Hidden) String() string {
	if !h.Valid() {
		return fmt.Sprintf("hidden(%d)", uint8(h))
	}
	return hiddenNames[h]
}

// ParseHidden reads risk, policy, or the empty string of what is shown.
func ParseHidden(s string) (Hidden, error) {
	for h, name := range hiddenNames {
		if name == s {
			return Hidden(h), nil
		}
	}
	return 0, fmt.Errorf("hidden by %q is neither risk nor policy", clip(s))
}

// Hiding says by whom and why a relation in its kind's counted state is hidden;
// the zero value: it is shown. A relation in any other state is shown.
type Hiding struct {
	By Hidden
	// Reason is a short code for analysts and operators, such as
	// device-farm.2026-07; empty exactly when the relation is shown.
	Reason string
}

// HidingOf reads a record's fields. Who hides may be unknown: Check tells.
func HidingOf(by tidemarkv1.Hidden, reason string) Hiding {
	if by < 0 || by > tidemarkv1.Hidden(HiddenByPolicy) {
		return Hiding{HiddenByPolicy + 1, reason}
	}
	return Hiding{Hidden(by), reason}
}

// MaxHidingReason is the longest reason, in bytes.
const MaxHidingReason = 64

// Check refuses a hiding by nobody known, or whose reason is missing, not a
// code, or of something that is shown.
func (h Hiding) Check() error {
	switch {
	case !h.By.Valid():
		return fmt.Errorf("hidden %d is unknown", h.By)
	case h.By == Shown && h.Reason != "":
		return fmt.Errorf("what is shown has no reason of its hiding")
	case h.By != Shown && !reasonCode(h.Reason):
		return fmt.Errorf("the reason of a hiding is not a code of 1 to %d characters: a-z, 0-9, and after the first also '.', '_' and '-'", MaxHidingReason)
	}
	return nil
}

func reasonCode(s string) bool {
	if len(s) < 1 || len(s) > MaxHidingReason {
		return false
	}
	for i := range len(s) {
		c := s[i]
		letter := c >= 'a' && c <= 'z' || c >= '0' && c <= '9'
		if !letter && (i == 0 || c != '.' && c != '_' && c != '-') {
			return false
		}
	}
	return true
}

// Counts are the relations of a target, or of a part of it. For the counted
// state: 0 <= RiskHidden + PolicyHidden <= Raw, each of the three counted by
// itself, so that none can be wrong without a difference.
type Counts struct {
	Raw          int64 // in the counted state, hidden ones too
	RiskHidden   int64
	PolicyHidden int64
	Disliked     int64
}

// Of a record that was written before relations could be hidden, these hide none.

// CountsOfBucket reads the counts of a bucket.
func CountsOfBucket(b *tidemarkv1.BucketCount) Counts {
	return Counts{b.GetActive(), b.GetRiskHidden(), b.GetPolicyHidden(), b.GetDisliked()}
}

// CountsOfPartial reads the counts of a target in one count partition.
func CountsOfPartial(p *tidemarkv1.PartialCount) Counts {
	return Counts{p.GetActive(), p.GetRiskHidden(), p.GetPolicyHidden(), p.GetDisliked()}
}

// CountsOfSnapshot reads the counts of a target.
func CountsOfSnapshot(s *tidemarkv1.DisplaySnapshot) Counts {
	return Counts{s.GetActive(), s.GetRiskHidden(), s.GetPolicyHidden(), s.GetDisliked()}
}

// String names the counts, for errors and reports.
func (c Counts) String() string {
	hidden := ""
	if c.RiskHidden != 0 || c.PolicyHidden != 0 {
		hidden = fmt.Sprintf(" (%d hidden by risk, %d by policy)", c.RiskHidden, c.PolicyHidden)
	}
	return fmt.Sprintf("active %d%s, disliked %d", c.Raw, hidden, c.Disliked)
}

// Display is the number that users see (C5). It is computed here only and
// stored nowhere.
func (c Counts) Display() int64 { return c.Raw - c.RiskHidden - c.PolicyHidden }

// Possible tells whether relations can be counted so: none below zero, and no
// more hidden than there are.
func (c Counts) Possible() bool {
	return c.RiskHidden >= 0 && c.PolicyHidden >= 0 && c.Disliked >= 0 && c.RiskHidden <= c.Raw && c.PolicyHidden <= c.Raw-c.RiskHidden
}

// Plus adds two parts.
func (c Counts) Plus(d Counts) Counts {
	return Counts{c.Raw + d.Raw, c.RiskHidden + d.RiskHidden, c.PolicyHidden + d.PolicyHidden, c.Disliked + d.Disliked}
}

// Minus takes a part away.
func (c Counts) Minus(d Counts) Counts {
	return Counts{c.Raw - d.Raw, c.RiskHidden - d.RiskHidden, c.PolicyHidden - d.PolicyHidden, c.Disliked - d.Disliked}
}

// Counted is what one relation adds to the counts.
func Counted(s State, h Hidden) Counts {
	switch {
	case s == Disliked:
		return Counts{Disliked: 1}
	case !s.Valid() || s != s.Kind().Active():
		return Counts{}
	}
	c := Counts{Raw: 1}
	switch h {
	case HiddenByRisk:
		c.RiskHidden = 1
	case HiddenByPolicy:
		c.PolicyHidden = 1
	}
	return c
}
