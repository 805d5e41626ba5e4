package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// child is another process of this program, for demonstrations that kill it.
type child struct {
	name  string
	args  []string
	log   io.Writer
	cmd   *exec.Cmd
	ready chan struct{} // closed at its line "tidemark is ready."
	done  chan error
}

// startChild starts `tidemark ARGS...`; what it says on stderr goes to log.
func startChild(name string, log io.Writer, args ...string) (*child, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("finding this program: %w", err)
	}
	c := &child{name: name, args: args, log: log, ready: make(chan struct{}), done: make(chan error, 1)}
	c.cmd = exec.Command(program, args...)
	c.cmd.Stderr = log
	c.cmd.SysProcAttr = childAttributes()
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	go func() {
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			if strings.HasPrefix(lines.Text(), readyLine) {
				close(c.ready)
				break
			}
		}
		_, _ = io.Copy(io.Discard, out)
		c.done <- c.cmd.Wait()
	}()
	return c, nil
}

// awaitReady waits for the child's word, its end, or ctx.
func (c *child) awaitReady(ctx context.Context) error {
	select {
	case <-c.ready:
		return nil
	case err := <-c.done:
		c.done <- err
		return fmt.Errorf("%s ended before it was ready: %w", c.name, errors.Join(err, errors.New("see its lines above")))
	case <-ctx.Done():
		return ctx.Err()
	}
}

// kill ends the child at once, as a power cut would, and starts it again.
func (c *child) kill() (*child, error) {
	_ = c.cmd.Process.Kill()
	<-c.done
	return startChild(c.name, c.log, c.args...)
}

const stopPatience = 20 * time.Second

// stop asks the child to end, and insists after a while.
func (c *child) stop() {
	_ = c.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-c.done:
	case <-time.After(stopPatience):
		_ = c.cmd.Process.Kill()
		<-c.done
	}
}
