package cdc

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/prometheus/client_golang/prometheus"
)

func mustLSN(n uint64) pglogrepl.LSN { return pglogrepl.LSN(n) }

func goodConfig() Config {
	return Config{URL: "postgres://u@127.0.0.1/d?pool_max_conns=7", Slot: "s", Publication: "p", Brokers: []string{"127.0.0.1:1"}, Topic: "t", ServerName: "n"}
}

func TestConfigNamesTheField(t *testing.T) {
	if _, err := New(goodConfig()); err != nil {
		t.Fatal(err)
	}
	for field, change := range map[string]func(*Config){
		"Shard":              func(c *Config) { c.Shard = -1 },
		"URL":                func(c *Config) { c.URL = "" },
		"Slot":               func(c *Config) { c.Slot = "a'; DROP" },
		"Publication":        func(c *Config) { c.Publication = "Ä" },
		"Brokers":            func(c *Config) { c.Brokers = nil },
		"Topic":              func(c *Config) { c.Topic = "" },
		"Partition":          func(c *Config) { c.Partition = -1 },
		"ServerName":         func(c *Config) { c.ServerName = "" },
		"MaxInFlightRecords": func(c *Config) { c.MaxInFlightRecords = -1 },
		"MaxInFlightBytes":   func(c *Config) { c.MaxInFlightBytes = -1 },
		"StatusInterval":     func(c *Config) { c.StatusInterval = -time.Second },
	} {
		c := goodConfig()
		change(&c)
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("bad %s gave %v", field, err)
		}
	}
	c := goodConfig()
	c.URL = "postgres://u@127.0.0.1:port/d"
	if _, err := New(c); err == nil {
		t.Error("a bad URL was accepted")
	}
}

func TestPoolSettingsAreDropped(t *testing.T) {
	c, err := connectConfig(goodConfig().URL, "x")
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := c.RuntimeParams["pool_max_conns"]; ok {
		t.Error("pool_max_conns would go to the server, which refuses it")
	}
}

// TestMetricsAreDocumented: the metrics and the package comment agree, and two
// shards share a registry.
func TestMetricsAreDocumented(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	for shard := range 2 {
		c := goodConfig()
		c.Shard, c.Registerer = shard, registry
		if _, err := New(c); err != nil {
			t.Fatal(err)
		}
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var have []string
	for _, f := range families {
		have = append(have, f.GetName())
		for _, m := range f.GetMetric() {
			if len(m.GetLabel()) != 1 || m.GetLabel()[0].GetName() != "shard" {
				t.Errorf("%s has labels %v", f.GetName(), m.GetLabel())
			}
		}
	}
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	documented := regexp.MustCompile(`tidemark_cdc_[a-z_]+`).FindAllString(string(doc), -1)
	slices.Sort(documented)
	if !slices.Equal(have, documented) {
		t.Errorf("metrics\n%v\ndocumented\n%v", have, documented)
	}
}

func TestReady(t *testing.T) {
	now := time.Now()
	for _, c := range []struct {
		name   string
		status Status
		want   string // empty: ready
	}{
		{"streaming", Status{State: StateStreaming}, ""},
		{"streaming, acks flow", Status{State: StateStreaming, AckedAt: now}, ""},
		{"standby", Status{State: StateStandby}, ""},
		{"idle", Status{State: StateIdle}, "idle"},
		{"retrying", Status{State: StateRetrying, LastError: "why"}, "retrying: why"},
		{"stalled", Status{State: StateStreaming, AckedAt: now.Add(-time.Minute), UnackedRecords: 7, LastError: "old", LastErrorAt: now.Add(-time.Hour)}, "nothing for 1m0s, 7 records wait"},
		{"stalled, with a reason", Status{State: StateStreaming, AckedAt: now.Add(-time.Minute), LastError: "refused", LastErrorAt: now}, "wait: refused"},
	} {
		err := c.status.Ready()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}
