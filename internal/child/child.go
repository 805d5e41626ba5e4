// Package child starts programs that end with this one.
package child

import (
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// outputGrace is how long output may still come after a child has ended, from
// programs that it started itself.
const outputGrace = 2 * time.Second

// Start starts cmd. When this process dies, however it does, the system sends
// the child the signal last (on Linux; elsewhere nothing is sent). The channel
// is closed when the child has ended; cmd.ProcessState then says how.
//
// The system sends the signal when the thread that made the child ends, so a
// goroutine keeps its thread for as long as the child lives. It waits for the
// child itself: cmd must have writers for its output, not pipes that the
// caller reads.
func Start(cmd *exec.Cmd, last syscall.Signal) (ended <-chan struct{}, err error) {
	if cmd.WaitDelay == 0 {
		cmd.WaitDelay = outputGrace
	}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = new(syscall.SysProcAttr)
	}
	endWithParent(cmd.SysProcAttr, last)
	started, done := make(chan error), make(chan struct{})
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // as ProcessState says
			close(done)
		}
	}()
	return done, <-started
}
