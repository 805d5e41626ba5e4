package drills

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tidemark/tidemark/drills/oracle"
	"github.com/tidemark/tidemark/internal/debezium"
	"github.com/tidemark/tidemark/internal/kafkaadmin"
	"github.com/tidemark/tidemark/topology"
)

// switchFeed puts Debezium in the place of the built-in emitter, and back, as
// docs/real-kafka.md tells, while commands go on. Nothing may be missing: a gap
// is left for the end to find.
func switchFeed(ctx context.Context, s *system, rnd *rand.Rand) error {
	var faults []*feedFault
	for shard := range systemShards {
		f, err := s.faultOf(ctx, shard)
		if err != nil {
			return err
		}
		f.mustHit = false
		faults = append(faults, f)
	}
	emitter := s.rolesOf("cdc")[0]
	err := emitter.on(func() error {
		took, _ := emitter.now().Stop(stopPatience)
		s.tallies.stopped(took)
		emitter.away.Store(true)
		defer emitter.away.Store(false)
		return errors.Join(s.byDebezium(ctx, rnd), emitter.start())
	})
	if err != nil {
		return err
	}
	if err := s.flowing(ctx); err != nil {
		return err
	}
	for _, f := range faults {
		if err := f.isNamed(ctx); err != nil {
			return err
		}
	}
	return nil
}

// byDebezium has connectors feed every shard for a while.
func (s *system) byDebezium(ctx context.Context, rnd *rand.Rand) error {
	ctx, cancel := context.WithTimeout(ctx, 2*s.patience)
	defer cancel()
	worker := debezium.Worker{URL: s.connect}
	if err := worker.Ready(ctx); err != nil {
		return err
	}
	var names []string
	defer func() { // also what was only half done
		for _, name := range names {
			_ = worker.Remove(context.WithoutCancel(ctx), name)
		}
	}()
	for shard, url := range s.cfg.Postgres {
		if err := s.slotIsFree(ctx, shard); err != nil {
			return err
		}
		c, err := debezium.Config{Prefix: s.cfg.Prefix, Shard: shard, Shards: s.cfg.Shards, PostgresURL: url, Topic: s.topo.Topic(topology.CDC)}.Connector()
		if err != nil {
			return err
		}
		names = append(names, c.Name)
		if err := worker.Apply(ctx, c); err != nil {
			return stuckError{err}
		}
	}
	if err := s.flowing(ctx); err != nil {
		return err
	}
	if err := sleep(ctx, between(rnd, time.Second, 3*time.Second)); err != nil {
		return err
	}
	for shard, name := range names {
		if err := worker.Remove(ctx, name); err != nil {
			return stuckError{err}
		}
		if err := s.slotIsFree(ctx, shard); err != nil {
			return err
		}
	}
	names = nil
	return nil
}

// slotIsFree waits until nobody reads a shard's slot.
func (s *system) slotIsFree(ctx context.Context, shard int) error {
	return s.onShard(ctx, shard, func(conn *pgx.Conn) error {
		var active bool
		err := conn.QueryRow(ctx, "SELECT active FROM pg_replication_slots WHERE database = current_database()").Scan(&active)
		if err == nil && active {
			err = fmt.Errorf("the slot of shard %d is still read", shard)
		}
		return err
	})
}

// sharedPrefix keeps what drills have on a real broker apart.
func sharedPrefix(seed uint64) string {
	return fmt.Sprintf("drill.x%x", seed^uint64(time.Now().UnixNano()))
}

// removeTopics leaves a shared broker as it was.
func removeTopics(brokers []string, topo *topology.Topology) {
	client, err := kafkaadmin.Client(brokers, nil, kgo.ClientID(oracle.ClientID))
	if err != nil {
		return
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	admin := kadm.NewClient(client)
	topics := []string{"__debezium-heartbeat." + topo.Config.Prefix}
	for _, s := range topo.Streams {
		topics = append(topics, s.Topic)
	}
	for _, topic := range topics {
		_, _ = admin.DeleteTopic(ctx, topic)
	}
	for _, g := range topo.Groups {
		_, _ = admin.DeleteGroup(ctx, g.ID)
	}
}
