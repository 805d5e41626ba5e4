package topology

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func TestNewRefuses(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Config)
		wrong  string
	}{
		{"default", func(*Config) {}, ""},
		{"dotted prefix", func(c *Config) { c.Prefix = "a.b2.c" }, ""},
		{"prefix empty", func(c *Config) { c.Prefix = "" }, "prefix"},
		{"prefix upper case", func(c *Config) { c.Prefix = "Tide" }, "prefix"},
		{"prefix two dots", func(c *Config) { c.Prefix = "a..b" }, "prefix"},
		{"prefix ends in a dot", func(c *Config) { c.Prefix = "a." }, "prefix"},
		{"prefix with a dash", func(c *Config) { c.Prefix = "a-b" }, "prefix"},
		{"prefix long", func(c *Config) { c.Prefix = strings.Repeat("a", 101) }, "prefix"},
		{"shards 0", func(c *Config) { c.Shards = 0 }, "shards is 0, not in 1..1024"},
		{"shards too many", func(c *Config) { c.Shards = 1025 }, "shards is 1025"},
		{"count partitions", func(c *Config) { c.CountPartitions = 4097 }, "count partitions is 4097"},
		{"display partitions", func(c *Config) { c.DisplayPartitions = -1 }, "display partitions is -1"},
		{"liker partitions", func(c *Config) { c.LikerPartitions = 4097 }, "liker partitions is 4097"},
		{"reverse shards", func(c *Config) { c.ReverseShards = 1025 }, "reverse shards is 1025"},
		{"replication factor", func(c *Config) { c.ReplicationFactor = 0 }, "replication factor is 0"},
		{"retention", func(c *Config) { c.Retention = time.Minute }, "retention 1m0s"},
	} {
		t.Run(c.name, func(t *testing.T) {
			config := DefaultConfig()
			c.change(&config)
			_, err := New(config)
			expectError(t, err, c.wrong)
		})
	}
	_, err := New(Config{})
	for _, field := range []string{"prefix", "shards", "count partitions", "display partitions", "liker partitions", "reverse shards", "replication factor", "retention"} {
		expectError(t, err, field)
	}
}

// K08, G29: tables are compacted and never expire; nothing is both.
func TestTopicSettings(t *testing.T) {
	config := DefaultConfig()
	config.ReplicationFactor = 3
	config.Retention = 48 * time.Hour
	topo, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range topo.Streams {
		want := map[string]string{"cleanup.policy": "delete", "retention.ms": "172800000", "min.insync.replicas": "2", "max.message.bytes": "1048588"}
		if s.Table {
			want = map[string]string{"cleanup.policy": "compact", "retention.ms": "-1", "min.compaction.lag.ms": "3600000", "min.insync.replicas": "2", "max.message.bytes": "1048588"}
		}
		if settingsLine(s.Settings) != settingsLine(want) {
			t.Errorf("%s has %v, want %v", s.Name, s.Settings, want)
		}
	}
}

// What a group reads, writes and keeps exists, and a table has the partitions
// of its group's inputs, since a partition's owner owns both.
func TestGroupsMeetStreams(t *testing.T) {
	config := DefaultConfig()
	config.CountPartitions, config.DisplayPartitions, config.LikerPartitions, config.Shards = 16, 3, 7, 5
	topo, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	written := []string{CDC, PrivacyEvents} // by no group
	for _, g := range topo.Groups {
		if g.ID != "tidemark."+g.Name {
			t.Errorf("group %s has id %s", g.Name, g.ID)
		}
		for _, out := range g.Outputs {
			topo.Stream(out)
			written = append(written, out)
		}
		if g.Table == "" {
			continue
		}
		written = append(written, g.Table)
		table := topo.Stream(g.Table)
		if table.Topic != g.ID+"-table" || !table.Table {
			t.Errorf("table of group %s is %+v, goka wants %s-table, compacted", g.Name, table, g.ID)
		}
		for _, in := range g.Inputs {
			if topo.Stream(in).Partitions != table.Partitions {
				t.Errorf("group %s: %s has %d partitions, its table %d", g.Name, in, topo.Stream(in).Partitions, table.Partitions)
			}
		}
	}
	written = append(written, CacheTasks) // by the keeper of cachefloor and by readers
	for _, s := range topo.Streams {
		if !slices.Contains(written, s.Name) {
			t.Errorf("nobody writes %s", s.Name)
		}
	}
}

func TestLookUpPanicsOnForeignName(t *testing.T) {
	topo, _ := New(DefaultConfig())
	for name, f := range map[string]func(){
		"stream": func() { topo.Stream("followers") },
		"group":  func() { topo.Group("followers") },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			f()
		})
	}
	if topo.Topic(Facts) != "tidemark.facts" || topo.Group(DisplayGroup).Table != DisplayTable {
		t.Errorf("topic %s, table %s", topo.Topic(Facts), topo.Group(DisplayGroup).Table)
	}
}
