package gokakit

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
)

// Back-pressure: emitters wait when the budget is used up, and go on as acks
// come; memory stays bounded whatever they want to send. A failure ends the
// waiting.
func TestBudgetHoldsEmittersBack(t *testing.T) {
	over := func(weak Weakness) (most int64) {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t, weak, nil)
			b.producer.budget.init(8, 1<<20)
			var emitters sync.WaitGroup
			for e := range 4 {
				emitters.Go(func() {
					for i := range 20 {
						if err := b.lane.emit("out", fmt.Sprintf("k%d-%d", e, i), []byte("v")); err != nil {
							t.Error(err)
						}
						b.lane.barrier(func(err error) {
							if err != nil {
								t.Error(err)
							}
						})
					}
				})
			}
			for sent := 0; sent < 80; {
				synctest.Wait() // everyone waits for room, or is done
				most = max(most, b.producer.budget.records.Load())
				if b.kafka.held() == 0 {
					t.Fatal("emitters wait although nothing is under way")
				}
				b.kafka.resolve(0, nil)
				sent++
			}
			emitters.Wait()
			if err := b.settled(); err != nil {
				t.Error(err)
			}
			b.lane.close()
		})
		return most
	}
	if most := over(0); most > 8 {
		t.Errorf("%d records were under way, the budget is 8", most)
	}
	if over(WithoutBudget) <= 8 {
		t.Error("without the budget as few are under way")
	}
}

func TestBudgetBytes(t *testing.T) {
	var b budget
	b.init(100, 1000)
	for _, bytes := range []int{5000} { // alone, however large
		if err := b.acquire(bytes); err != nil {
			t.Fatal(err)
		}
	}
	if b.take(1) {
		t.Error("a second record fits beside one that is over the limit")
	}
	b.release(1, 5000)
	if !b.take(999) || b.take(2) || !b.take(1) {
		t.Error("1000 bytes are not what fits")
	}
	if b.records.Load() != 2 || b.bytes.Load() != 1000 {
		t.Errorf("%d records, %d bytes in use", b.records.Load(), b.bytes.Load())
	}
}
