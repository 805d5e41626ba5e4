package overload

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

var begun = time.Date(2026, 8, 19, 10, 0, 0, 0, time.UTC)

// Pressure that stays brings every level, in order, and takes them back in order.
func TestLevelsComeAndGoInOrder(t *testing.T) {
	r, now, s := DefaultRules(), begun, State{}
	var seen []Level
	step := func(pressure float64, seconds int) {
		for range seconds {
			now = now.Add(time.Second)
			if next := s.Next(pressure, now, r); next.Level != s.Level {
				seen = append(seen, next.Level)
				s = next
			} else {
				s = next
			}
		}
	}
	step(1.5, 30)
	step(0.8, 100) // between: nothing changes
	step(0.1, 100)
	want := []Level{1, 2, 3, 4, 5, 4, 3, 2, 1, 0}
	if len(seen) != len(want) {
		t.Fatalf("levels %v, want %v", seen, want)
	}
	for i := range want {
		if seen[i] != want[i] {
			t.Fatalf("levels %v, want %v", seen, want)
		}
	}
}

// However the pressure goes and the clock is set: one level at a time, each rise
// after the pressure was high for Rise without a break, each fall after it was
// low for Fall.
func TestLevelsDoNotFlap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := Rules{
			High: 1, Low: rapid.Float64Range(0.1, 1).Draw(t, "low"),
			Rise: time.Duration(rapid.IntRange(1, 10_000).Draw(t, "rise ms")) * time.Millisecond,
			Fall: time.Duration(rapid.IntRange(1, 60_000).Draw(t, "fall ms")) * time.Millisecond,
		}
		s, now := State{}, begun
		var high, low time.Time // since when a run without a break, and without a change of level, lasts
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(-2000, 5000).Draw(t, "ms")) * time.Millisecond)
			pressure := rapid.Float64Range(0, 2).Draw(t, "pressure")
			if pressure < r.High {
				high = time.Time{}
			} else if high.IsZero() || now.Before(high) {
				high = now
			}
			if pressure >= r.Low {
				low = time.Time{}
			} else if low.IsZero() || now.Before(low) {
				low = now
			}
			next := s.Next(pressure, now, r)
			switch next.Level - s.Level {
			case 0:
				if !high.IsZero() && now.Sub(high) >= r.Rise && s.Level < Refuse {
					t.Fatalf("stays at %v though the pressure was high for %v", s.Level, now.Sub(high))
				}
				if s.Level == Refuse && !high.IsZero() && now.Sub(high) >= r.Rise || s.Level == Normal && !low.IsZero() && now.Sub(low) >= r.Fall {
					high, low = next.High, next.Low
				}
			case 1:
				if high.IsZero() || now.Sub(high) < r.Rise {
					t.Fatalf("rose at pressure %v, high since %v", pressure, now.Sub(high))
				}
				high = now
			case -1:
				if low.IsZero() || now.Sub(low) < r.Fall {
					t.Fatalf("fell at pressure %v, low since %v", pressure, now.Sub(low))
				}
				low = now
			default:
				t.Fatalf("from %v to %v", s.Level, next.Level)
			}
			if next.Level < Normal || next.Level > Refuse {
				t.Fatalf("level %d", next.Level)
			}
			s = next
		}
	})
}

func TestLevelNames(t *testing.T) {
	for l := Normal; l <= Refuse; l++ {
		if got, err := ParseLevel(l.String()); err != nil || got != l {
			t.Errorf("%v reads as %v, error %v", l, got, err)
		}
	}
	if _, err := ParseLevel("on"); err == nil {
		t.Error("level on was read")
	}
}
