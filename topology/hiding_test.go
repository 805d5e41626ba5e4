package topology

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestHidingCheck(t *testing.T) {
	for h, ok := range map[Hiding]bool{
		{}:                         true,
		{HiddenByRisk, "a"}:        true,
		{HiddenByPolicy, "0-a_.b"}: true,
		{HiddenByRisk, strings.Repeat("x", MaxHidingReason)}:   true,
		{HiddenByRisk, strings.Repeat("x", MaxHidingReason+1)}: false,
		{Shown, "a"}:              false,
		{HiddenByRisk, ""}:        false,
		{HiddenByRisk, "-a"}:      false,
		{HiddenByRisk, "A"}:       false,
		{HiddenByRisk, "a b"}:     false,
		{HiddenByPolicy, "é"}:     false,
		{HiddenByPolicy + 1, "a"}: false,
	} {
		if err := h.Check(); (err == nil) != ok {
			t.Errorf("%d %q: %v", h.By, h.Reason, err)
		}
	}
}

func TestHiddenNames(t *testing.T) {
	for h := Shown; h <= HiddenByPolicy; h++ {
		if got, err := ParseHidden(h.String()); err != nil || got != h {
			t.Errorf("%d is %q, read as %d, %v", h, h, got, err)
		}
	}
	for _, name := range []string{"shown", "RISK", "hidden(3)"} {
		if _, err := ParseHidden(name); err == nil {
			t.Errorf("%q was read", name)
		}
	}
	if (HiddenByPolicy + 1).Valid() {
		t.Error("3 hides nothing")
	}
}

// C5: what relations add up to is possible, and the display is the number of
// those that nobody hides.
func TestC5CountsOfRelations(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var sum Counts
		var shown int64
		for range rapid.IntRange(0, 20).Draw(t, "relations") {
			s := State(rapid.IntRange(0, int(Following)+1).Draw(t, "state"))
			h := rapid.SampledFrom([]Hidden{Shown, HiddenByRisk, HiddenByPolicy}).Draw(t, "hidden")
			one := Counted(s, h)
			sum = sum.Plus(one)
			if s.Valid() && s == s.Kind().Active() && h == Shown {
				shown++
			}
			if sum.Minus(one).Plus(one) != sum {
				t.Fatalf("%+v without %+v", sum, one)
			}
		}
		if !sum.Possible() || sum.Display() != shown {
			t.Fatalf("%+v displays %d, want %d", sum, sum.Display(), shown)
		}
	})
	for c, possible := range map[Counts]bool{
		{Raw: 2, RiskHidden: 1, PolicyHidden: 1}:             true,
		{Raw: 2, RiskHidden: 2, PolicyHidden: 1}:             false,
		{Raw: 2, RiskHidden: 3}:                              false,
		{Raw: 2, PolicyHidden: 3}:                            false,
		{Raw: 2, RiskHidden: -1}:                             false,
		{Raw: 2, PolicyHidden: -1}:                           false,
		{Raw: -1}:                                            false,
		{Disliked: -1}:                                       false,
		{RiskHidden: 1 << 62, PolicyHidden: 1 << 62, Raw: 1}: false,
	} {
		if c.Possible() != possible {
			t.Errorf("%+v: %v", c, !possible)
		}
	}
}
