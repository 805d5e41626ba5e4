// Package proc runs processes of this program that a drill kills, pauses and
// starves. A process ends with its parent, however that ends.
package proc

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// Config says what to run.
type Config struct {
	Name    string   // for errors
	Program string   // its file; "": this program
	Args    []string // of the program
	Env     []string // beside this process's own
	Log     string   // file that stderr is appended to
	// OnLine is told each line of stdout, one at a time, the newline cut off.
	// It must not keep the line.
	OnLine func(line []byte)
}

// Process is a started process.
type Process struct {
	name    string
	log     string
	cmd     *exec.Cmd
	done    chan struct{}
	err     error // of its end, once done
	stopped atomic.Bool
	ending  atomic.Bool // somebody asked it to end
}

const maxLine = 1 << 20

// Start starts `tidemark ARGS...`, of this version or another.
func Start(cfg Config) (*Process, error) {
	program := cfg.Program
	if program == "" {
		var err error
		if program, err = os.Executable(); err != nil {
			return nil, fmt.Errorf("finding this program: %w", err)
		}
	}
	log, err := os.OpenFile(cfg.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("starting %s: %w", cfg.Name, err)
	}
	defer func() { _ = log.Close() }() // the process has its own
	p := &Process{name: cfg.Name, log: cfg.Log, done: make(chan struct{})}
	p.cmd = exec.Command(program, cfg.Args...)
	p.cmd.Env = append(os.Environ(), cfg.Env...)
	p.cmd.Stderr = log
	p.cmd.SysProcAttr = attributes()
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("starting %s: %w", cfg.Name, err)
	}
	started := make(chan error)
	go func() {
		// The signal at the parent's death comes when the thread that made the
		// process ends, so it stays as long as the process.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err != nil {
			return
		}
		lines := bufio.NewScanner(out)
		lines.Buffer(nil, maxLine)
		for lines.Scan() {
			if cfg.OnLine != nil {
				cfg.OnLine(lines.Bytes())
			}
		}
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("starting %s: %w", cfg.Name, err)
	}
	return p, nil
}

// Pid is the process's number.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Done is closed when the process has ended and its last line was handed over.
func (p *Process) Done() <-chan struct{} { return p.done }

// Running tells whether it has not ended.
func (p *Process) Running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// ErrClean says that a process ended by itself, with status 0.
var ErrClean = errors.New("exit status 0")

// Died says how the process ended by itself: nil while it runs, and when it
// was asked to end.
func (p *Process) Died() error {
	if p.Running() || p.ending.Load() {
		return nil
	}
	err := p.err
	if err == nil {
		err = ErrClean
	}
	return fmt.Errorf("%s ended by itself: %w; its last words: %s", p.name, err, p.lastWords())
}

func (p *Process) lastWords() string {
	b, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	b = b[max(0, len(b)-2000):]
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(lines[max(0, len(lines)-8):], " / ")
}

// Kill ends the process at once, as kill -9 does, and waits until it is gone.
func (p *Process) Kill() {
	p.ending.Store(true)
	_ = p.cmd.Process.Kill()
	<-p.done
}

// Terminate asks the process to end; the caller waits for Done or kills.
func (p *Process) Terminate() {
	p.ending.Store(true)
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	if p.stopped.Load() {
		p.Continue()
	}
}

// Stop asks the process to end and insists after patience. It returns how long
// that took, and false when it had to insist.
func (p *Process) Stop(patience time.Duration) (time.Duration, bool) {
	start := time.Now()
	p.Terminate()
	select {
	case <-p.done:
		return time.Since(start), true
	case <-time.After(patience):
		p.Kill()
		return time.Since(start), false
	}
}

// Pause stops the process where it stands (SIGSTOP) until Continue.
func (p *Process) Pause() {
	p.stopped.Store(true)
	_ = p.cmd.Process.Signal(syscall.SIGSTOP)
}

// Continue lets a paused process go on.
func (p *Process) Continue() {
	p.stopped.Store(false)
	_ = p.cmd.Process.Signal(syscall.SIGCONT)
}

// Memory is the process's resident memory in bytes, now and at most; 0 when
// the system does not tell.
func (p *Process) Memory() (now, most int64) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Pid()))
	if err != nil {
		return 0, 0
	}
	for line := range strings.Lines(string(b)) {
		var kb int64
		name, value, _ := strings.Cut(line, ":")
		if n, _ := fmt.Sscanf(value, "%d kB", &kb); n != 1 {
			continue
		}
		switch name {
		case "VmRSS":
			now = kb << 10
		case "VmHWM":
			most = kb << 10
		}
	}
	return now, most
}

// FullDisk makes every write that lengthens a file of the process fail, as a
// full disk does, or ends that. Sockets and pipes are not concerned.
func (p *Process) FullDisk(full bool) error {
	if err := limitFiles(p.Pid(), full); err != nil {
		return fmt.Errorf("limiting the files of %s: %w", p.name, err)
	}
	return nil
}
