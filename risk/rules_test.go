package risk

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/tidemark/tidemark/topology"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var noon = time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)

// like is a question of u7 liking V9001.
func like(change func(*Question)) Question {
	q := Question{
		Relation: topology.Relation{Kind: topology.Like, User: "u7", Target: "V9001"}, Desired: topology.Liked,
		Class: Subscriber, Device: "device-a", Address: netip.MustParseAddr("203.0.113.7"), At: noon,
	}
	if change != nil {
		change(&q)
	}
	return q
}

// files are files of ids by name.
func files(of map[string]string) func(string) ([]byte, error) {
	return func(name string) ([]byte, error) {
		if text, ok := of[name]; ok {
			return []byte(text), nil
		}
		return nil, fmt.Errorf("there is no file %s", name)
	}
}

var lists = files(map[string]string{"farm.txt": "# seen on Monday\nu7\r\nu8\n\n#not a comment\n", "empty.txt": ""})

func parse(t testing.TB, text string) *Rules {
	t.Helper()
	r, err := Parse([]byte(text), lists)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// when is a rule file of one rule that refuses.
func when(conditions string) string {
	return "rules:\n  - name: one\n    action: refuse\n    reason: test\n    when: {" + conditions + "}\n"
}

func TestConditions(t *testing.T) {
	for _, c := range []struct {
		when    string
		change  func(*Question)
		matches bool
	}{
		{"kinds: [like]", nil, true},
		{"kinds: [favorite, follow]", nil, false},
		{"states: [DISLIKED, LIKED]", nil, true},
		{"states: [DISLIKED]", nil, false},
		{"classes: [subscriber]", nil, true},
		{"classes: [gateway, unknown]", nil, false},
		{"users: [u6, u7]", nil, true},
		{"users: [u]", nil, false},
		{"usersFile: farm.txt", nil, true},
		{"usersFile: farm.txt", func(q *Question) { q.Relation.User = "#not a comment" }, true},
		{"usersFile: farm.txt", func(q *Question) { q.Relation.User = "# seen on Monday" }, false},
		{"users: [u9], usersFile: farm.txt", func(q *Question) { q.Relation.User = "u9" }, true},
		{"usersFile: empty.txt", nil, false},
		{"targets: [V9001]", nil, true},
		{"targets: [u7]", nil, false},
		{"devices: [device-a]", nil, true},
		{"devices: [device-a]", func(q *Question) { q.Device = "" }, false},
		{"addresses: [203.0.113.0/24, '2001:db8::/32']", nil, true},
		{"addresses: [203.0.113.7]", nil, true},
		{"addresses: ['2001:db8::/32']", func(q *Question) { q.Address = netip.MustParseAddr("2001:db8::1") }, true},
		{"addresses: [203.0.113.8]", nil, false},
		{"addresses: [0.0.0.0/0]", func(q *Question) { q.Address = netip.Addr{} }, false},
		{"percentOfUsers: 100", nil, true},
		{"from: 2026-07-01T12:00:00Z", nil, true},
		{"from: 2026-07-01T12:00:01Z", nil, false},
		{"until: 2026-07-01T12:00:01Z", nil, true},
		{"until: 2026-07-01T12:00:00Z", nil, false},
		{"from: '2026-07-01T14:00:00+02:00', until: 2026-07-02", nil, true},
		{"kinds: [like], users: [u7], targets: [V1]", nil, false}, // all must hold
	} {
		if got := parse(t, when(c.when)).Decide(like(c.change)).Rule != nil; got != c.matches {
			t.Errorf("%s: %v", c.when, got)
		}
	}
}

func TestTheFirstRuleDecides(t *testing.T) {
	rules := parse(t, `
rules:
  - {name: tried, dryRun: true, action: refuse, reason: trial, when: {kinds: [like]}}
  - {name: partner, action: allow, reason: partner, when: {users: [u7]}}
  - {name: later, dryRun: true, action: refuse, reason: later, when: {kinds: [like]}}
  - {name: rest, action: hide, by: policy, reason: rules.25, when: {kinds: [like]}}
`)
	for user, want := range map[string]Verdict{
		"u7": {Action: Allow, Reason: "partner", Source: ByRules},
		"u8": {Action: Hide, By: topology.HiddenByPolicy, Reason: "rules.25", Source: ByRules},
	} {
		r := rules.Decide(like(func(q *Question) { q.Relation.User = user }))
		if r.Rule == nil || r.Rule.Verdict != want {
			t.Errorf("%s: %+v", user, r.Rule)
		}
		tried := map[string]int{"u7": 1, "u8": 2}[user]
		if len(r.Tried) != tried || r.Tried[0].Name != "tried" {
			t.Errorf("%s: %d rules were tried, want %d", user, len(r.Tried), tried)
		}
	}
	if r := rules.Decide(like(func(q *Question) {
		q.Relation.Kind, q.Relation.User, q.Desired = topology.Follow, "u9", topology.Following
	})); r.Rule != nil || r.Tried != nil {
		t.Errorf("a follow: %+v", r)
	}
}

func TestParseRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"":                                            "is empty",
		"rules: []\n---\nrules: []":                   "second YAML document",
		"ruls: []":                                    "ruls",
		"rules: [{name: a, what: b}]":                 "what",
		"rules:":                                      "empty value",
		"rules: {}":                                   "cannot unmarshal",
		when(""):                                      "has no condition",
		when("kinds: []"):                             "empty list",
		when("users: [], kinds: [like]"):              "empty list",
		when("users:, kinds: [like]"):                 "empty value",
		when("kinds: [like, like2]"):                  "like2",
		when("kinds: [like], kinds: [x]"):             "already defined",
		when("states: [UNLIKED]"):                     "ends a relation",
		when("states: [liked]"):                       "is not a state",
		when("kinds: [follow], states: [LIKED]"):      "not one of its kinds",
		when("classes: [vip]"):                        "subscriber, gateway, unknown",
		when("users: ['']"):                           "is empty",
		when("usersFile: none.txt"):                   "there is no file",
		when("addresses: [203.0.113.7/24]"):           "write 203.0.113.0/24",
		when("addresses: [example]"):                  "neither a network",
		when("addresses: ['::ffff:203.0.113.0/120']"): "neither a network",
		when("addresses: ['fe80::1%eth0']"):           "zone",
		when("percentOfUsers: 0"):                     "0.01 to 100",
		when("percentOfUsers: 100.01"):                "0.01 to 100",
		when("percentOfUsers: 0.001"):                 "0.01 to 100",
		when("percentOfUsers: .nan"):                  "0.01 to 100",
		when("from: 2026-07-02, until: 2026-07-02"):   "until is not after from",
		when("from: tomorrow"):                        "tomorrow",
		"rules: [{name: a, action: hide, reason: x, when: {kinds: [like]}}]":                                                              "by goes with hide",
		"rules: [{name: a, action: refuse, by: risk, reason: x, when: {kinds: [like]}}]":                                                  "by goes with hide",
		"rules: [{name: a, action: hide, by: me, reason: x, when: {kinds: [like]}}]":                                                      "neither risk nor policy",
		"rules: [{name: a, action: block, reason: x, when: {kinds: [like]}}]":                                                             "allow, refuse, hide",
		"rules: [{name: a, action: refuse, reason: Not a code, when: {kinds: [like]}}]":                                                   "is not a code",
		"rules: [{name: a, action: allow, when: {kinds: [like]}}]":                                                                        "is not a code",
		"rules: [{action: allow, reason: x, when: {kinds: [like]}}]":                                                                      "name is not",
		"rules: [{name: a, action: allow, reason: x, when: &w {kinds: [like]}}, {name: b, action: allow, reason: x, when: *w}]":           "alias",
		"rules: [{name: a, action: allow, reason: x, when: {kinds: [like]}}, {name: a, action: allow, reason: x, when: {kinds: [like]}}]": "has this name",
		strings.Repeat("#", MaxRuleBytes) + "\nrules: []":                                                                                 "more than",
		"rules:\n" + strings.Repeat("  - {name: a}\n", MaxRules+1):                                                                        "more than 500",
	} {
		if _, err := Parse([]byte(text), lists); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.120q: %v, want %q", text, err, want)
		}
	}
	if r := parse(t, "rules: []"); len(r.List()) != 0 || r.Decide(like(nil)).Rule != nil {
		t.Error("no rules decided something")
	}
}

