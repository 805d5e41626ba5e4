package testenv

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tidemark/tidemark/internal/child"
)

// Child is this test binary in a process of its own.
type Child struct {
	cmd   *exec.Cmd
	ended <-chan struct{}
}

// StartChild starts this test binary with more in its environment, by which
// its TestMain knows what to be instead of tests.
func StartChild(t testing.TB, env ...string) *Child {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env, cmd.Stderr = append(os.Environ(), env...), os.Stderr
	ended, err := child.Start(cmd, syscall.SIGKILL)
	if err != nil {
		t.Fatal(err)
	}
	return &Child{cmd, ended}
}

// Kill sends a signal and waits for the end.
func (c *Child) Kill(sig os.Signal) {
	_ = c.cmd.Process.Signal(sig)
	<-c.ended
}

// Signal sends a signal.
func (c *Child) Signal(sig os.Signal) { _ = c.cmd.Process.Signal(sig) }

// KillLoop starts a child again and again, and kills it with SIGKILL some time
// after it has written to a topic: every other time within 150 ms.
func KillLoop(t testing.TB, cl *kgo.Client, topic string, kills int, rnd *rand.Rand, start func() *Child) {
	t.Helper()
	for i := range kills {
		before := records(t, cl, topic)
		c := start()
		Eventually(t, 30*time.Second, func() error {
			if records(t, cl, topic) == before {
				return fmt.Errorf("child %d has written nothing", i)
			}
			return nil
		})
		pause := time.Duration(1+rnd.IntN(150)) * time.Millisecond
		if i%2 == 0 {
			pause = time.Duration(50+rnd.IntN(600)) * time.Millisecond
		}
		time.Sleep(pause) // the moment of the kill, not a wait for a result
		c.Kill(syscall.SIGKILL)
	}
}

// records is the number of records that a topic ever had.
func records(t testing.TB, cl *kgo.Client, topic string) (n int64) {
	t.Helper()
	ends, err := kadm.NewClient(cl).ListEndOffsets(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	ends.Each(func(o kadm.ListedOffset) { n += o.Offset })
	return n
}
