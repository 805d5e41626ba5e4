package drills

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tidemark/tidemark/drills/oracle"
	"github.com/tidemark/tidemark/internal/config"
	"github.com/tidemark/tidemark/internal/control"
	"github.com/tidemark/tidemark/internal/idset"
	"github.com/tidemark/tidemark/internal/kafkaadmin"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// A feedFault is a fault of one shard's change feed while a drill has it named
// and healed.
//
// What should be named is found out without what is drilled: rows of the
// outbox whose event never came to topic facts.
type feedFault struct {
	*system
	shard  int
	causes []control.Cause         // any of which tells the truth
	before map[uint64]idset.Ranges // ids of gaps that were there before, by seal
	// extra are ids that must be named although nothing of them is missing, or
	// although no row is left.
	extra idset.Ranges
	// lostBefore are events that came and that the outbox had not before the
	// fault: those of earlier faults, and of their healing.
	lostBefore map[event]struct{}
	mustHit    bool // nothing missing means that the fault did not hit
}

// faultOf begins with a shard as it is before the fault.
func (s *system) faultOf(ctx context.Context, shard int, causes ...control.Cause) (*feedFault, error) {
	f := &feedFault{system: s, shard: shard, causes: causes, mustHit: true, before: map[uint64]idset.Ranges{}}
	all, err := f.gaps(ctx)
	for _, g := range all {
		f.before[g.Seal] = g.Missing
	}
	return f, errors.Join(err, f.rememberLost(ctx))
}

// gaps lists the shard's gaps, healed ones too.
func (f *feedFault) gaps(ctx context.Context) ([]control.Gap, error) {
	db, err := control.Open(ctx, f.cfg.Control)
	if err != nil {
		return nil, err
	}
	defer db.Close()
	return db.Gaps(ctx, control.GapFilter{Shard: &f.shard})
}

// settle waits until intake has compared everything that is committed now with
// its proofs, and tells up to which id that is.
func (f *feedFault) settle(ctx context.Context) (upTo int64, err error) {
	if err := f.onShard(ctx, f.shard, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, "SELECT coalesce(max(id), 0) FROM outbox WHERE aggregatetype = $1", topology.AggregateRelation).Scan(&upTo)
	}); err != nil {
		return 0, err
	}
	return upTo, await(ctx, f.patience, "intake comparing what came with the proofs", func() error {
		db, err := control.Open(ctx, f.cfg.Control)
		if err != nil {
			return err
		}
		defer db.Close()
		s, err := db.Source(ctx, f.shard)
		if err == nil && s.SettledID < upTo {
			err = fmt.Errorf("shard %d is compared up to id %d, %d is due", f.shard, s.SettledID, upTo)
		}
		return err
	})
}

// namePatience is how long a compared interval's gap may take to be recorded.
const namePatience = 20 * time.Second

// namedAndHealed demands that gaps name exactly what is missing, for a cause
// that tells the truth, has them healed as an operator does, and demands that
// nothing is missing then. What does not hold is a finding.
func (f *feedFault) namedAndHealed(ctx context.Context) error {
	if err := f.isNamed(ctx); err != nil {
		return err
	}
	return f.heal(ctx)
}

// isNamed is the first half of that.
func (f *feedFault) isNamed(ctx context.Context) error {
	upTo, err := f.settle(ctx)
	if err != nil {
		return err
	}
	d, err := f.due(ctx, upTo)
	if err != nil {
		return err
	}
	f.log.Info("rows are missing from the change feed", "shard", f.shard, "named", d.must.String(), "perhaps", d.may.String(), "up to", upTo)
	if len(d.must) == 0 && f.mustHit {
		return stuckError{fmt.Errorf("shard %d: nothing is missing: the fault did not hit", f.shard)}
	}
	return f.named(ctx, upTo, d)
}

// dues are the ids that gaps must name, and may.
type dues struct {
	must, may idset.Ranges
	upTo      int64 // higher ids are of what came later
}

