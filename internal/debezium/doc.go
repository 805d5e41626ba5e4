// Package debezium puts Debezium's PostgreSQL connector in the place of the
// built-in emitter: one connector per relation shard, from the template in
// docker/debezium, given to a Kafka Connect worker over its REST interface.
//
//	c, err := debezium.Config{Prefix: "tidemark", Shard: 0, Shards: 4, PostgresURL: url}.Connector()
//	w := debezium.Worker{URL: "http://127.0.0.1:18083"}
//	err = w.Apply(ctx, c)       // its task runs
//	err = w.Remove(ctx, c.Name) // with its offsets; the slot stays
//
// Either feed goes on where the other stopped, on one slot and one topic, when
// a connector is removed with its offsets as Remove does and the slot is free
// before the next feed starts.
package debezium
