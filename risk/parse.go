package risk

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/tidemark/tidemark/topology"
)

// Limits of rules.
const (
	MaxRuleBytes   = 1 << 20  // of the rule file
	MaxRules       = 500      // of a file
	MaxIDFileBytes = 64 << 20 // of a file of ids
	MaxIDs         = 1 << 20  // of all the rules together
	maxNameBytes   = 64
)

// ruleFile is a rule file as it is written.
type ruleFile struct {
	Rules []ruleText `yaml:"rules"`
}

type ruleText struct {
	Name   string   `yaml:"name"`
	When   whenText `yaml:"when"`
	Action string   `yaml:"action"`
	By     string   `yaml:"by"`
	Reason string   `yaml:"reason"`
	DryRun bool     `yaml:"dryRun"`
}

type whenText struct {
	Kinds          []string  `yaml:"kinds"`
	States         []string  `yaml:"states"`
	Classes        []string  `yaml:"classes"`
	Users          []string  `yaml:"users"`
	UsersFile      string    `yaml:"usersFile"`
	Targets        []string  `yaml:"targets"`
	TargetsFile    string    `yaml:"targetsFile"`
	Devices        []string  `yaml:"devices"`
	DevicesFile    string    `yaml:"devicesFile"`
	Addresses      []string  `yaml:"addresses"`
	PercentOfUsers *float64  `yaml:"percentOfUsers"`
	From           time.Time `yaml:"from"`
	Until          time.Time `yaml:"until"`
}

// Parse reads rules. readIDs gives the content of a file of ids by the name that
// the rules have for it, at most MaxIDFileBytes. Every rule that is wrong is
// named in the error.
func Parse(b []byte, readIDs func(name string) ([]byte, error)) (*Rules, error) {
	if len(b) > MaxRuleBytes {
		return nil, fmt.Errorf("has more than %d bytes", MaxRuleBytes)
	}
	if err := plain(b); err != nil {
		return nil, err
	}
	decoder := yaml.NewDecoder(bytes.NewReader(b))
	decoder.KnownFields(true)
	var file ruleFile
	if err := decoder.Decode(&file); err != nil {
		return nil, err
	}
	if len(file.Rules) > MaxRules {
		return nil, fmt.Errorf("has %d rules, more than %d", len(file.Rules), MaxRules)
	}
	p := parser{readIDs: readIDs, names: map[string]bool{}, sum: newChecksum(b)}
	rules := new(Rules)
	var errs []error
	for i, text := range file.Rules {
		rule, err := p.rule(text)
		if err != nil {
			errs = append(errs, fmt.Errorf("rule %d (%.80q): %w", i+1, text.Name, err))
		}
		rules.list = append(rules.list, rule)
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	rules.version = p.sum.version()
	return rules, nil
}

// plain refuses what could make a rule wider than it reads: an empty value,
// which would be no condition at all, and aliases; and a second document, which
// nobody would read.
func plain(b []byte) error {
	decoder := yaml.NewDecoder(bytes.NewReader(b))
	var document yaml.Node
	if err := decoder.Decode(&document); err != nil {
		if errors.Is(err, io.EOF) {
			return errors.New("is empty: write rules: [] for no rules")
		}
		return err
	}
	if err := decoder.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return errors.New("has a second YAML document: write all rules in one")
	}
	var walk func(n *yaml.Node) error
	walk = func(n *yaml.Node) error {
		switch {
		case n.Kind == yaml.AliasNode:
			return fmt.Errorf("line %d: an alias: write the value out", n.Line)
		case n.Kind == yaml.ScalarNode && n.Tag == "!!null":
			return fmt.Errorf("line %d: an empty value: write one, or leave the field out", n.Line)
		case n.Kind == yaml.SequenceNode && len(n.Content) == 0 && n.Column > 1:
			return walkEmpty(n, &document)
		}
		for _, child := range n.Content {
			if err := walk(child); err != nil {
				return err
			}
		}
		return nil
	}
	return walk(&document)
}

// walkEmpty refuses an empty list, but for that of the rules.
func walkEmpty(n, document *yaml.Node) error {
	if root := document.Content[0]; root.Kind == yaml.MappingNode && len(root.Content) == 2 && root.Content[1] == n {
		return nil
	}
	return fmt.Errorf("line %d: an empty list, which would match nothing: give values, or leave the field out", n.Line)
}

type parser struct {
	readIDs func(name string) ([]byte, error)
	names   map[string]bool
	ids     int
	sum     *checksum
}

func (p *parser) rule(text ruleText) (*Rule, error) {
	if err := p.name(text.Name); err != nil {
		return nil, err
	}
	v, err := parseVerdict(text.Action, text.By, text.Reason)
	if err == nil {
		err = checkReason(text.Reason)
	}
	if err != nil {
		return nil, err
	}
	v.Source = ByRules
	when, err := p.conditions(text.When)
	if err != nil {
		return nil, err
	}
	return &Rule{Name: text.Name, Verdict: v, DryRun: text.DryRun, when: when}, nil
}

func (p *parser) name(name string) error {
	if err := topology.CheckID(name); err != nil || len(name) > maxNameBytes {
		return fmt.Errorf("name is not 1 to %d bytes of text", maxNameBytes)
	}
	if p.names[name] {
		return errors.New("another rule before it has this name")
	}
	p.names[name] = true
	return nil
}

