package config

import "time"

// Overload is what a process with an API takes on at a time. What is more is
// refused at once (503), before it would wait too long.
type Overload struct {
	// CommandsInFlight of each shard, waiting or in a transaction, 8..100000.
	CommandsInFlight int `koanf:"commands_in_flight"`
	// QueriesInFlight of the process, 8..100000.
	QueriesInFlight int `koanf:"queries_in_flight"`
	// CommandLatency of the 99th percentile at which the process is pressed,
	// 1ms..10s.
	CommandLatency time.Duration `koanf:"command_latency"`
}
