package cdc

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tidemark/tidemark/internal/child"
	"github.com/tidemark/tidemark/internal/testenv"
)

// emitterProcess is an emitter in a process of its own.
type emitterProcess struct {
	t     testing.TB
	cmd   *exec.Cmd
	ended <-chan struct{}
	log   *safeBuffer
}

func (r *rig) spawn() *emitterProcess {
	r.t.Helper()
	c := r.cfg
	text, err := json.Marshal(map[string]any{ // fields of Config
		"Shard": c.Shard, "URL": c.URL, "Slot": c.Slot, "Publication": c.Publication, "Brokers": c.Brokers, "Topic": c.Topic, "Partition": c.Partition,
		"ServerName": c.ServerName, "StatusInterval": c.StatusInterval, "MaxBackoff": c.MaxBackoff, "StandbyInterval": c.StandbyInterval,
	})
	if err != nil {
		r.t.Fatal(err)
	}
	p := &emitterProcess{t: r.t, cmd: exec.Command(os.Args[0]), log: &safeBuffer{}}
	p.cmd.Env = append(os.Environ(), emitterChild+"="+string(text))
	p.cmd.Stderr = p.log
	if p.ended, err = child.Start(p.cmd, syscall.SIGKILL); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		p.end(syscall.SIGKILL)
		if r.t.Failed() {
			r.t.Logf("process %d:\n%s", p.cmd.Process.Pid, p.log)
		}
	})
	return p
}

func (p *emitterProcess) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.t.Error(err)
	}
}

func (p *emitterProcess) end(s syscall.Signal) {
	p.t.Helper()
	p.signal(s)
	select {
	case <-p.ended:
	case <-time.After(patience):
		p.t.Errorf("process %d does not end", p.cmd.Process.Pid)
	}
}

// awaitRecords waits until the partition has more than n records and returns
// how many.
func (r *rig) awaitRecords(n int) int {
	r.t.Helper()
	testenv.Eventually(r.t, patience, func() error {
		if have := len(r.records()); have <= n {
			return fmt.Errorf("%d records, want more than %d", have, n)
		}
		return nil
	})
	return len(r.read)
}

// TestI17D26KilledAtRandomPoints makes 20 emitters, one after the other, under
// load, each a process that ends with SIGKILL, or now and then in order: every
// row arrives, first copies in commit order, versions of a key in order, and
// the slot's position never goes back (D05).
func TestI17D26KilledAtRandomPoints(t *testing.T) {
	r := newRig(t)
	r.ensureSlot()
	stopSampling := r.sampleConfirmed()
	w := r.write(3, time.Millisecond)
	have := 0
	for i := range 20 {
		p := r.spawn()
		have = r.awaitRecords(have + rand.IntN(120))
		p.end(map[bool]syscall.Signal{true: syscall.SIGTERM, false: syscall.SIGKILL}[i%5 == 4])
	}
	w.stop()
	stopSampling()
	r.start()
	all := r.awaitRows(w.rows)
	t.Logf("%d rows, %d records", w.rows, len(all))
	checkOrder(t, all)
	checkVersions(t, all)
}

// TestD12OldEmitterStandsStill: a process with the slot is paused (SIGSTOP)
// with records on their way. The next one waits and says for whom, takes over
// when wal_sender_timeout frees the slot, and the old one, awake again, stands
// by; what it still had on its way changes no order.
func TestD12OldEmitterStandsStill(t *testing.T) {
	r := newRig(t)
	r.exec(`DO $$BEGIN EXECUTE format('ALTER DATABASE %I SET wal_sender_timeout = ''2s''', current_database()); END$$`)
	r.ensureSlot()
	old := r.spawn()
	w := r.write(2, time.Millisecond)
	r.awaitRecords(100)
	old.signal(syscall.SIGSTOP)
	pid := r.walsender()
	e := r.start()
	e.awaitState(StateStandby)
	if err := r.log.has(fmt.Sprintf("another process has the slot\" component=cdc shard=2 slot=%s pid=%d", r.cfg.Slot, pid)); err != nil || pid == 0 {
		t.Errorf("pid %d: %v", pid, err)
	}
	began := time.Now()
	e.awaitState(StateStreaming)
	t.Logf("took over after %v", time.Since(began).Round(time.Millisecond))
	if s := e.Status(); s.Restarts != 0 {
		t.Errorf("%d restarts while standing by: %s", s.Restarts, s.LastError)
	}
	r.awaitRecords(len(r.records()) + 100)
	old.signal(syscall.SIGCONT)
	testenv.Eventually(t, patience, func() error {
		if !strings.Contains(old.log.String(), "standing by") {
			return errors.New("the old emitter does not stand by")
		}
		return nil
	})
	w.stop()
	all := r.awaitRows(w.rows)
	checkOrder(t, all)
	checkVersions(t, all)
	e.stop() // and the old one takes its turn
	r.insert(1)
	r.awaitRows(w.rows + 1)
}
