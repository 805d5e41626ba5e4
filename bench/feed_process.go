package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/tidemark/tidemark/drills/proc"
	"github.com/tidemark/tidemark/emitters/cdc"
	"github.com/tidemark/tidemark/internal/debezium"
	"github.com/tidemark/tidemark/relations"
)

// feed is one that can be started on a slot, to write to a topic; pid is the
// process that does its work.
type feed interface {
	start(ctx context.Context, topic, slot string) (pid int, stop func() error, err error)
	name() string
}

// feedCommand runs the built-in emitter alone in a process: feedCommand SPEC,
// a feedSpec as JSON.
const feedCommand = "feed-emitter"

type feedSpec struct {
	URL     string   `json:"url"`
	Brokers []string `json:"brokers"`
	Topic   string   `json:"topic"`
	Slot    string   `json:"slot"`
	Prefix  string   `json:"prefix"`
}

func runFeedEmitter(spec string) error {
	var s feedSpec
	if err := json.Unmarshal([]byte(spec), &s); err != nil {
		return fmt.Errorf("reading the emitter's spec: %w", err)
	}
	e, err := cdc.New(cdc.Config{
		URL: s.URL, Slot: s.Slot, Publication: relations.Publication, Brokers: s.Brokers, Topic: s.Topic, ServerName: s.Prefix,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	return e.Run(ctx)
}

// builtInFeed is emitters/cdc in a process of its own.
type builtInFeed struct{ rig *feedRig }

func (builtInFeed) name() string { return "built-in" }

func (b builtInFeed) start(_ context.Context, topic, slot string) (int, func() error, error) {
	spec, err := json.Marshal(feedSpec{b.rig.url, b.rig.brokers, topic, slot, slot})
	if err != nil {
		return 0, nil, err
	}
	dir, err := os.MkdirTemp("", "tidemark-bench-")
	if err != nil {
		return 0, nil, err
	}
	p, err := proc.Start(proc.Config{Name: "the emitter", Args: []string{feedCommand, string(spec)}, Log: filepath.Join(dir, "log")})
	if err != nil {
		return 0, nil, err
	}
	return p.Pid(), func() error {
		err := p.Died()
		p.Stop(10 * time.Second)
		_ = os.RemoveAll(dir)
		return err
	}, nil
}

// debeziumFeed is a connector on the worker that runs.
type debeziumFeed struct{ rig *feedRig }

func (debeziumFeed) name() string { return "Debezium" }

func (d debeziumFeed) start(ctx context.Context, topic, slot string) (int, func() error, error) {
	c, err := debezium.Config{
		Prefix: slot, Shards: 1, PostgresURL: d.rig.url, Topic: topic, Slot: slot,
	}.Connector()
	if err != nil {
		return 0, nil, err
	}
	stop := func() error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		err := d.rig.worker.Remove(ctx, c.Name)
		heartbeats := strings.Join([]string{"__debezium-heartbeat", slot}, ".")
		_, _ = d.rig.admin.DeleteTopic(ctx, heartbeats) // it may have sent none
		return err
	}
	if err := d.rig.worker.Apply(ctx, c); err != nil {
		return 0, nil, errors.Join(err, stop())
	}
	return d.rig.jvm, stop, nil
}
