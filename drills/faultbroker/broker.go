package faultbroker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tidemark/tidemark/drills/proc"
)

// Command is the hidden command that runs Serve: Command DATADIR PORT[,PORT...].
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
func Start(dir string) (*Broker, error) { return StartCluster(dir, 1) }

// StartCluster starts so many brokers in one process, for KillNode; their ids
// count from 0.
func StartCluster(dir string, nodes int) (*Broker, error) {
	b := &Broker{dir: dir}
	return b, b.start(make([]int, nodes))
}

func (b *Broker) start(ports []int) error {
	ready := make(chan Ready, 1)
	p, err := proc.Start(proc.Config{
		Name: "the broker", Args: []string{Command, b.DataDir(), formatPorts(ports)}, Log: filepath.Join(b.dir, "broker.log"),
		OnLine: func(line []byte) {
			var r Ready
			if json.Unmarshal(line, &r) == nil && len(r.Kafka) > 0 {
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

// Address is host:port of the first broker; it stays the same over restarts.
func (b *Broker) Address() string { return b.Addresses()[0] }

// Addresses are host:port of every broker; they stay the same over restarts.
func (b *Broker) Addresses() []string {
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
	var ports []int
	for _, address := range b.Addresses() {
		at, err := netip.ParseAddrPort(address)
		if err != nil {
			return fmt.Errorf("restarting the broker: %w", err)
		}
		ports = append(ports, int(at.Port()))
	}
	return b.start(ports)
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

// KillNode ends one broker of several as kill -9 does: its connections close
// at once, and after unled the others lead and coordinate what it did.
func (b *Broker) KillNode(ctx context.Context, id int32, unled time.Duration) error {
	if err := b.tellNode(ctx, id, killNode); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(unled):
	}
	return b.tellNode(ctx, id, elect)
}

// StartNode brings a killed broker back.
func (b *Broker) StartNode(ctx context.Context, id int32) error {
	return b.tellNode(ctx, id, startNode)
}

func (b *Broker) tellNode(ctx context.Context, id int32, what string) error {
	_, err := b.ask(ctx, http.MethodPost, fmt.Sprintf("/nodes/%d/%s", id, what), nil)
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

// formatPorts writes what ParsePorts reads.
func formatPorts(ports []int) string {
	return strings.Join(strings.Fields(strings.Trim(fmt.Sprint(ports), "[]")), ",")
}

// ParsePorts reads the ports of Command: PORT[,PORT...].
func ParsePorts(s string) (ports []int, err error) {
	for part := range strings.SplitSeq(s, ",") {
		port, err := strconv.ParseUint(part, 10, 16)
		if err != nil {
			return nil, fmt.Errorf("port %q is no port", part)
		}
		ports = append(ports, int(port))
	}
	return ports, nil
}
