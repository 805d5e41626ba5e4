package drills

// Suite is a list of drills that are run together.
type Suite struct {
	Name    string
	About   string
	Entries []Entry
}

// Suites are what `make torture` and its like run. Entries that take long
// stand first, so that drills that run beside each other end together.
func Suites() []Suite {
	full := []Entry{
		{"zombie", 34}, {"kill", 120}, {"storm", 14}, {"kill-burst", 70}, {"system-storm", 16},
		{"kill-recovery", 20}, {"kill-stopping", 40}, {"kill-rebalance", 8}, {"wipe-state", 10}, {"old-state", 10}, {"disk-full", 5},
		{"rolling-restart", 20}, {"churn", 10}, {"hot-standby", 3},
		{"broker-stop", 3}, {"broker-restart", 4}, {"broker-slow", 1}, {"produce-errors", 16}, {"group-errors", 8}, {"fetch-errors", 8},
		{"lost-acks", 10}, {"stall", 2}, {"message-too-large", 3}, {"log-truncated", 2}, {"offset-ahead", 2},
		{"topic-recreated", 1}, {"display-recreated", 1}, {"input-recreated", 1}, {"poison", 4}, {"duplicates", 4},
		{"kill-every-role", 2}, {"kill-roles", 10}, {"pause-roles", 2}, {"postgres-restart", 2}, {"postgres-cut", 3}, {"postgres-crash", 2},
		{"walsender-killed", 3}, {"system-broker", 3},
	}
	return []Suite{
		{"torture", "every drill: at least 300 kills, 30 pauses, 20 broker faults, 1,000,000 events; about 20 minutes with --parallel 3", full},
		{"torture-long", "the same with 1,000 kills and 100 pauses", longer(full)},
		{"torture-short", "three minutes of the most telling drills with --parallel 2", []Entry{
			{"storm", 4}, {"kill-burst", 12}, {"zombie", 3}, {"kill", 8}, {"produce-errors", 4}, {"lost-acks", 2}, {"old-state", 1},
			{"kill-every-role", 1}, {"disk-full", 1}, {"topic-recreated", 1}, {"offset-ahead", 1},
		}},
		{"torture-real", "a short round that any broker can take, for --real-kafka", []Entry{
			{"kill", 10}, {"kill-burst", 10}, {"kill-recovery", 2}, {"zombie", 3}, {"wipe-state", 1}, {"old-state", 1}, {"disk-full", 1}, {"churn", 2},
			{"message-too-large", 2}, {"log-truncated", 1}, {"topic-recreated", 1}, {"input-recreated", 1},
		}},
	}
}

// longer triples the rounds of what is killed and paused.
func longer(entries []Entry) []Entry {
	var all []Entry
	for _, e := range entries {
		if e.Rounds >= 10 {
			e.Rounds *= 3
		}
		all = append(all, e)
	}
	return all
}

// Entries resolves names of drills and suites.
func Entries(names []string) ([]Entry, error) {
	var all []Entry
next:
	for _, name := range names {
		for _, s := range Suites() {
			if s.Name == name {
				all = append(all, s.Entries...)
				continue next
			}
		}
		if _, err := Find(name); err != nil {
			return nil, err
		}
		all = append(all, Entry{Drill: name})
	}
	return all, nil
}
