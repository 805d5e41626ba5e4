package drills

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tidemark/tidemark/drills/oracle"
	"github.com/tidemark/tidemark/internal/control"
	"github.com/tidemark/tidemark/internal/idset"
	"github.com/tidemark/tidemark/internal/kafkaadmin"
	"github.com/tidemark/tidemark/relations"
	"github.com/tidemark/tidemark/topology"
)

// dropSlot takes a shard's replication slot away under its emitter. What is
// committed until an operator makes it anew is not in the feed.
func dropSlot(ctx context.Context, s *system, rnd *rand.Rand) error {
	f, err := s.faultOf(ctx, rnd.IntN(systemShards), control.CauseSlotRecreated, control.CausePositionJumped)
	if err != nil {
		return err
	}
	if err := f.takeSlotAway(ctx); err != nil {
		return err
	}
	if err := sleep(ctx, between(rnd, 500*time.Millisecond, 2*time.Second)); err != nil {
		return err
	}
	if err := f.slotAnew(ctx); err != nil {
		return err
	}
	return f.namedAndHealed(ctx)
}

// takeSlotAway drops the slot, from whoever holds it.
func (f *feedFault) takeSlotAway(ctx context.Context) error {
	return f.onShard(ctx, f.shard, func(conn *pgx.Conn) error {
		var slot string
		var pid *int32
		err := conn.QueryRow(ctx, "SELECT slot_name, active_pid FROM pg_replication_slots WHERE database = current_database()").Scan(&slot, &pid)
		if err != nil {
			return fmt.Errorf("looking for the slot: %w", err)
		}
		if pid != nil {
			if _, err := conn.Exec(ctx, "SELECT pg_terminate_backend($1, 1000)", *pid); err != nil {
				return err
			}
		}
		_, err = conn.Exec(ctx, "SELECT pg_drop_replication_slot($1)", slot)
		return err
	})
}

// slotAnew does what the manual tells an operator whose slot is gone, once the
// emitter has said so; the emitter then goes on by itself.
func (f *feedFault) slotAnew(ctx context.Context) error {
	emitter := f.rolesOf("cdc")[0]
	err := await(ctx, namePatience, "the emitter telling that its slot is gone", func() error {
		if err := emitter.ready(ctx); err == nil || !containsAll(err.Error(), []string{"slot", "vanished"}) {
			return fmt.Errorf("it says: %w", errors.Join(err, errUntold))
		}
		return nil
	})
	var not stuckError
	if errors.As(err, &not) {
		f.findings.Add(Unnamed, "shard %d: %v", f.shard, err)
	} else if err != nil {
		return err
	}
	if err := f.operate(ctx, "cdc", "create-slot", "--shard", strconv.Itoa(f.shard), "--execute", "--as", "drill"); err != nil {
		return stuckError{fmt.Errorf("making the slot of shard %d anew: %w", f.shard, err)}
	}
	return nil
}

// operate runs a command as an operator does.
func (s *system) operate(ctx context.Context, args ...string) error {
	return command(ctx, filepath.Join(s.dir, "operator.log"), append(args, "--config", s.file())...)
}

var errUntold = errors.New("nothing of it")

// alterPublication leaves the outbox out of the publication for a while.
func alterPublication(ctx context.Context, s *system, rnd *rand.Rand) error {
	f, err := s.faultOf(ctx, rnd.IntN(systemShards), control.CausePublication)
	if err != nil {
		return err
	}
	if err := f.alterPublication(ctx, "DROP"); err != nil {
		return err
	}
	if err := sleep(ctx, between(rnd, 500*time.Millisecond, 2*time.Second)); err != nil {
		return err
	}
	if err := f.alterPublication(ctx, "ADD"); err != nil {
		return err
	}
	return f.namedAndHealed(ctx)
}

func (f *feedFault) alterPublication(ctx context.Context, verb string) error {
	return f.onShard(ctx, f.shard, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "ALTER PUBLICATION "+relations.Publication+" "+verb+" TABLE outbox")
		return err
	})
}

