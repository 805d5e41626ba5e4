package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// jvm is one Java process of this folder.
type jvm struct {
	name  string // kafka-1, connect
	java  string
	heap  string // -Xmx
	class string
	path  string // class path
	args  []string
}

// mark stands on the command line of a process of this folder and of no
// other.
func (h *home) mark(name string) string { return "-Dtidemark.real=" + h.path(name) }

// start launches a process that outlives this one. Its output goes to
// logs/NAME.log, its number to pids/NAME.
func (h *home) start(j jvm) error {
	if err := h.write("log4j2.properties", log4j2); err != nil {
		return err
	}
	tmp := h.path("tmp", j.name)
	if err := errors.Join(os.RemoveAll(tmp), os.MkdirAll(tmp, 0o755), os.MkdirAll(h.path("logs"), 0o755)); err != nil {
		return fmt.Errorf("starting %s: %w", j.name, err)
	}
	_ = os.Rename(h.logFile(j.name), h.logFile(j.name)+".old") // the one before stays, if there was one
	log, err := os.OpenFile(h.logFile(j.name), os.O_CREATE|os.O_WRONLY|os.O_TRUNC|os.O_APPEND, 0o644)
	if err != nil {
		return fmt.Errorf("starting %s: %w", j.name, err)
	}
	defer func() { _ = log.Close() }() // the process has its own
	cmd := exec.Command(j.java, append(j.options(h), append([]string{j.class}, j.args...)...)...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = h.dir, log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // Ctrl-C is not for it
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting %s: %w", j.name, err)
	}
	if err := h.write(filepath.Join("pids", j.name), strconv.Itoa(cmd.Process.Pid)+"\n"); err != nil {
		return errors.Join(err, cmd.Process.Kill(), cmd.Wait())
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }() // so that an early end shows as one
	// A process has no arguments yet for a moment after exec has closed the pipe
	// that Start waits for: long enough, on a busy machine, to be taken for one
	// that has ended.
	for !hasArgument(cmd.Process.Pid, h.mark(j.name)) {
		select {
		case <-ended:
			return nil // who waits for its answer says why
		case <-time.After(time.Millisecond):
		}
	}
	return nil
}

func (j jvm) options(h *home) []string {
	return []string{
		h.mark(j.name), "-server", "-Xmx" + j.heap,
		"-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35",
		"-XX:+ExitOnOutOfMemoryError", "-XX:-UsePerfData", // nothing in the system's /tmp
		"-Djava.awt.headless=true", "-Djava.io.tmpdir=" + h.path("tmp", j.name),
		"-Dlog4j2.configurationFile=" + h.path("log4j2.properties"),
		"-cp", j.path,
	}
}

// log4j2 in properties form: YAML would need another jar.
const log4j2 = `status = warn
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{yyyy-MM-dd HH:mm:ss.SSS} %-5p %m (%c{1})%n
rootLogger.level = info
rootLogger.appenderRef.out.ref = out
logger.config.name = org.apache.kafka.common.config.AbstractConfig
logger.config.level = warn
logger.clients.name = org.apache.kafka.clients
logger.clients.level = warn
`

func (h *home) logFile(name string) string { return h.path("logs", name+".log") }

// pid is the number of a running process of this folder; 0: it does not run.
func (h *home) pid(name string) int {
	b, err := os.ReadFile(h.path("pids", name))
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil || pid <= 1 || !hasArgument(pid, h.mark(name)) {
		return 0
	}
	return pid
}

// hasArgument tells whether a process runs with an argument. One that has
// ended and was not yet reaped has none.
func hasArgument(pid int, arg string) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err == nil {
		return strings.Contains("\x00"+string(b), "\x00"+arg+"\x00")
	}
	if _, err := os.Stat("/proc/self"); err == nil {
		return false
	}
	b, err = exec.Command("ps", "-o", "args=", "-ww", "-p", strconv.Itoa(pid)).Output()
	return err == nil && strings.Contains(string(b), arg+" ")
}

// Limits of a stop: first asked, then made.
const (
	stopPatience = 20 * time.Second
	killPatience = 10 * time.Second
)

// stop ends the processes together; those that do not run are no error.
func (h *home) stop(names ...string) error {
	var errs []error
	left := h.signalAll(names, syscall.SIGTERM)
	if left = h.await(left, stopPatience); len(left) > 0 {
		h.say("killing %s, which did not stop in %v", strings.Join(left, ", "), stopPatience)
		left = h.await(h.signalAll(left, syscall.SIGKILL), killPatience)
	}
	for _, name := range left {
		errs = append(errs, fmt.Errorf("stopping %s: process %d does not end", name, h.pid(name)))
	}
	for _, name := range names {
		if h.pid(name) == 0 {
			errs = append(errs, removeIfThere(h.path("pids", name)), os.RemoveAll(h.path("tmp", name)))
		}
	}
	return errors.Join(errs...)
}

// signalAll returns the names of those that ran.
func (h *home) signalAll(names []string, s syscall.Signal) (running []string) {
	for _, name := range names {
		if pid := h.pid(name); pid != 0 {
			_ = syscall.Kill(pid, s) // it may have ended meanwhile
			running = append(running, name)
		}
	}
	return running
}

// await returns the names of those that still run after the wait.
func (h *home) await(names []string, patience time.Duration) (left []string) {
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		left = nil
		for _, name := range names {
			if h.pid(name) != 0 {
				left = append(left, name)
			}
		}
		if len(left) == 0 || time.Now().After(end) {
			return left
		}
	}
}

func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// awaitAnswer polls ask until it succeeds, a process of names ends, or ctx
// does.
func (h *home) awaitAnswer(ctx context.Context, names []string, ask func(context.Context) error) error {
	for {
		try, cancel := context.WithTimeout(ctx, 5*time.Second)
		err := ask(try)
		cancel()
		if err == nil {
			return nil
		}
		for _, name := range names {
			if h.pid(name) == 0 {
				return fmt.Errorf("%s has ended: %s: see %s", name, h.said(name), h.logFile(name))
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w: %w: see %s", strings.Join(names, ", "), ctx.Err(), err, h.path("logs"))
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// said is the end of a process's log.
func (h *home) said(name string) string {
	b, err := os.ReadFile(h.logFile(name))
	if err != nil {
		return err.Error()
	}
	return lastLines(string(b[max(0, len(b)-4096):]), 4)
}
