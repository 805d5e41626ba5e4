package drills

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tidemark/tidemark/drills/faultbroker"
	"github.com/tidemark/tidemark/drills/member"
	"github.com/tidemark/tidemark/drills/oracle"
	"github.com/tidemark/tidemark/drills/proc"
	"github.com/tidemark/tidemark/drills/traffic"
	"github.com/tidemark/tidemark/internal/kafkaadmin"
	"github.com/tidemark/tidemark/topology"
)

// rig is the projection bench: a broker, members, traffic, the oracle.
type rig struct {
	environment
	cell   Cell
	topo   *topology.Topology
	broker *faultbroker.Broker // nil: a real one
	nodes  nodes
	kafkas []string
	client *kgo.Client
	admin  *kadm.Client
	sender *traffic.Sender

	mu      sync.Mutex
	watcher *oracle.Watcher
	members []*member.Member
	gone    []*member.Member        // that were taken away for good
	busy    map[*member.Member]bool // something is being done to it
	named   int                     // members that ever were
	late    int                     // times that lateAppend was done
}

const (
	sourceShards      = 2
	displayPartitions = 3
)

// newRig starts everything and waits until every member consumes. Changes are
// there before the first member is (G25 of the bug log).
func newRig(ctx context.Context, env environment, cell Cell) (r *rig, err error) {
	r = &rig{environment: env, cell: cell.withDefaults(), busy: map[*member.Member]bool{}}
	defer func() {
		if err != nil {
			r.close()
		}
	}()
	if err := r.lacks(); err != nil {
		return r, err
	}
	if err := r.startBroker(); err != nil {
		return r, err
	}
	if err := r.createTopics(ctx); err != nil {
		return r, err
	}
	if r.watcher, err = oracle.Watch(oracle.Config{Brokers: r.kafkas, Topology: r.topo, Findings: r.findings, Logger: r.log}); err != nil {
		return r, err
	}
	t := traffic.Default(r.seed)
	t.Relations, t.Duplicates, t.Poison = r.cell.Relations, r.cell.Duplicates, r.cell.Poison
	if r.cell.OtherVersion {
		t.Hidden = 0 // the other version's projection counts no relation as hidden
	}
	g := traffic.New(t, member.Manifest(r.topo.Config), r.topo.Config)
	if r.sender, err = traffic.NewSender(r.kafkas, r.topo.Topic(topology.BucketChanges), g); err != nil {
		return r, err
	}
	r.sender.Start(r.cell.Rate)
	for range r.cell.Members {
		if _, err := r.addMember(); err != nil {
			return r, err
		}
	}
	return r, await(ctx, r.patience, "starting the members", r.allReady)
}

// lacks says what the cell needs and the run does not have.
func (r *rig) lacks() error {
	several := r.cell.Brokers > 1 && r.kafka != ""
	switch {
	case several && (r.brokersCommand == "" || len(splitList(r.kafka)) != r.cell.Brokers):
		return missingError{fmt.Errorf("brokers of a cluster of %d are ended and started: --real-kafka has to name all of them, --brokers-command how", r.cell.Brokers)}
	case r.cell.OtherVersion && r.previous == "":
		return missingError{errors.New("another version is needed: `make previous` builds its binary, --previous names one")}
	}
	return nil
}

func (r *rig) startBroker() (err error) {
	if r.kafka != "" {
		r.kafkas, r.nodes = splitList(r.kafka), realNodes(r.brokersCommand)
		return nil
	}
	if r.broker, err = faultbroker.StartCluster(r.dir, r.cell.Brokers); err != nil {
		return err
	}
	r.kafkas, r.nodes = r.broker.Addresses(), embeddedNodes{r.broker}
	return r.slowDown(context.Background())
}

// slowDown installs the cell's slow acks; they end with the broker's process.
func (r *rig) slowDown(ctx context.Context) error {
	if r.broker == nil || r.cell.SlowAcks < 0 {
		return nil
	}
	for _, kind := range []faultbroker.Kind{faultbroker.DelayAck, faultbroker.DelayWork} {
		if _, err := r.broker.Break(ctx, faultbroker.Fault{Kind: kind, Client: memberClients, Most: r.cell.SlowAcks}); err != nil {
			return err
		}
	}
	return nil
}

// memberClients is the prefix of the members' client ids.
const memberClients = "member-"

func (r *rig) createTopics(ctx context.Context) (err error) {
	c := topology.DefaultConfig()
	// Drills share a real broker.
	c.Prefix = fmt.Sprintf("drill.x%x", r.seed^uint64(time.Now().UnixNano()))
	c.Shards, c.CountPartitions, c.DisplayPartitions = sourceShards, r.cell.Partitions, displayPartitions
	c.ReplicationFactor = len(r.kafkas) // any one of them may be killed
	if r.topo, err = topology.New(c); err != nil {
		return err
	}
	if r.client, err = kafkaadmin.Client(r.kafkas, nil, kgo.ClientID(oracle.ClientID)); err != nil {
		return err
	}
	r.admin = kadm.NewClient(r.client)
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return kafkaadmin.Create(ctx, r.client, r.topo)
}

