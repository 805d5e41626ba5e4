package main

import (
	"context"
	"log/slog"
	"os"
	"sync"

	"github.com/tidemark/tidemark/internal/config"
	"github.com/tidemark/tidemark/internal/gokakit"
	"github.com/tidemark/tidemark/views"
)

// gokaClient says how Kafka is reached under a name of this program's.
func gokaClient(cfg config.Config, name string) (gokakit.Client, error) {
	access, err := cfg.Kafka.Access()
	return gokakit.Client{Brokers: cfg.Kafka.Brokers, Access: access, ClientID: "tidemark-" + name}, err
}

// followDisplay follows the display table in a folder that goes with stop,
// which may be called again. onUpdate may be nil.
func followDisplay(ctx context.Context, cfg config.Config, name string, onUpdate func(views.Update)) (view *views.Display, stop func(), err error) {
	topo, err := cfg.Topology()
	if err != nil {
		return nil, nil, err
	}
	client, err := gokaClient(cfg, name)
	if err != nil {
		return nil, nil, err
	}
	dir, err := os.MkdirTemp("", "tidemark-"+name+"-view-")
	if err != nil {
		return nil, nil, err
	}
	view, err = views.NewDisplay(views.DisplayConfig{Client: client, Topology: topo, StateDir: dir, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		_ = os.RemoveAll(dir) // a temporary folder
		return nil, nil, err
	}
	if onUpdate != nil {
		view.OnUpdate(onUpdate)
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { defer close(done); _ = view.Run(ctx) }()
	return view, sync.OnceFunc(func() {
		cancel()
		<-done
		_ = os.RemoveAll(dir) // a temporary folder
	}), nil
}
