package drills

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/tidemark/tidemark/drills/faultbroker"
)

// nodes ends and starts single brokers of a cluster, by the id that the
// cluster gives them.
type nodes interface {
	// Kill ends a broker as kill -9 does. What it led has no leader until
	// others are chosen; embedded ones wait unled for that, real ones as long
	// as their controller does.
	Kill(ctx context.Context, id int32, unled time.Duration) error
	Start(ctx context.Context, id int32) error
}

type embeddedNodes struct{ broker *faultbroker.Broker }

func (e embeddedNodes) Kill(ctx context.Context, id int32, unled time.Duration) error {
	return e.broker.KillNode(ctx, id, unled)
}

func (e embeddedNodes) Start(ctx context.Context, id int32) error {
	return e.broker.StartNode(ctx, id)
}

// realNodes is Options.BrokersCommand.
type realNodes string

func (n realNodes) Kill(ctx context.Context, id int32, _ time.Duration) error {
	return n.run(ctx, "kill", fmt.Sprint(id))
}

func (n realNodes) Start(ctx context.Context, _ int32) error { return n.run(ctx, "up") }

func (n realNodes) run(ctx context.Context, args ...string) error {
	words := append(strings.Fields(string(n)), args...)
	out, err := exec.CommandContext(ctx, words[0], words[1:]...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("running %q: %w: %.500s", strings.Join(words, " "), err, bytes.TrimSpace(out))
	}
	return nil
}

// splitList splits a list with commas.
func splitList(s string) []string { return strings.Split(s, ",") }