// addMember starts a member under a name that no other ever had.
func (r *rig) addMember() (*member.Member, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.named++
	name := fmt.Sprintf("m%d", r.named)
	state, disk := r.disk()
	m := member.New(member.Spec{
		Brokers: r.kafkas, Topology: r.topo.Config, Instance: name, StateDir: filepath.Join(state, name),
		Session: r.cell.Session, Refresh: 20 * time.Millisecond, WriteBehind: 64 << 10, HotStandby: r.cell.HotStandby, Weakness: r.weak,
	}, r.dir)
	m.Disk = disk
	if r.cell.OtherVersion && r.named%2 == 0 {
		m.Become(r.previous)
	}
	if err := m.Start(); err != nil {
		return nil, err
	}
	r.members = append(r.members, m)
	return m, nil
}

// disk is where a member keeps its state: a disk of its own, which can be
// filled, if the cell says so and this machine allows.
func (r *rig) disk() (dir string, d *proc.Disk) {
	dir = filepath.Join(r.dir, "state")
	if r.cell.Disk == 0 {
		return dir, nil
	}
	d, err := proc.NewDisk(r.cell.Disk)
	if err != nil {
		r.tallies.note("a limit of file sizes (EFBIG) stands for a full disk: %v", err)
		return dir, nil
	}
	r.tallies.note("each member has a disk of %d MB, which is filled (ENOSPC)", r.cell.Disk>>20)
	return d.Dir(), d
}

func (r *rig) all() []*member.Member {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]*member.Member(nil), r.members...)
}

// take chooses a member that nothing is being done to and reserves it.
func (r *rig) take(ctx context.Context, rnd *rand.Rand) (*member.Member, func(), error) {
	var m *member.Member
	err := await(ctx, r.patience, "finding a member", func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		var free []*member.Member
		for _, m := range r.members {
			if !r.busy[m] {
				free = append(free, m)
			}
		}
		if len(free) == 0 {
			return errors.New("something is being done to each")
		}
		m = free[rnd.IntN(len(free))]
		r.busy[m] = true
		return nil
	})
	return m, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.busy, m)
	}, err
}

func (r *rig) allReady() error {
	for _, m := range r.all() {
		if !m.IsReady() {
			reason := "has said nothing"
			if all := m.Reasons(); len(all) > 0 {
				reason = all[len(all)-1]
			}
			return fmt.Errorf("member %s: %s", m.Spec.Instance, reason)
		}
	}
	return nil
}

// kill ends a member as a power cut would.
func (r *rig) kill(m *member.Member) {
	m.Process().Kill()
	r.tallies.killed()
}

// revive starts a member and waits for its first record.
func (r *rig) revive(ctx context.Context, m *member.Member) error {
	if err := m.Start(); err != nil {
		return err
	}
	return r.awaitFirst(ctx, m)
}

func (r *rig) awaitFirst(ctx context.Context, m *member.Member) error {
	first := m.FirstRecord()
	err := await(ctx, r.patience, "member "+m.Spec.Instance+" handling a record", func() error {
		select {
		case <-first:
			return nil
		default:
			return fmt.Errorf("ready: %v, %s", m.IsReady(), lastOf(m.Reasons()))
		}
	})
	if err == nil {
		_, toFirst := m.Times()
		r.tallies.first(toFirst)
	}
	return err
}

func lastOf(all []string) string {
	if len(all) == 0 {
		return ""
	}
	return all[len(all)-1]
}

// moving waits until every partition of the changelog has grown, so that every
// partition has an owner at work.
func (r *rig) moving(ctx context.Context) error {
	before := r.watching().TableEnd()
	return await(ctx, r.patience, "every partition being counted", func() error {
		for p, end := range r.watching().TableEnd() {
			if end <= before[p] {
				return fmt.Errorf("partition %d stands at %d", p, end)
			}
		}
		return nil
	})
}

func (r *rig) watching() *oracle.Watcher {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.watcher
}

// awaitReason waits until a member says why it is not ready, in words that
// contain all of these; that none does is a finding.
func (r *rig) awaitReason(ctx context.Context, m []*member.Member, within time.Duration, words ...string) error {
	err := await(ctx, within, "naming the fault", func() error {
		var last string
		for _, m := range m {
			for _, reason := range m.Reasons() {
				if last = reason; containsAll(reason, words) {
					return nil
				}
			}
		}
		return fmt.Errorf("no member is not ready for %q; the last said: %.300s", words, last)
	})
	var not stuckError
	if errors.As(err, &not) {
		r.findings.Add(Unnamed, "%v", err)
		return nil
	}
	return err
}

func containsAll(s string, words []string) bool {
	for _, w := range words {
		if !strings.Contains(strings.ToLower(s), strings.ToLower(w)) {
			return false
		}
	}
	return true
}
