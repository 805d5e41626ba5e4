package main

import (
	"fmt"
	"strconv"
	"syscall"

	"github.com/spf13/cobra"
)

func newKill(open func() (*home, error)) *cobra.Command {
	cmd := &cobra.Command{
		Use: "kill N", Short: "End broker N, from 1, as kill -9 does; `up` starts it again on its data", Args: cobra.ExactArgs(1),
	}
	cmd.RunE = func(_ *cobra.Command, given []string) error {
		h, err := open()
		if err != nil {
			return err
		}
		defer h.Close()
		return h.kill(given[0])
	}
	return cmd
}

// kill returns when the broker's process is gone.
func (h *home) kill(node string) error {
	n, err := strconv.Atoi(node)
	if err != nil || n < 1 || n > h.state.brokers() {
		return fmt.Errorf("broker %q: there are brokers 1 to %d", node, h.state.brokers())
	}
	name := brokerName(n)
	if len(h.signalAll([]string{name}, syscall.SIGKILL)) == 0 {
		return fmt.Errorf("%w: %s: it cannot be killed", errNotUp, name)
	}
	if left := h.await([]string{name}, killPatience); len(left) > 0 {
		return fmt.Errorf("killing %s: process %d does not end", name, h.pid(name))
	}
	return nil
}
