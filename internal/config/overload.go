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
	// PoolWait is how long a read waits, on average, for a connection to its
	// shard at which the process is pressed, 1ms..10s.
	PoolWait time.Duration `koanf:"pool_wait"`
	// CountLag is the age of displayed counts at which the process is pressed, up
	// to level pause-consumers, 1s..1h.
	CountLag time.Duration `koanf:"count_lag"`
}