// due finds out what is missing, and which counted facts are lost. A lost fact
// that a later version has replaced does no harm, and need not be named.
func (f *feedFault) due(ctx context.Context, upTo int64) (dues, error) {
	d := dues{must: f.extra, upTo: upTo}
	came, err := f.came(ctx)
	if err != nil {
		return d, err
	}
	there, err := f.outbox(ctx)
	if err != nil {
		return d, err
	}
	for e := range there {
		if _, ok := came[e]; !ok && e.row <= upTo {
			d.must = d.must.Union(idset.Of(e.row))
		}
	}
	now, err := f.versions(ctx)
	d.may = d.must
	for e, v := range f.lost(came, there) {
		d.may, d.upTo = d.may.Union(idset.Of(e.row)), max(d.upTo, e.row)
		if now[v.relation] <= v.number {
			d.must = d.must.Union(idset.Of(e.row))
		}
	}
	return d, err
}

// lost are the events that came, of which the outbox has no row any more, apart
// from those before the fault and those deleted by hand.
func (f *feedFault) lost(came map[event]version, there map[event]struct{}) map[event]version {
	lost := map[event]version{}
	for e, v := range came {
		_, kept := there[e]
		_, old := f.lostBefore[e]
		if !kept && !old && !f.extra.Contains(e.row) {
			lost[e] = v
		}
	}
	return lost
}

// rememberLost takes what is lost already for granted.
func (f *feedFault) rememberLost(ctx context.Context) error {
	came, err := f.came(ctx)
	if err != nil {
		return err
	}
	there, err := f.outbox(ctx)
	f.lostBefore = map[event]struct{}{}
	for e := range f.lost(came, there) {
		f.lostBefore[e] = struct{}{}
	}
	return err
}

// named compares what is missing with what gaps name. A row that was only on its
// way has come when it is looked for again: of a shard that went back, intake had
// compared higher ids before, so that settle waits for nothing.
func (f *feedFault) named(ctx context.Context, upTo int64, d dues) error {
	var named idset.Ranges
	err := await(ctx, namePatience, "naming what is missing", func() (err error) {
		if named, err = f.namedBy(ctx, d.upTo); err != nil || len(d.must.Without(named)) == 0 && len(named.Without(d.may)) == 0 {
			return err
		}
		if d, err = f.due(ctx, upTo); err == nil {
			err = errors.New("gaps name other rows")
		}
		return err
	})
	var not stuckError
	if !errors.As(err, &not) {
		return err
	}
	if silent := d.must.Without(named); len(silent) > 0 {
		f.findings.AddMany(Silent, silent.Count(), "shard %d: no gap names the outbox rows %.200s, which are missing", f.shard, silent)
	}
	if wrong := named.Without(d.may); len(wrong) > 0 {
		f.findings.AddMany(Misnamed, wrong.Count(), "shard %d: gaps name the outbox rows %.200s, which came", f.shard, wrong)
	}
	return nil
}

// namedBy is what the gaps of this fault name; the fault of a wrong cause is
// found here, too.
func (f *feedFault) namedBy(ctx context.Context, upTo int64) (named idset.Ranges, err error) {
	all, err := f.gaps(ctx)
	for _, g := range all {
		added := g.Missing.Without(f.before[g.Seal]).Within(1, upTo)
		if len(added) == 0 {
			continue
		}
		named = named.Union(added)
		if f.before[g.Seal] == nil && !slices.Contains(f.causes, g.Cause) {
			return named, fmt.Errorf("the gap of seal %d is said to be for %s, not %v", g.Seal, g.Cause, f.causes)
		}
	}
	return named, err
}

// heal does what an operator does.
func (s *system) heal(ctx context.Context) error {
	if s.leaveGaps {
		return nil
	}
	if err := s.operate(ctx, "gaps", "heal", "--all", "--yes", "--as", "drill"); err != nil {
		return stuckError{fmt.Errorf("healing: %w", err)}
	}
	return s.flowing(ctx)
}

// event is one version of a relation as an outbox row brings it. After a
// failover a row's number may be that of another event.
type event struct {
	row int64
	id  string
}

type version struct {
	relation topology.Relation
	number   uint64
}