func (p *parser) conditions(w whenText) (c conditions, err error) {
	if c.kinds, err = each(w.Kinds, topology.ParseKind); err != nil {
		return c, fmt.Errorf("kinds: %w", err)
	}
	if c.states, err = each(w.States, parseBegun); err != nil {
		return c, fmt.Errorf("states: %w", err)
	}
	if c.classes, err = each(w.Classes, ParseClass); err != nil {
		return c, fmt.Errorf("classes: %w", err)
	}
	if c.addresses, err = each(w.Addresses, parseNetwork); err != nil {
		return c, fmt.Errorf("addresses: %w", err)
	}
	for _, l := range []struct {
		of   string
		ids  []string
		file string
		to   *idSet
	}{{"users", w.Users, w.UsersFile, &c.users}, {"targets", w.Targets, w.TargetsFile, &c.targets}, {"devices", w.Devices, w.DevicesFile, &c.devices}} {
		if *l.to, err = p.idSet(l.ids, l.file); err != nil {
			return c, fmt.Errorf("%s: %w", l.of, err)
		}
	}
	if c.hundredths, err = share(w.PercentOfUsers); err != nil {
		return c, err
	}
	c.from, c.until = w.From, w.Until
	if !c.from.IsZero() && !c.until.IsZero() && !c.from.Before(c.until) {
		return c, errors.New("until is not after from")
	}
	return c, c.check()
}

// check refuses conditions that are none, or that never hold.
func (c conditions) check() error {
	if c.kinds == nil && c.states == nil && c.classes == nil && c.users == nil && c.targets == nil && c.devices == nil &&
		c.addresses == nil && c.hundredths == 0 && c.from.IsZero() && c.until.IsZero() {
		return errors.New("has no condition, and would decide on everything: write percentOfUsers: 100 if that is meant")
	}
	if c.kinds != nil {
		for _, s := range c.states {
			if !slices.Contains(c.kinds, s.Kind()) {
				return fmt.Errorf("state %s is not one of its kinds", s)
			}
		}
	}
	return nil
}

// each converts a list; nil stays nil.
func each[T, S any](list []S, convert func(S) (T, error)) ([]T, error) {
	var out []T
	for _, text := range list {
		v, err := convert(text)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, nil
}

// parseBegun reads a state that a command can begin.
func parseBegun(name string) (topology.State, error) {
	for s := topology.Unliked; s.Valid(); s++ {
		if s.String() != name {
			continue
		}
		if s == s.Kind().Initial() {
			return 0, fmt.Errorf("%s ends a relation, and is never asked about", name)
		}
		return s, nil
	}
	return 0, fmt.Errorf("%.40q is not a state", name)
}

// parseNetwork reads a network, or one address.
func parseNetwork(text string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(text); err == nil {
		if a.Zone() == "" {
			return netip.PrefixFrom(a.Unmap(), a.Unmap().BitLen()), nil
		}
		return netip.Prefix{}, fmt.Errorf("%.60q has a zone, which addresses of clients have not", text)
	}
	n, err := netip.ParsePrefix(text)
	if err != nil || n.Addr().Is4In6() {
		return netip.Prefix{}, fmt.Errorf("%.60q is neither a network such as 192.0.2.0/24 nor an address", text)
	}
	if n != n.Masked() {
		return netip.Prefix{}, fmt.Errorf("%.60q has bits behind its prefix: write %s", text, n.Masked())
	}
	return n, nil
}

// share reads a percentage in hundredths; nil is no condition.
func share(percent *float64) (hundredths int, err error) {
	if percent == nil {
		return 0, nil
	}
	exact := *percent * 100
	hundredths = int(math.Round(exact))
	if !(hundredths >= 1 && hundredths <= slots) || math.Abs(exact-float64(hundredths)) > 1e-6 {
		return 0, errors.New("percentOfUsers is not 0.01 to 100 in hundredths")
	}
	return hundredths, nil
}

// idSet is that of a list and a file together; nil without both.
func (p *parser) idSet(list []string, file string) (idSet, error) {
	if list == nil && file == "" {
		return nil, nil
	}
	set := make(idSet, len(list))
	for _, id := range list {
		if err := p.add(set, id); err != nil {
			return nil, err
		}
	}
	if file == "" {
		return set, nil
	}
	b, err := p.readIDs(file)
	if err != nil {
		return nil, err
	}
	p.sum.add(b)
	at := 0
	for line := range strings.Lines(string(b)) {
		at++
		id := strings.TrimRight(line, "\r\n")
		if id == "" || strings.HasPrefix(id, "# ") {
			continue
		}
		if err := p.add(set, id); err != nil {
			return nil, fmt.Errorf("%s: line %d %w", file, at, err)
		}
	}
	return set, nil
}

func (p *parser) add(set idSet, id string) error {
	if err := topology.CheckID(id); err != nil {
		return fmt.Errorf("has an id that %w", err)
	}
	if _, twice := set[id]; twice {
		return nil
	}
	if p.ids++; p.ids > MaxIDs {
		return fmt.Errorf("is beyond the %d ids that rules may have together", MaxIDs)
	}
	set[strings.Clone(id)] = struct{}{}
	return nil
}

// checksum is of parts, each with its length, so that none moves into the next.
type checksum struct{ parts []byte }

func newChecksum(first []byte) *checksum {
	c := new(checksum)
	c.add(first)
	return c
}

func (c *checksum) add(part []byte) {
	sum := sha256.Sum256(part)
	c.parts = append(binary.AppendUvarint(c.parts, uint64(len(part))), sum[:]...)
}

func (c *checksum) version() string {
	sum := sha256.Sum256(c.parts)
	return hex.EncodeToString(sum[:6])
}
