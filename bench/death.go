package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tidemark/tidemark/drills/member"
	"github.com/tidemark/tidemark/drills/traffic"
	"github.com/tidemark/tidemark/internal/kafkaadmin"
	"github.com/tidemark/tidemark/internal/pause"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

const (
	deathRate   = 1000 // changes a second
	deathWindow = 15 * time.Second
)

// benchDeath kills one of three processes that each run a projection and a
// display, with static membership and hot standby, and measures how old the
// counts are that are displayed, of its partitions and of the others: once it
// is started again at once, as a supervisor does, and once it stays dead.
func benchDeath(ctx context.Context) error {
	b, err := startBroker()
	if err != nil {
		return err
	}
	defer b.stop()
	c := topology.DefaultConfig()
	c.CountPartitions, c.DisplayPartitions, c.Shards = 6, 6, 1
	topo, err := topology.New(c)
	if err != nil {
		return err
	}
	cl, err := kgo.NewClient(kgo.SeedBrokers(b.addresses...), kgo.ConsumeTopics(topo.Topic(topology.DisplayTable)))
	if err != nil {
		return err
	}
	defer cl.Close()
	if err := kafkaadmin.Create(ctx, cl, topo); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "tidemark-bench-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	t := traffic.Config{Seed: 1, Relations: 60_000, Targets: 2000, Window: 1}
	sender, err := traffic.NewSender(b.addresses, topo.Topic(topology.BucketChanges), traffic.New(t, member.Manifest(c), c))
	if err != nil {
		return err
	}
	defer sender.Close()
	d := &dying{topo: topo, admin: kadm.NewClient(cl), shown: map[pair]time.Time{}}
	for i := range 3 {
		m := member.New(member.Spec{Brokers: b.addresses, Topology: c, Instance: fmt.Sprintf("w%d", i+1),
			StateDir: filepath.Join(dir, fmt.Sprint(i)), HotStandby: true}, dir)
		if err := m.Start(); err != nil {
			return err
		}
		defer func() { m.Process().Kill() }()
		d.members = append(d.members, m)
	}
	sender.Start(deathRate)
	following, stop := context.WithCancel(ctx)
	defer stop()
	go d.follow(following, cl)
	return d.run(ctx)
}

// pair is a way that a count takes: its partition, then that of its display.
type pair struct{ count, display uint32 }

type dying struct {
	topo    *topology.Topology
	admin   *kadm.Client
	members []*member.Member

	mu    sync.Mutex
	shown map[pair]time.Time // newest commit that is displayed
}

func (d *dying) follow(ctx context.Context, cl *kgo.Client) {
	for ctx.Err() == nil {
		cl.PollFetches(ctx).EachRecord(func(r *kgo.Record) {
			var row tidemarkv1.DisplayRow
			if row.UnmarshalVT(r.Value) != nil {
				return
			}
			d.mu.Lock()
			defer d.mu.Unlock()
			for _, p := range row.GetSnapshot().GetPartials() {
				way := pair{p.Partition, uint32(r.Partition)}
				if at := time.UnixMicro(p.CommittedAtUs); at.After(d.shown[way]) {
					d.shown[way] = at
				}
			}
		})
	}
}

func (d *dying) run(ctx context.Context) error {
	if err := d.settle(ctx); err != nil {
		return err
	}
	fmt.Printf("  %d changes/s, 6 count and 6 display partitions, 3 processes, hot standby, session 6 s; ages of what is displayed, sampled every 20 ms\n", deathRate)
	nobody := func(pair) bool { return false }
	if err := d.sample(ctx, "nothing happens", nobody); err != nil {
		return err
	}
	for _, restart := range []bool{true, false} {
		victim := d.members[1]
		owned, err := d.owned(ctx, victim.Spec.Instance)
		if err != nil {
			return err
		}
		victim.Process().Kill()
		what := "kill -9, stays dead"
		if restart {
			what = "kill -9, restarted"
			if err := victim.Start(); err != nil {
				return err
			}
		}
		if err := d.sample(ctx, what, owned); err != nil {
			return err
		}
		if restart {
			if err := d.settle(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// settle waits until every member consumes and everything is displayed as it
// comes.
func (d *dying) settle(ctx context.Context) error {
	for {
		d.mu.Lock()
		late := len(d.shown) < d.topo.Config.CountPartitions*d.topo.Config.DisplayPartitions
		for _, at := range d.shown {
			late = late || time.Since(at) > time.Second
		}
		d.mu.Unlock()
		for _, m := range d.members {
			late = late || !m.IsReady()
		}
		if !late {
			break
		}
		if !pause.For(ctx, 20*time.Millisecond) {
			return ctx.Err()
		}
	}
	if !pause.For(ctx, 5*time.Second) { // standbys catch up
		return ctx.Err()
	}
	return nil
}

// owned tells the pairs of which a member has a partition now.
func (d *dying) owned(ctx context.Context, instance string) (func(pair) bool, error) {
	mine := map[string]map[int32]bool{} // by topic
	for _, group := range []string{topology.ProjectionGroup, topology.DisplayGroup} {
		id := d.topo.Group(group).ID
		described, err := d.admin.DescribeGroups(ctx, id)
		if err != nil {
			return nil, err
		}
		for _, m := range described[id].Members {
			assigned, ok := m.Assigned.AsConsumer()
			if !ok || m.InstanceID == nil || *m.InstanceID != instance+"."+group {
				continue
			}
			for _, t := range assigned.Topics {
				mine[t.Topic] = map[int32]bool{}
				for _, p := range t.Partitions {
					mine[t.Topic][p] = true
				}
			}
		}
	}
	if len(mine) != 2 {
		return nil, errors.New("the member to be killed owns no partition of one of its groups")
	}
	counts, displays := mine[d.topo.Topic(topology.BucketChanges)], mine[d.topo.Topic(topology.PartialCounts)]
	return func(p pair) bool { return counts[int32(p.count)] || displays[int32(p.display)] }, nil
}

// sample looks at every pair's age for a while.
func (d *dying) sample(ctx context.Context, what string, dead func(pair) bool) error {
	var others, own []time.Duration
	for start := time.Now(); time.Since(start) < deathWindow; {
		if !pause.For(ctx, 20*time.Millisecond) {
			return ctx.Err()
		}
		d.mu.Lock()
		now := time.Now()
		for way, at := range d.shown {
			if dead(way) {
				own = append(own, now.Sub(at))
			} else {
				others = append(others, now.Sub(at))
			}
		}
		d.mu.Unlock()
	}
	fmt.Printf("  %-20s  others %s", what, ages(others))
	if len(own) > 0 {
		fmt.Printf("; its own %s", ages(own))
	}
	fmt.Println()
	return nil
}

func ages(all []time.Duration) string {
	slices.Sort(all)
	at := func(q float64) float64 { return all[min(len(all)-1, int(q*float64(len(all))))].Seconds() }
	return fmt.Sprintf("p50 %.2f s, p99 %.2f s, most %.2f s", at(0.5), at(0.99), at(1))
}

// runMember is a process of benchDeath.
func runMember(ctx context.Context, text string) error {
	var spec member.Spec
	if err := json.Unmarshal([]byte(text), &spec); err != nil {
		return fmt.Errorf("reading the member's spec: %w", err)
	}
	return member.Run(ctx, spec, os.Stdout, slog.New(slog.NewTextHandler(os.Stderr, nil)))
}
