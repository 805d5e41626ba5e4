package relations

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/tidemark/tidemark/topology"
)

// sendsVariable is how often TestManyCommandsWithOneOperationID sends its
// operation, such as 1000000.
const sendsVariable = "TIDEMARK_TEST_SENDS"

// However often one operation comes, it is decided once, every answer is the
// same, the shard has one row of it, and memory does not grow with the sends.
func TestManyCommandsWithOneOperationID(t *testing.T) {
	sends := 20_000
	if testing.Short() {
		sends = 2000
	}
	if v := os.Getenv(sendsVariable); v != "" {
		var err error
		if sends, err = strconv.Atoi(v); err != nil {
			t.Fatalf("%s: %v", sendsVariable, err)
		}
	}
	urls := migrated(t, 1)
	s := openAt(t, urls, nil)
	cmd := command("once", v9001, topology.Liked)
	first, err := s.Set(context.Background(), cmd)
	if err != nil || first.Replayed || first.Operation.Version != 1 {
		t.Fatalf("the first is %+v, %v", first, err)
	}
	round := func(sends int) {
		var left atomic.Int64
		left.Store(int64(sends))
		var group errgroup.Group
		for range 64 {
			group.Go(func() error {
				for left.Add(-1) >= 0 {
					r, err := s.Set(context.Background(), cmd)
					if err != nil {
						return err
					}
					if !r.Replayed || r.Operation != first.Operation {
						return fmt.Errorf("answered %+v, then %+v", first.Operation, r.Operation)
					}
				}
				return nil
			})
		}
		if err := group.Wait(); err != nil {
			t.Fatal(err)
		}
	}
	round(sends / 10) // pools and caches are as large as they get
	before := inUse()
	round(sends - sends/10)
	const most = 16 << 20
	if grown := inUse() - before; grown > most {
		t.Errorf("after %d sends memory has grown by %d bytes, over %d", sends, grown, most)
	}
	checkCommands(t, urls, 1)
	checkHistory(t, s, urls)
}

func inUse() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse)
}