// deleteOutboxRows deletes rows by hand: some that have long been counted, and
// some that the feed will never bring, since the slot is away while they are
// committed.
func deleteOutboxRows(ctx context.Context, s *system, rnd *rand.Rand) error {
	f, err := s.faultOf(ctx, rnd.IntN(systemShards), control.CauseRowDeleted, control.CauseSlotRecreated, control.CausePositionJumped)
	if err != nil {
		return err
	}
	if err := f.deleteCounted(ctx, rnd); err != nil {
		return err
	}
	if err := f.takeSlotAway(ctx); err != nil {
		return err
	}
	from, err := f.lastRow(ctx)
	if err != nil {
		return err
	}
	if err := sleep(ctx, between(rnd, time.Second, 2*time.Second)); err != nil {
		return err
	}
	to, err := f.lastRow(ctx)
	if err != nil {
		return err
	}
	if err := f.deleteRows(ctx, rnd, from+1, to, 10); err != nil {
		return err
	}
	if err := f.slotAnew(ctx); err != nil {
		return err
	}
	return f.namedAndHealed(ctx)
}

// deleteCounted deletes rows that came long ago.
func (f *feedFault) deleteCounted(ctx context.Context, rnd *rand.Rand) error {
	const few = 50
	return await(ctx, f.patience, "deleting rows that are counted", func() error {
		settled, err := f.settle(ctx)
		if err == nil && settled < few {
			err = fmt.Errorf("there are %d rows", settled)
		}
		if err != nil {
			return err
		}
		return f.deleteRows(ctx, rnd, settled-few, settled, 3)
	})
}

func (f *feedFault) lastRow(ctx context.Context) (id int64, err error) {
	err = f.onShard(ctx, f.shard, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, "SELECT coalesce(max(id), 0) FROM outbox WHERE aggregatetype = $1", topology.AggregateRelation).Scan(&id)
	})
	return id, err
}

// deleteRows deletes up to n relation rows with ids from..to; all of them must
// be named.
func (f *feedFault) deleteRows(ctx context.Context, rnd *rand.Rand, from, to int64, n int) error {
	return f.onShard(ctx, f.shard, func(conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, "SELECT id FROM outbox WHERE aggregatetype = $1 AND id BETWEEN $2 AND $3", topology.AggregateRelation, from, to)
		if err != nil {
			return err
		}
		ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
		if err != nil {
			return err
		}
		rnd.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
		ids = ids[:min(n, len(ids))]
		if len(ids) == 0 {
			return fmt.Errorf("there is no row %d..%d to delete", from, to)
		}
		if _, err := conn.Exec(ctx, "DELETE FROM outbox WHERE id = ANY($1)", ids); err != nil {
			return err
		}
		f.extra = f.extra.Union(idset.Of(ids...))
		return nil
	})
}

// truncateCDC has the broker lose records of topic cdc before intake has read
// them.
func truncateCDC(ctx context.Context, s *system, rnd *rand.Rand) error {
	f, err := s.faultOf(ctx, rnd.IntN(systemShards), control.CauseTopicTruncated)
	if err != nil {
		return err
	}
	intakes := s.rolesOf("intake")
	for _, r := range intakes {
		r.busy.Lock()
		defer r.busy.Unlock()
		r.now().Kill()
		s.tallies.killed()
	}
	if err := sleep(ctx, between(rnd, 500*time.Millisecond, 2*time.Second)); err != nil {
		return err
	}
	if err := f.loseRecords(ctx); err != nil {
		return err
	}
	for _, r := range intakes {
		if err := r.start(); err != nil {
			return err
		}
	}
	return f.namedAndHealed(ctx)
}

// loseRecords deletes everything that the shard's partition of cdc has now.
func (f *feedFault) loseRecords(ctx context.Context) error {
	topic, partition := f.topo.Topic(topology.CDC), int32(f.shard)
	client, err := kafkaadmin.Client(f.cfg.Kafka.Brokers, nil, kgo.ClientID(oracle.ClientID))
	if err != nil {
		return err
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	ends, err := admin.ListEndOffsets(ctx, topic)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return fmt.Errorf("reading the end of %s: %w", topic, err)
	}
	end, _ := ends.Lookup(topic, partition)
	f.watcher.Lose(topology.CDC, partition, end.Offset)
	var cut kadm.Offsets
	cut.AddOffset(topic, partition, end.Offset, -1)
	answer, err := admin.DeleteRecords(ctx, cut)
	if err == nil {
		err = answer.Error()
	}
	if err != nil {
		return fmt.Errorf("deleting the records of %s/%d below %d: %w", topic, partition, end.Offset, err)
	}
	f.tallies.broke()
	return nil
}
