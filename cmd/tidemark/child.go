package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/tidemark/tidemark/internal/child"
)

// kid is another process of this program, for demonstrations that kill it.
type kid struct {
	name string
	args []string
	log  io.Writer
	cmd  *exec.Cmd
	word *readyWord
	done <-chan struct{}
}

// startKid starts `tidemark ARGS...`; what it says on stderr goes to log.
func startKid(name string, log io.Writer, args ...string) (*kid, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("finding this program: %w", err)
	}
	k := &kid{name: name, args: args, log: log, word: newReadyWord()}
	k.cmd = exec.Command(program, args...)
	k.cmd.Stdout, k.cmd.Stderr = k.word, log
	if k.done, err = child.Start(k.cmd, syscall.SIGTERM); err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	return k, nil
}

// awaitReady waits for the child's word, its end, or ctx.
func (k *kid) awaitReady(ctx context.Context) error {
	select {
	case <-k.word.said:
		return nil
	case <-k.done:
		return fmt.Errorf("%s ended before it was ready (%s): its lines above say why", k.name, k.cmd.ProcessState)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// kill ends the child at once, as a power cut would, and starts it again.
func (k *kid) kill() (*kid, error) {
	_ = k.cmd.Process.Kill()
	<-k.done
	return startKid(k.name, k.log, k.args...)
}

const stopPatience = 20 * time.Second

// stop asks the child to end, and insists after a while.
func (k *kid) stop() {
	_ = k.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-k.done:
	case <-time.After(stopPatience):
		_ = k.cmd.Process.Kill()
		<-k.done
	}
}

// readyWord watches an output for the line that says "ready".
type readyWord struct {
	said chan struct{} // closed at the line
	once sync.Once
	line []byte // the unfinished one
}

func newReadyWord() *readyWord { return &readyWord{said: make(chan struct{})} }

const maxReadyLine = 4 << 10 // no line that matters is longer

func (r *readyWord) Write(b []byte) (int, error) {
	r.line = append(r.line, b...)
	for {
		line, rest, whole := bytes.Cut(r.line, []byte("\n"))
		if !whole {
			break
		}
		if strings.HasPrefix(string(line), readyLine) {
			r.once.Do(func() { close(r.said) })
		}
		r.line = rest
	}
	if len(r.line) > maxReadyLine {
		r.line = nil
	}
	return len(b), nil
}
