package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

type upConfig struct {
	brokers  int // 0: as the data says, else 1
	debezium bool
	timeout  time.Duration
}

// up starts what does not run. If something does not come up, what this call
// started is stopped again.
func (h *home) up(ctx context.Context, c upConfig) error {
	began := time.Now()
	if err := h.plan(c); err != nil {
		return err
	}
	java, err := findJava(ctx)
	if err != nil {
		return err
	}
	kafka, connect, err := h.jars(ctx, c.debezium)
	if err != nil {
		return err
	}
	if err := h.writeState(); err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	started, err := h.startBrokers(limited, java, kafka)
	if err == nil && c.debezium && h.pid(workerName) == 0 {
		started = append(started, workerName)
		err = h.startWorker(limited, java, connect)
	}
	if err != nil {
		slices.Reverse(started)
		return errors.Join(err, h.stop(started...))
	}
	if err := h.write("endpoints", h.endpoints()); err != nil {
		return err
	}
	if len(started) == 0 {
		h.say("already running")
	} else {
		h.say("%s up in %.1f s", strings.Join(started, ", "), time.Since(began).Seconds())
	}
	_, err = h.printStatus(os.Stdout)
	return err
}

// plan settles the number of brokers and their ports. Ports change only while
// nothing runs.
func (h *home) plan(c upConfig) error {
	if c.brokers == 0 {
		c.brokers = max(1, h.state.brokers())
	}
	if c.brokers != 1 && c.brokers != 3 {
		return fmt.Errorf("brokers is %d: a quorum here has 1 or 3", c.brokers)
	}
	if have := h.state.brokers(); have != 0 && have != c.brokers {
		return fmt.Errorf("the data in %s is of %d broker(s), not %d: run `make real-down WIPE=1` first, which removes it", h.dir, have, c.brokers)
	}
	if h.state.ClusterID == "" {
		h.state = state{ClusterID: newClusterID(), BrokerPorts: series(firstBrokerPort, c.brokers), ControllerPorts: series(firstControllerPort, c.brokers)}
	}
	if len(h.running()) == 0 {
		var ports []*int
		for i := range h.state.brokers() {
			ports = append(ports, &h.state.BrokerPorts[i], &h.state.ControllerPorts[i])
		}
		if err := choosePorts(ports...); err != nil {
			return err
		}
	}
	if h.pid(workerName) != 0 {
		return nil
	}
	h.state.ConnectPort = 0
	if c.debezium {
		h.state.ConnectPort = preferredConnect
		return choosePorts(&h.state.ConnectPort)
	}
	return nil
}

// running are the names of the processes that run, whatever the state says.
func (h *home) running() (names []string) {
	entries, _ := os.ReadDir(h.path("pids")) // none, if nothing ever ran
	for _, e := range entries {
		if h.pid(e.Name()) != 0 {
			names = append(names, e.Name())
		}
	}
	return names
}

// endpoints are lines that a shell can source.
func (h *home) endpoints() string {
	s := "KAFKA=" + strings.Join(h.state.addresses(), ",") + "\n"
	if h.pid(workerName) != 0 {
		s += "CONNECT=" + h.state.connectURL() + "\n"
	}
	return s
}

// down stops the worker, then the brokers together; wipe leaves the jars only.
func (h *home) down(_ context.Context, wipe bool) error {
	running := h.running()
	brokers := slices.DeleteFunc(slices.Clone(running), func(name string) bool { return name == workerName })
	err := errors.Join(removeIfThere(h.path("endpoints")), h.stop(workerName), h.stop(brokers...))
	if err == nil && wipe {
		err = h.wipe()
	}
	if err != nil {
		return err
	}
	if len(running) == 0 {
		h.say("nothing runs")
	} else {
		h.say("%s stopped", strings.Join(running, ", "))
	}
	return nil
}

func (h *home) wipe() error {
	entries, err := os.ReadDir(h.dir)
	if err != nil {
		return fmt.Errorf("wiping %s: %w", h.dir, err)
	}
	var errs []error
	for _, e := range entries {
		if e.Name() != "jars" && e.Name() != "lock" {
			errs = append(errs, os.RemoveAll(h.path(e.Name())))
		}
	}
	return errors.Join(errs...)
}

// status prints what should run; errNotUp says that some of it does not.
func (h *home) status(w io.Writer) error {
	down, err := h.printStatus(w)
	switch {
	case err != nil:
		return err
	case h.state.brokers() == 0 || len(h.running()) == 0:
		return fmt.Errorf("%w: nothing does: run `make real-up`", errNotUp)
	case len(down) > 0:
		return fmt.Errorf("%w: %s: run `make real-up`", errNotUp, strings.Join(down, ", "))
	}
	return nil
}

func (h *home) printStatus(w io.Writer) (down []string, _ error) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "NAME\tPID\tRSS\tADDRESS")
	line := func(name, at string) {
		pid := h.pid(name)
		if pid == 0 {
			down = append(down, name)
			fmt.Fprintf(t, "%s\t-\t-\t%s\n", name, at)
			return
		}
		fmt.Fprintf(t, "%s\t%d\t%s\t%s\n", name, pid, residentMemory(pid), at)
	}
	for i, at := range h.state.addresses() {
		line(brokerName(i+1), at)
	}
	if h.state.ConnectPort != 0 {
		line(workerName, h.state.connectURL())
	}
	if err := t.Flush(); err != nil {
		return nil, fmt.Errorf("printing the status: %w", err)
	}
	return down, nil
}

// residentMemory is a process's memory, "-" where the system does not say.
func residentMemory(pid int) string {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			var kb int
			if _, err := fmt.Sscan(v, &kb); err == nil {
				return fmt.Sprintf("%d MB", kb/1024)
			}
		}
	}
	return "-"
}
