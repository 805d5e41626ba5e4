package faultbroker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"sync"
	"time"

	"github.com/tidemark/tidemark/drills/proc"
)

// Command is the hidden command that runs Serve: Command DATADIR PORT.
const Command = "drill-broker"

// Broker is the broker's process, seen from the drill.
type Broker struct {
	dir string

	mu      sync.Mutex
	process *proc.Process
	ready   Ready
}

// startPatience bounds the start of the process, data read included.
const startPatience = time.Minute

// Start starts a broker that keeps its data below dir.
func Start(dir string) (*Broker, error) {
	b := &Broker{dir: dir}
	return b, b.start("0")
}

func (b *Broker) start(port string) error {
	ready := make(chan Ready, 1)
	p, err := proc.Start(proc.Config{
		Name: "the broker", Args: []string{Command, b.DataDir(), port}, Log: filepath.Join(b.dir, "broker.log"),
		OnLine: func(line []byte) {
			var r Ready
			if json.Unmarshal(line, &r) == nil && r.Kafka != "" {
				ready <- r
			}
		},
	})
	if err != nil {
		return err
	}
	select {
	case r := <-ready:
		b.mu.Lock()
		defer b.mu.Unlock()
		b.process, b.ready = p, r
		return nil
	case <-p.Done():
		return p.Died()
	case <-time.After(startPatience):
		p.Kill()
		return fmt.Errorf("the broker was not ready within %v", startPatience)
	}
}

// DataDir is where the broker keeps topics and offsets.
func (b *Broker) DataDir() string { return filepath.Join(b.dir, "kafka") }

// Address is host:port; it stays the same over restarts.
func (b *Broker) Address() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ready.Kafka
}

// Process is the process that runs now.
func (b *Broker) Process() *proc.Process {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.process
}

// Restart starts an ended broker on its data and its port.
func (b *Broker) Restart() error {
	if b.Process().Running() {
		return errors.New("restarting the broker: it runs")
	}
	_, port, _ := bytes.Cut([]byte(b.Address()), []byte(":"))
	return b.start(string(port))
}

// Stop ends the broker.
func (b *Broker) Stop() { b.Process().Stop(20 * time.Second) }

// Break installs a fault.
func (b *Broker) Break(ctx context.Context, f Fault) (Installed, error) {
	body, err := json.Marshal(f)
	if err != nil {
		return Installed{}, err
	}
	return b.ask(ctx, http.MethodPost, "/faults", body)
}

// Hits tells how often a fault has hit.
func (b *Broker) Hits(ctx context.Context, id int) (int, error) {
	i, err := b.ask(ctx, http.MethodGet, fmt.Sprintf("/faults/%d", id), nil)
	return i.Hits, err
}

// Heal removes a fault and tells how often it has hit.
func (b *Broker) Heal(ctx context.Context, id int) (int, error) {
	i, err := b.ask(ctx, http.MethodDelete, fmt.Sprintf("/faults/%d", id), nil)
	return i.Hits, err
}

// HealAll removes every fault.
func (b *Broker) HealAll(ctx context.Context) error {
	_, err := b.ask(ctx, http.MethodDelete, "/faults", nil)
	return err
}

// Compact has every compacted topic keep the newest record of each key only.
func (b *Broker) Compact(ctx context.Context) error {
	_, err := b.ask(ctx, http.MethodPost, "/compact", nil)
	return err
}

var client = &http.Client{Timeout: 10 * time.Second}

func (b *Broker) ask(ctx context.Context, method, path string, body []byte) (i Installed, err error) {
	b.mu.Lock()
	url := "http://" + b.ready.Admin + path
	b.mu.Unlock()
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return i, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return i, fmt.Errorf("telling the broker of faults: %w", err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxFaultBytes))
	switch {
	case err != nil:
		return i, fmt.Errorf("telling the broker of faults: %w", err)
	case resp.StatusCode >= 300:
		return i, fmt.Errorf("telling the broker of faults: %s: %s", resp.Status, bytes.TrimSpace(answer))
	case len(answer) == 0:
		return i, nil
	}
	return i, json.Unmarshal(answer, &i)
}
