package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

// errNotUp is the verdict of `status` when something does not run.
var errNotUp = errors.New("not everything runs")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	err := newRoot().ExecuteContext(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, "real:", err)
	}
	switch {
	case err == nil:
		return
	case errors.Is(err, errNotUp):
		os.Exit(3)
	}
	os.Exit(1)
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use: "real", Short: "Runs a real Apache Kafka, and Debezium, on this machine",
		SilenceUsage: true, SilenceErrors: true, Args: cobra.NoArgs,
	}
	dir := root.PersistentFlags().String("dir", "", "folder for everything (default .real of the repository)")
	open := func() (*home, error) { return openHome(*dir) }
	root.AddCommand(newFetch(open), newUp(open), newDown(open), newStatus(open), newKill(open), newConnector(open))
	return root
}

func newUp(open func() (*home, error)) *cobra.Command {
	var brokers int
	var debezium bool
	var timeout time.Duration
	cmd := &cobra.Command{Use: "up", Short: "Start what does not run yet and wait until it answers", Args: cobra.NoArgs}
	cmd.Flags().IntVar(&brokers, "brokers", 0, "brokers in one KRaft quorum: 1 or 3 (default: as last time, or 1)")
	cmd.Flags().BoolVar(&debezium, "debezium", false, "also a Kafka Connect worker with Debezium")
	cmd.Flags().DurationVar(&timeout, "timeout", 3*time.Minute, "how long to wait until all answers, downloads excluded")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		h, err := open()
		if err != nil {
			return err
		}
		defer h.Close()
		return h.up(cmd.Context(), upConfig{brokers: brokers, debezium: debezium, timeout: timeout})
	}
	return cmd
}

func newFetch(open func() (*home, error)) *cobra.Command {
	var debezium bool
	cmd := &cobra.Command{Use: "fetch", Short: "Bring the jars alone, as far as they are not there", Args: cobra.NoArgs}
	cmd.Flags().BoolVar(&debezium, "debezium", false, "also those of Kafka Connect and Debezium")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		h, err := open()
		if err != nil {
			return err
		}
		defer h.Close()
		_, _, err = h.jars(cmd.Context(), debezium)
		return err
	}
	return cmd
}

func newDown(open func() (*home, error)) *cobra.Command {
	var wipe bool
	cmd := &cobra.Command{Use: "down", Short: "Stop everything", Args: cobra.NoArgs}
	cmd.Flags().BoolVar(&wipe, "wipe", false, "remove data, settings and logs too; the jars stay")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		h, err := open()
		if err != nil {
			return err
		}
		defer h.Close()
		return h.down(cmd.Context(), wipe)
	}
	return cmd
}

func newStatus(open func() (*home, error)) *cobra.Command {
	cmd := &cobra.Command{Use: "status", Short: "What runs, where, and how much memory it takes; exit 3 if something should and does not", Args: cobra.NoArgs}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		h, err := open()
		if err != nil {
			return err
		}
		defer h.Close()
		return h.status(cmd.OutOrStdout())
	}
	return cmd
}
