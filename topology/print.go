package topology

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
)

// Outputs lists the forms that Print knows.
func Outputs() []string { return []string{"text", "dot", "json", "asyncapi"} }

// Print writes the map as a table for people (text), a Graphviz graph (dot),
// JSON, or an AsyncAPI document (asyncapi). The same topology always prints the
// same bytes.
func (t *Topology) Print(w io.Writer, output string) error {
	switch output {
	case "text":
		return t.printText(w)
	case "dot":
		return t.printDOT(w)
	case "json":
		return t.printJSON(w)
	case "asyncapi":
		return t.printAsyncAPI(w)
	}
	return fmt.Errorf("printing topology: output %q is not one of %s", clip(output), strings.Join(Outputs(), ", "))
}

// contracts are the hash contracts of a new deployment; what a running one
// follows stands in its control database (I15).
func contracts(c Config) []namedContract {
	reverse := NewReverseGeneration(1, c.LikerPartitions, c.ReverseShards)
	return []namedContract{
		{"bucket space 1", "target, user", "virtual bucket", DefaultBucketSpace()},
		{"shard map 1", "user", "shard slot", DefaultShardContract()},
		{"reverse generation 1, users", "user", "reverse shard", reverse.Users},
		{"reverse generation 1, targets", "kind, target", fmt.Sprintf("first of %d partitions", reverse.Spread), reverse.Targets},
	}
}

type namedContract struct {
	Name  string       `json:"name"`
	IDs   string       `json:"ids"`
	Gives string       `json:"gives"`
	Hash  HashContract `json:"hash"`
}

func (t *Topology) printText(w io.Writer) error {
	c := t.Config
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	line := func(columns ...any) { fmt.Fprintln(tw, strings.TrimRight(tabbed(columns), "\t")) }
	line(fmt.Sprintf("shards %d, count partitions %d, display partitions %d, liker partitions %d, replication factor %d",
		c.Shards, c.CountPartitions, c.DisplayPartitions, c.LikerPartitions, c.ReplicationFactor))
	line()
	line("TOPIC", "PARTITIONS", "VALUE", "PLACED BY", "FOR")
	for _, s := range t.Streams {
		line(s.Topic, s.Partitions, s.Value, s.PlacedBy, s.For)
	}
	line()
	line("TOPIC", "KEY")
	for _, s := range t.Streams {
		line(s.Topic, s.Key)
	}
	line()
	line("TOPIC", "SETTINGS")
	for _, s := range t.Streams {
		line(s.Topic, settingsLine(s.Settings))
	}
	line()
	line("GROUP", "INPUTS", "TABLE", "OUTPUTS")
	for _, g := range t.Groups {
		line(g.ID, strings.Join(g.Inputs, " "), dash(g.Table), strings.Join(g.Outputs, " "))
	}
	line()
	line("CONTRACT", "IDS", "GIVES", "HASH")
	for _, n := range contracts(c) {
		line(n.Name, n.IDs, n.Gives, fmt.Sprintf("%s, seed %016x, encoding %s, modulo %d", n.Hash.Algorithm, n.Hash.Seed, n.Hash.Encoding, n.Hash.Modulus))
	}
	return tw.Flush()
}

func tabbed(columns []any) string {
	s := make([]string, len(columns))
	for i, c := range columns {
		s[i] = fmt.Sprint(c)
	}
	return strings.Join(s, "\t")
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func settingsLine(settings map[string]string) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		parts = append(parts, name+"="+settings[name])
	}
	return strings.Join(parts, " ")
}

// printDOT draws groups as boxes and topics as ellipses, tables as cylinders;
// a double arrow joins a group with its table.
func (t *Topology) printDOT(w io.Writer) error {
	var b strings.Builder
	b.WriteString("digraph tidemark {\n  rankdir=LR;\n  node [fontname=\"sans-serif\"];\n")
	for _, s := range t.Streams {
		shape := "ellipse"
		if s.Table {
			shape = "cylinder"
		}
		fmt.Fprintf(&b, "  %q [shape=%s, label=%q];\n", s.Topic, shape, fmt.Sprintf("%s\npartitions: %d", s.Topic, s.Partitions))
	}
	for _, g := range t.Groups {
		node := "group " + g.ID
		fmt.Fprintf(&b, "  %q [shape=box, style=bold, label=%q];\n", node, g.Name)
		for _, in := range g.Inputs {
			fmt.Fprintf(&b, "  %q -> %q;\n", t.Topic(in), node)
		}
		for _, out := range g.Outputs {
			fmt.Fprintf(&b, "  %q -> %q;\n", node, t.Topic(out))
		}
		if g.Table != "" {
			fmt.Fprintf(&b, "  %q -> %q [dir=both];\n", node, t.Topic(g.Table))
		}
	}
	b.WriteString("}\n")
	_, err := io.WriteString(w, b.String())
	return err
}

func (t *Topology) printJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(struct {
		Prefix            string          `json:"prefix"`
		Shards            int             `json:"shards"`
		CountPartitions   int             `json:"countPartitions"`
		DisplayPartitions int             `json:"displayPartitions"`
		LikerPartitions   int             `json:"likerPartitions"`
		ReplicationFactor int             `json:"replicationFactor"`
		RetentionSeconds  int64           `json:"retentionSeconds"`
		Streams           []Stream        `json:"streams"`
		Groups            []Group         `json:"groups"`
		Contracts         []namedContract `json:"contracts"`
	}{
		t.Config.Prefix, t.Config.Shards, t.Config.CountPartitions, t.Config.DisplayPartitions,
		t.Config.LikerPartitions, t.Config.ReplicationFactor, int64(t.Config.Retention.Seconds()), t.Streams, t.Groups, contracts(t.Config),
	})
}
