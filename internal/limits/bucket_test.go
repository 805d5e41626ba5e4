package limits

import (
	"testing"

	"pgregory.net/rapid"
)

// Whatever callers come when, and however the clock is set: never more than a
// full bucket and what the clock's way forward gives.
func TestABucketNeverGivesMoreThanBurstAndRate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := anyLimit(t).bucket()
		now := rapid.Int64Range(1, 1<<50).Draw(t, "start")
		fullAt, forward, given := int64(0), int64(0), int64(0)
		t.Repeat(map[string]func(*rapid.T){
			"time passes": func(t *rapid.T) {
				d := rapid.Int64Range(0, 3*b.full).Draw(t, "µs")
				now, forward = now+d, forward+d
			},
			"the clock is set back": func(t *rapid.T) {
				now -= rapid.Int64Range(0, min(now-1, 10*b.full)).Draw(t, "µs")
			},
			"callers come": func(t *rapid.T) {
				for range rapid.IntRange(1, 300).Draw(t, "callers") {
					next, ok := b.take(fullAt, now)
					if fullAt = next; ok {
						given++
					}
				}
			},
			"": func(t *rapid.T) {
				if most := (b.full + forward) / b.token; given > most {
					t.Fatalf("%d tokens were given, and there were %d", given, most)
				}
			},
		})
	})
}

// A bucket that has given less gives: none is closed for longer than a token
// takes, also after the clock was set back.
func TestABucketGivesATokenAfterItsTime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := anyLimit(t).bucket()
		now := rapid.Int64Range(1<<40, 1<<50).Draw(t, "now")
		fullAt := rapid.Int64Range(0, 1<<51).Draw(t, "kept from another time")
		next, ok := b.take(fullAt, now)
		if !ok {
			wait := b.wait(next - now)
			if wait > b.token {
				t.Fatalf("closed for %d µs, and a token takes %d", wait, b.token)
			}
			if _, early := b.take(next, now+wait-1); early {
				t.Fatalf("a token is there before the %d µs that were told", wait)
			}
			if _, ok = b.take(next, now+wait); !ok {
				t.Fatalf("no token after the %d µs that were told", wait)
			}
		}
	})
}

func TestABucketIsFullAtFirst(t *testing.T) {
	b := Limit{PerMinute: 60, Burst: 3}.bucket()
	fullAt := int64(0)
	for i := range 3 {
		var ok bool
		if fullAt, ok = b.take(fullAt, 1000); !ok {
			t.Fatalf("token %d of a burst of 3 was refused", i)
		}
		if left := b.left(fullAt - 1000); left != int64(2-i) {
			t.Errorf("%d left after %d", left, i+1)
		}
	}
	if _, ok := b.take(fullAt, 1000); ok {
		t.Error("a fourth token of a burst of 3")
	}
}

func anyLimit(t *rapid.T) Limit {
	return Limit{
		PerMinute: rapid.IntRange(1, 1_000_000).Draw(t, "per minute"),
		Burst:     rapid.IntRange(1, 200).Draw(t, "burst"),
	}
}
