package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/tidemark/tidemark/internal/debezium"
)

func newConnector(open func() (*home, error)) *cobra.Command {
	var c debezium.Config
	var remove, printOnly bool
	var worker, template string
	cmd := &cobra.Command{Use: "connector", Short: "Give the worker a shard's connector and wait until it runs", Args: cobra.NoArgs}
	f := cmd.Flags()
	f.StringVar(&c.Prefix, "prefix", "tidemark", "prefix of the deployment")
	f.IntVar(&c.Shard, "shard", 0, "the shard, from 0")
	f.IntVar(&c.Shards, "shards", 4, "number of shards: partitions of the topic")
	f.StringVar(&c.PostgresURL, "postgres-url", "", "PostgreSQL of the shard, as the worker reaches it")
	f.StringVar(&c.Topic, "topic", "", "topic to write (default PREFIX.cdc)")
	f.StringVar(&c.Slot, "slot", "", "replication slot (default that of the built-in emitter, PREFIX_shard_N)")
	f.StringVar(&template, "template", "", "file with the connector's template (default docker/debezium/connector.json as built in)")
	f.StringVar(&worker, "worker", "", "URL of the Connect worker (default the one of `up --debezium`)")
	f.BoolVar(&remove, "delete", false, "remove the connector and its offsets; its slot stays")
	f.BoolVar(&printOnly, "print", false, "print the connector's JSON, password included, and do nothing")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if template != "" {
			b, err := os.ReadFile(template)
			if err != nil {
				return fmt.Errorf("reading the connector's template: %w", err)
			}
			c.Template = string(b)
		}
		connector, err := c.Connector()
		if err != nil {
			return err
		}
		if printOnly {
			enc := json.NewEncoder(cmd.OutOrStdout())
			enc.SetIndent("", "  ")
			return enc.Encode(connector)
		}
		at, err := connectWorker(open, worker)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), time.Minute)
		defer cancel()
		if remove {
			return at.Remove(ctx, connector.Name)
		}
		return at.Apply(ctx, connector)
	}
	return cmd
}

// connectWorker is that of the given URL, or the folder's own.
func connectWorker(open func() (*home, error), given string) (debezium.Worker, error) {
	if given != "" {
		return debezium.Worker{URL: given}, nil
	}
	h, err := open()
	if err != nil {
		return debezium.Worker{}, err
	}
	defer h.Close()
	if h.pid(workerName) == 0 {
		return debezium.Worker{}, errors.New("no Connect worker runs here: run `make real-up DEBEZIUM=1`, or give --worker")
	}
	return debezium.Worker{URL: h.state.connectURL()}, nil
}