func TestTooManyIDs(t *testing.T) {
	var ids strings.Builder
	for i := range MaxIDs + 1 {
		fmt.Fprintf(&ids, "u%d\n", i)
	}
	_, err := Parse([]byte(when("usersFile: many.txt")), files(map[string]string{"many.txt": ids.String()}))
	if err == nil || !strings.Contains(err.Error(), "beyond the 1048576 ids") {
		t.Error(err)
	}
}

// The version is that of everything that decides, and of nothing else.
func TestVersion(t *testing.T) {
	text := when("usersFile: farm.txt")
	first := parse(t, text)
	if again := parse(t, text); again.Version() != first.Version() || len(first.Version()) != 12 {
		t.Errorf("versions %q and %q of the same rules", first.Version(), again.Version())
	}
	other, err := Parse([]byte(text), files(map[string]string{"farm.txt": "u9\n"}))
	if err != nil || other.Version() == first.Version() {
		t.Errorf("version %q with another list of ids, %v", other.Version(), err)
	}
}

// A user's place in a share never changes and is the same everywhere; a growing
// share keeps whom it had.
func TestShareOfUsers(t *testing.T) {
	for user, want := range map[string]int{"u7": 2181, "u8": 5398, "用户-7": 5281} {
		if got := slot("farm", user); got != want {
			t.Errorf("slot of %s is %d, was %d in every version before", user, got, want)
		}
	}
	const users = 20_000
	count := func(percent string) map[int]bool {
		rules, chosen := parse(t, strings.Replace(when("percentOfUsers: "+percent), "name: one", "name: farm", 1)), map[int]bool{}
		for i := range users {
			if rules.Decide(like(func(q *Question) { q.Relation.User = fmt.Sprint("user", i) })).Rule != nil {
				chosen[i] = true
			}
		}
		return chosen
	}
	small, large := count("2.5"), count("10")
	for u := range small {
		if !large[u] {
			t.Fatalf("user%d is in 2.5 percent and not in 10", u)
		}
	}
	// Five standard deviations of a binomial distribution.
	if n := len(large); n < users/10-212 || n > users/10+212 {
		t.Errorf("%d of %d users are in 10 percent", n, users)
	}
}

