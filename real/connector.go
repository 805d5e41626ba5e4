package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"
)

// connectorConfig says what a shard's connector reads and writes.
type connectorConfig struct {
	prefix        string // topic.prefix: source.name of the records
	shard, shards int
	postgresURL   string
	topic         string // default: prefix.cdc
	slot          string // default: as the built-in emitter's, prefix_shard_N
	template      string // path
}

// connector is a Connect connector as its REST interface knows it.
type connector struct {
	Name   string            `json:"name"`
	Config map[string]string `json:"config"`
}

// defaultTemplate is docker/debezium/connector.json of the repository.
func defaultTemplate() (string, error) {
	root, err := repository()
	return filepath.Join(root, "docker", "debezium", "connector.json"), err
}

var placeholder = regexp.MustCompile(`@[A-Z_]+@`)

// render fills the template in.
func (c connectorConfig) render() (connector, error) {
	var out connector
	values, err := c.values()
	if err != nil {
		return out, err
	}
	b, err := os.ReadFile(c.template)
	if err != nil {
		return out, fmt.Errorf("reading the connector's template: %w", err)
	}
	var unknown []string
	text := placeholder.ReplaceAllStringFunc(string(b), func(name string) string {
		value, ok := values[strings.Trim(name, "@")]
		if !ok {
			unknown = append(unknown, name)
		}
		quoted, _ := json.Marshal(value) // a string has JSON
		return strings.Trim(string(quoted), `"`)
	})
	if len(unknown) > 0 {
		return out, fmt.Errorf("%s has unknown placeholders: %s", c.template, strings.Join(unknown, ", "))
	}
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		return out, fmt.Errorf("reading %s: %w", c.template, err)
	}
	return out, nil
}

// values are what the placeholders stand for.
func (c connectorConfig) values() (map[string]string, error) {
	if c.shards < 1 || c.shard < 0 || c.shard >= c.shards {
		return nil, fmt.Errorf("shard %d is not one of %d", c.shard, c.shards)
	}
	db, err := pgx.ParseConfig(c.postgresURL)
	if err != nil {
		return nil, errors.New("the PostgreSQL URL is not valid: give postgres://user:password@host:port/database")
	}
	sslmode := "disable"
	if db.TLSConfig != nil {
		sslmode = "require"
	}
	return map[string]string{
		"PREFIX": c.prefix, "PREFIX_PATTERN": strings.ReplaceAll(c.prefix, ".", `\.`),
		"SHARD": strconv.Itoa(c.shard), "SHARDS": strconv.Itoa(c.shards),
		"TOPIC": cmp.Or(c.topic, c.prefix+".cdc"),
		"SLOT":  cmp.Or(c.slot, fmt.Sprintf("%s_shard_%d", strings.ReplaceAll(c.prefix, ".", "_"), c.shard)),
		"HOST":  db.Host, "PORT": strconv.Itoa(int(db.Port)), "SSLMODE": sslmode,
		"USER": db.User, "PASSWORD": db.Password, "DATABASE": db.Database,
	}, nil
}