// outbox reads which events the outbox has.
func (f *feedFault) outbox(ctx context.Context) (there map[event]struct{}, err error) {
	err = f.onShard(ctx, f.shard, func(conn *pgx.Conn) error {
		there = map[event]struct{}{}
		rows, err := conn.Query(ctx, "SELECT id, payload->>'eventId' FROM outbox WHERE aggregatetype = $1", topology.AggregateRelation)
		if err != nil {
			return err
		}
		var e event
		_, err = pgx.ForEachRow(rows, []any{&e.row, &e.id}, func() error {
			there[e] = struct{}{}
			return nil
		})
		return err
	})
	return there, err
}

// versions are those of all relations of the shard.
func (f *feedFault) versions(ctx context.Context) (now map[topology.Relation]uint64, err error) {
	err = f.onShard(ctx, f.shard, func(conn *pgx.Conn) error {
		now = map[topology.Relation]uint64{}
		rows, err := conn.Query(ctx, "SELECT kind, user_id, target_id, version FROM relation")
		if err != nil {
			return err
		}
		var kind int16
		var r topology.Relation
		var version uint64
		_, err = pgx.ForEachRow(rows, []any{&kind, &r.User, &r.Target, &version}, func() error {
			r.Kind = topology.Kind(kind)
			now[r] = version
			return nil
		})
		return err
	})
	return now, err
}

// came reads which events intake has passed on.
func (f *feedFault) came(ctx context.Context) (map[event]version, error) {
	came := map[event]version{}
	err := f.readPartition(ctx, topology.Facts, func(r *kgo.Record) error {
		var c tidemarkv1.RelationChange
		if err := c.UnmarshalVT(r.Value); err != nil {
			return fmt.Errorf("a fact at offset %d: %w", r.Offset, err)
		}
		came[event{c.OutboxId, c.EventId}] = version{topology.Relation{Kind: topology.Kind(c.Kind), User: c.UserId, Target: c.TargetId}, c.RelationVersion}
		return nil
	})
	return came, err
}

// readPartition reads the shard's partition of a stream from its start to its
// present end.
func (f *feedFault) readPartition(ctx context.Context, stream string, take func(*kgo.Record) error) error {
	ctx, cancel := context.WithTimeout(ctx, f.patience)
	defer cancel()
	topic, partition := f.topo.Topic(stream), int32(f.shard)
	client, err := kafkaadmin.Client(f.cfg.Kafka.Brokers, nil, kgo.ClientID(oracle.ClientID),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {partition: kgo.NewOffset().AtStart()}}))
	if err != nil {
		return err
	}
	defer client.Close()
	ends, err := kadm.NewClient(client).ListEndOffsets(ctx, topic)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return fmt.Errorf("reading the end of %s: %w", topic, err)
	}
	end, _ := ends.Lookup(topic, partition)
	for next := int64(0); next < end.Offset; {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err0(); err != nil {
			return fmt.Errorf("reading %s/%d: %w", topic, partition, err)
		}
		for _, r := range fetches.Records() {
			next = r.Offset + 1
			if err := take(r); err != nil {
				return err
			}
		}
	}
	return nil
}

// noGapOpen is a finding of each gap that is left at the end.
func (s *system) noGapOpen(ctx context.Context) error {
	db, err := control.Open(ctx, s.cfg.Control)
	if err != nil {
		return err
	}
	defer db.Close()
	left, err := db.Gaps(ctx, control.GapFilter{States: []control.GapState{control.GapOpen, control.GapHealing}})
	for _, g := range left {
		s.findings.Add(GapLeft, "shard %d, seal %d: %d rows, %s, %s: %.200s", g.Shard, g.Seal, g.Rows, g.Cause, strings.ToLower(string(g.State)), g.Missing)
	}
	return err
}

func (s *system) file() string { return filepath.Join(s.dir, config.FileName) }

// onShard runs do on a connection to a shard, again while PostgreSQL is away.
func (s *system) onShard(ctx context.Context, shard int, do func(*pgx.Conn) error) error {
	return await(ctx, s.patience, fmt.Sprintf("asking shard %d", shard), func() error {
		conn, err := pgx.Connect(ctx, s.cfg.Postgres[shard])
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
		return do(conn)
	})
}
