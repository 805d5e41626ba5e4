package verify

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestWaitCaughtUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		looks := 0
		err := WaitCaughtUp(t.Context(), map[int]uint64{0: 5, 1: 9}, func(context.Context) (map[int]uint64, error) {
			looks++
			switch at := time.Since(start); {
			case at < time.Second:
				return nil, errors.New("recovering")
			case at < time.Minute:
				return map[int]uint64{0: 5, 1: 8}, nil
			}
			return map[int]uint64{0: 6, 1: 9, 7: 1}, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if waited := time.Since(start); waited > time.Minute+longestPause || looks > 70 {
			t.Errorf("waited %v, looked %d times", waited, looks)
		}
	})
}

func TestWaitCaughtUpNamesWhoIsBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		err := WaitCaughtUp(ctx, map[int]uint64{0: 5, 1: 9, 2: 1}, func(context.Context) (map[int]uint64, error) {
			return map[int]uint64{0: 5, 1: 8}, nil
		})
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "shard 1 is displayed up to seal 8 of 9, shard 2 is displayed up to seal 0 of 1") {
			t.Errorf("error %v", err)
		}
		broken := errors.New("no view")
		err = WaitCaughtUp(ctx, map[int]uint64{0: 5}, func(context.Context) (map[int]uint64, error) { return nil, broken })
		if !errors.Is(err, broken) {
			t.Errorf("error %v", err)
		}
	})
}

func TestWaitCaughtUpWithNothingToWaitFor(t *testing.T) {
	err := WaitCaughtUp(t.Context(), nil, func(context.Context) (map[int]uint64, error) { return nil, nil })
	if err != nil {
		t.Error(err)
	}
}