// Whatever rules say, a dry run changes no verdict, and the verdict is that of
// the first rule in earnest which matches alone.
func TestRulesAreAnOrderedList(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var text strings.Builder
		text.WriteString("rules:\n")
		n := rapid.IntRange(1, 6).Draw(t, "rules")
		for i := range n {
			fmt.Fprintf(&text, "  - {name: r%d, action: refuse, reason: r%d, dryRun: %v, when: {users: [%s], percentOfUsers: %d}}\n", i, i,
				rapid.Bool().Draw(t, "dry"), strings.Join(rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "c"}), 1, 2).Draw(t, "users"), ", "), rapid.IntRange(30, 100).Draw(t, "percent"))
		}
		rules, err := Parse([]byte(text.String()), nil)
		if err != nil {
			t.Fatal(err)
		}
		q := like(func(q *Question) { q.Relation.User = rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "user") })
		at := slices.IndexFunc(rules.list, func(r *Rule) bool { return !r.DryRun && r.matches(q) })
		got := rules.Decide(q)
		if (at < 0) != (got.Rule == nil) || at >= 0 && got.Rule != rules.list[at] {
			t.Fatalf("rule %d decides alone, %+v in the list", at, got.Rule)
		}
		for _, r := range got.Tried {
			if !r.DryRun || !r.matches(q) {
				t.Fatalf("%s was tried", r.Name)
			}
		}
	})
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(when("usersFile: farm.txt, addresses: [203.0.113.0/24], percentOfUsers: 12.5")))
	f.Add([]byte("rules:\n- {name: a, action: hide, by: risk, reason: x, dryRun: true, when: {from: 2026-07-01T00:00:00Z}}"))
	f.Add([]byte("a: &a [*a]"))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := Parse(b, lists)
		if (r == nil) != (err != nil) {
			t.Fatalf("%v, %v", r, err)
		}
		if err != nil {
			return
		}
		for _, rule := range r.List() {
			if rule.Verdict.Hiding().Check() != nil || checkReason(rule.Verdict.Reason) != nil || rule.Verdict.Source != ByRules {
				t.Errorf("rule %q decides %+v", rule.Name, rule.Verdict)
			}
		}
		r.Decide(like(nil))
	})
}
