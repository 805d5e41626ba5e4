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
		{"two-versions", 4}, {"broker-of-three", 8},
		{"zombie", 40}, {"kill", 200}, {"storm", 40}, {"kill-burst", 120}, {"system-storm", 30}, {"rolling-restart", 23},
		{"kill-recovery", 40}, {"kill-stopping", 80}, {"kill-rebalance", 12}, {"wipe-state", 20}, {"old-state", 16}, {"disk-full", 8},
		{"churn", 12}, {"hot-standby", 5}, {"late-append", 8}, {"kill-slow", 10}, {"standby-late", 4},
		{"broker-stop", 4}, {"broker-restart", 8}, {"broker-slow", 1}, {"produce-errors", 30}, {"group-errors", 16}, {"fetch-errors", 16},
		{"lost-acks", 20}, {"stall", 3}, {"message-too-large", 5}, {"log-truncated", 3}, {"offset-ahead", 3}, {"compaction", 6},
		{"topic-recreated", 1}, {"display-recreated", 1}, {"input-recreated", 1}, {"poison", 10}, {"duplicates", 10},
		{"kill-every-role", 3}, {"kill-roles", 25}, {"pause-roles", 4}, {"postgres-restart", 2}, {"postgres-cut", 5}, {"postgres-crash", 2},
		{"walsender-killed", 8}, {"system-broker", 5}, {"rebalance-while-paging", 3}, {"kill-likers", 4}, {"standby-while-paging", 3},
		{"lost-response", 4}, {"db-restart", 3}, {"db-failover", 2}, {"drop-slot", 4}, {"alter-publication", 3}, {"delete-outbox-row", 3}, {"truncate-cdc", 4}, {"failover", 1}, {"failover-behind", 2}, {"switch-feed", 2},
		{"overload", 1}, {"redis-storm", 5}, {"redis-floor-kill", 1}, {"redis-old-generation", 1}, {"redis-failover", 2}, {"redis-late-task", 1}, {"redis-slot-move", 2},
		{"redis-stop", 1}, {"redis-kill", 2}, {"redis-slow", 1}, {"redis-full", 1}, {"redis-evict", 1}, {"redis-cut", 2}, {"redis-flush", 1},
	}
	return []Suite{
		{"torture", "every drill: at least 300 kills, 30 pauses, 20 broker faults, 1,000,000 events; about 20 minutes with --parallel 3", full},
		{"torture-long", "the same with 1,000 kills, 100 pauses, 207 rolling restarts and three minutes of a slow broker", append(longer(full), Entry{"broker-slow-long", 1})},
		{"torture-short", "three minutes of the most telling drills with --parallel 2", []Entry{
			{"two-versions", 1}, {"broker-of-three", 1},
			{"storm", 8}, {"kill-burst", 15}, {"zombie", 5}, {"kill", 15}, {"system-storm", 5}, {"produce-errors", 8}, {"lost-acks", 3}, {"old-state", 2},
			{"kill-recovery", 3}, {"kill-stopping", 6}, {"kill-every-role", 1}, {"broker-restart", 1}, {"message-too-large", 1}, {"disk-full", 1},
			{"topic-recreated", 1}, {"offset-ahead", 1}, {"log-truncated", 1}, {"compaction", 2}, {"late-append", 1}, {"redis-flush", 1},
		}},
		{"redis", "every drill of the relation cache", []Entry{
			{"overload", 1}, {"redis-storm", 8}, {"redis-floor-kill", 2}, {"redis-old-generation", 2}, {"redis-failover", 3}, {"redis-late-task", 2}, {"redis-slot-move", 4},
			{"redis-stop", 3}, {"redis-kill", 3}, {"redis-slow", 3}, {"redis-full", 3}, {"redis-evict", 3}, {"redis-cut", 3}, {"redis-flush", 3},
		}},
		{"torture-real", "a short round that any broker can take, for --real-kafka", []Entry{
			{"two-versions", 1}, {"broker-of-three", 4},
			{"kill", 10}, {"kill-burst", 10}, {"kill-recovery", 2}, {"zombie", 3}, {"wipe-state", 1}, {"old-state", 1}, {"late-append", 1}, {"disk-full", 1}, {"churn", 2},
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