// apply makes or changes a connector and waits until its task runs.
func (c connector) apply(ctx context.Context, worker string) error {
	at := worker + "/connectors/" + url.PathEscape(c.Name)
	if err := connectCall(ctx, http.MethodPut, at+"/config", c.Config, nil); err != nil {
		return fmt.Errorf("applying connector %s: %w", c.Name, err)
	}
	for {
		running, err := taskRuns(ctx, at)
		if err != nil {
			return fmt.Errorf("starting connector %s: %w", c.Name, err)
		}
		if running {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for connector %s: %w", c.Name, ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// taskRuns tells whether the connector's one task runs; one that failed is an
// error.
func taskRuns(ctx context.Context, at string) (bool, error) {
	type unit struct {
		State string `json:"state"`
		Trace string `json:"trace"`
	}
	var status struct {
		Connector unit   `json:"connector"`
		Tasks     []unit `json:"tasks"`
	}
	err := connectCall(ctx, http.MethodGet, at+"/status", nil, &status)
	var no *connectError
	if errors.As(err, &no) && no.Status == http.StatusNotFound { // not known yet
		return false, nil
	}
	if err != nil {
		return false, err
	}
	for _, u := range append(status.Tasks, status.Connector) {
		if u.State == "FAILED" {
			return false, fmt.Errorf("it has failed: %s", firstLines(u.Trace, 3))
		}
		if u.State != "RUNNING" {
			return false, nil
		}
	}
	return len(status.Tasks) > 0, nil
}

func firstLines(s string, n int) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[:min(len(lines), n)], " / ")
}

// remove stops a connector and deletes it with the offsets that the worker
// keeps for it: the slot alone says where the next feed goes on, and one that
// comes back later must not start from where it was. The slot stays. A
// connector that is not there is no error.
func (c connector) remove(ctx context.Context, worker string) error {
	at := worker + "/connectors/" + url.PathEscape(c.Name)
	err := connectCall(ctx, http.MethodPut, at+"/stop", nil, nil)
	var no *connectError
	if errors.As(err, &no) && no.Status == http.StatusNotFound {
		return nil
	}
	if err == nil {
		err = deleteOffsets(ctx, at)
	}
	if err == nil {
		err = connectCall(ctx, http.MethodDelete, at, nil, nil)
	}
	if err != nil {
		return fmt.Errorf("removing connector %s: %w", c.Name, err)
	}
	return nil
}

// deleteOffsets waits until the connector's task has stopped; the worker
// refuses before.
func deleteOffsets(ctx context.Context, at string) error {
	for {
		err := connectCall(ctx, http.MethodDelete, at+"/offsets", nil, nil)
		var no *connectError
		if !errors.As(err, &no) || no.Status != http.StatusBadRequest && no.Status != http.StatusConflict {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func newConnector(open func() (*home, error)) *cobra.Command {
	var c connectorConfig
	var remove, printOnly bool
	var worker string
	cmd := &cobra.Command{Use: "connector", Short: "Give the worker a shard's connector and wait until it runs", Args: cobra.NoArgs}
	f := cmd.Flags()
	f.StringVar(&c.prefix, "prefix", "tidemark", "prefix of the deployment")
	f.IntVar(&c.shard, "shard", 0, "the shard, from 0")
	f.IntVar(&c.shards, "shards", 4, "number of shards: partitions of the topic")
	f.StringVar(&c.postgresURL, "postgres-url", "", "PostgreSQL of the shard, as the worker reaches it")
	f.StringVar(&c.topic, "topic", "", "topic to write (default PREFIX.cdc)")
	f.StringVar(&c.slot, "slot", "", "replication slot (default that of the built-in emitter, PREFIX_shard_N)")
	f.StringVar(&c.template, "template", "", "connector template (default docker/debezium/connector.json)")
	f.StringVar(&worker, "worker", "", "URL of the Connect worker (default the one of `up --debezium`)")
	f.BoolVar(&remove, "delete", false, "remove the connector and its offsets; its slot stays")
	f.BoolVar(&printOnly, "print", false, "print the connector's JSON, password included, and do nothing")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var err error
		if c.template == "" {
			if c.template, err = defaultTemplate(); err != nil {
				return err
			}
		}
		rendered, err := c.render()
		if err != nil {
			return err
		}
		if printOnly {
			enc := json.NewEncoder(cmd.OutOrStdout())
			enc.SetIndent("", "  ")
			return enc.Encode(rendered)
		}
		if worker, err = workerURL(open, worker); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), time.Minute)
		defer cancel()
		if remove {
			return rendered.remove(ctx, worker)
		}
		return rendered.apply(ctx, worker)
	}
	return cmd
}

// workerURL is the given URL, or that of the folder's worker.
func workerURL(open func() (*home, error), given string) (string, error) {
	if given != "" {
		return strings.TrimRight(given, "/"), nil
	}
	h, err := open()
	if err != nil {
		return "", err
	}
	defer h.Close()
	if h.pid(workerName) == 0 {
		return "", errors.New("no Connect worker runs here: run `make real-up DEBEZIUM=1`, or give --worker")
	}
	return h.state.connectURL(), nil
}
