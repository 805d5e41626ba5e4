package drills

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tidemark/tidemark/drills/faultbroker"
	"github.com/tidemark/tidemark/drills/paging"
	"github.com/tidemark/tidemark/emitters/load"
	"github.com/tidemark/tidemark/internal/control"
	"github.com/tidemark/tidemark/relations"
	"github.com/tidemark/tidemark/topology"
)

const (
	// hotTargets are what everything is about while lists are read.
	hotTargets = 4
	// hotUsers come and go in their lists.
	hotUsers = 400
	// stableUsers stay in each of them.
	stableUsers = 180
	// slowReads is how late what likers processes read may be: so a log takes a
	// while to read, and a reader meets that.
	slowReads = 400 * time.Millisecond
	// comparedLists of each kind are compared with the facts at the end, those
	// with most users.
	comparedLists = 4
)

// targetList is who is in the counted state of a kind to a target.
type targetList struct {
	kind   topology.Kind
	target string
}

func (l targetList) path() string {
	switch l.kind {
	case topology.Favorite:
		return "/v1/videos/" + l.target + "/favoriters"
	case topology.Follow:
		return "/v1/users/" + l.target + "/followers"
	}
	return "/v1/videos/" + l.target + "/likers"
}

// client asks as somebody to whom the list is shown.
func (s *system) client(l targetList) (paging.Client, error) {
	user := "reader"
	if l.kind == topology.Follow {
		user = l.target
	}
	token, err := s.auth.Mint(user, "", 24*time.Hour)
	return paging.Client{BaseURL: "http://" + s.cfg.API.Listen, Token: token}, err
}

func hotTarget(n int) string { return fmt.Sprintf("V%d", n) } // as the load emitter names them

// hotLists are read while the drill runs.
func hotLists() (lists []targetList) {
	for n := range hotTargets {
		lists = append(lists, targetList{topology.Like, hotTarget(n)}, targetList{topology.Favorite, hotTarget(n)})
	}
	return lists
}

func stableUser(n int) string { return fmt.Sprintf("stable%d", n) }

// startReaders has the users who stay enter the lists, then reads these until
// the commands have ended.
func (s *system) startReaders(ctx context.Context) error {
	if s.cell.Readers == 0 {
		return nil
	}
	if err := s.enterStable(ctx); err != nil {
		return fmt.Errorf("having users enter the lists who stay there: %w", err)
	}
	client, err := s.client(hotLists()[0])
	if err != nil {
		return err
	}
	if err := await(ctx, s.patience, "lists having the users who stay", func() error {
		for _, l := range hotLists() {
			if err := client.Has(ctx, l.path(), stableUsers); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return err
	}
	if s.broker != nil {
		slow := faultbroker.Fault{Kind: faultbroker.DelayAck, Client: roleClients + "-likers", Request: kmsg.Fetch.Name(), Most: slowReads}
		if _, err := s.broker.Break(ctx, slow); err != nil {
			return err
		}
	}
	var stable []string
	for n := range stableUsers {
		stable = append(stable, stableUser(n))
	}
	var lists []paging.List
	for _, l := range hotLists() {
		lists = append(lists, paging.List{Path: l.path(), Stable: stable})
	}
	s.readers = paging.Start(paging.Config{
		Client: client, Lists: lists, Sizes: []int{3, 7, 20, 100, 200}, Readers: s.cell.Readers, Seed: s.seed, Findings: s.findings,
	})
	return nil
}

// enterStable sends the commands of the users who stay.
func (s *system) enterStable(ctx context.Context) error {
	log := []string{"time,user,kind,target,state"}
	for n := range stableUsers {
		for _, l := range hotLists() {
			log = append(log, fmt.Sprintf("%d,%s,%v,%s,%v", len(log), stableUser(n), l.kind, l.target, l.kind.Active()))
		}
	}
	file := filepath.Join(s.dir, "stable.csv")
	if err := os.WriteFile(file, []byte(strings.Join(log, "\n")+"\n"), 0o644); err != nil {
		return err
	}
	c := s.loadConfig()
	c.Replay = &load.Replay{Path: file, BadLines: -1}
	l, err := load.New(c)
	if err != nil {
		return err
	}
	report, err := l.Run(ctx)
	if err == nil && report.Decided != int64(len(log)-1) {
		err = fmt.Errorf("%d of %d commands were decided", report.Decided, len(log)-1)
	}
	return err
}

// wholeList reads a list once.
func (s *system) wholeList(ctx context.Context, l targetList) ([]paging.Entry, error) {
	client, err := s.client(l)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	return client.All(ctx, l.path())
}

// answered waits until every process is ready and every hot list is answered.
func (s *system) answered(ctx context.Context) error {
	if err := await(ctx, s.patience, "every process being ready", func() error { return s.allReady(ctx) }); err != nil {
		return err
	}
	return await(ctx, s.patience, "lists being answered", func() error {
		for _, l := range hotLists() {
			client, err := s.client(l)
			if err != nil {
				return err
			}
			if err := client.Has(ctx, l.path(), 0); err != nil {
				return err
			}
		}
		return nil
	})
}

// finishReaders has the readings come to their ends, and says how much was read.
func (s *system) finishReaders(ctx context.Context) {
	if s.readers == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, s.patience)
	defer cancel()
	s.readers.Finish(ctx)
	f := s.readers.Figures()
	s.tallies.note("%d lists were read to their ends, in %d pages with %d entries; standbys answered for %d pages; %d pages were refused with Retry-After; the latest page came after %v",
		f.Readings, f.Pages, f.Entries, f.Standby, f.Refused, f.Slowest.Round(time.Millisecond))
	if f.Readings == 0 {
		s.findings.Add(Stuck, "no list was read to its end")
	}
	if s.cell.HotStandby != (f.Standby > 0) {
		s.findings.Add(Unwarm, "hot standby: %v, and standbys answered for %d pages", s.cell.HotStandby, f.Standby)
	}
}

// compareLists has the API tell the longest lists, entry by entry, and compares
// them with the facts: the comparison of all rows, before this one, reads the
// table's log, which is not what lists are answered from. All is quiet.
func (s *system) compareLists(ctx context.Context) error {
	want, err := s.factLists(ctx)
	if err != nil {
		return err
	}
	lists := longest(want)
	s.compares = len(lists)
	differ := map[targetList]error{}
	err = await(ctx, listPatience, "lists being as their facts are", func() error {
		lists = slices.DeleteFunc(lists, func(l targetList) bool {
			have, err := s.wholeList(ctx, l)
			if err == nil {
				err = listsDiffer(have, want[l])
			}
			differ[l] = err
			return err == nil
		})
		if len(lists) > 0 {
			return fmt.Errorf("%d differ", len(lists))
		}
		return nil
	})
	var not stuckError
	if errors.As(err, &not) {
		for _, l := range lists {
			s.findings.Add(ListDiffers, "%s: %v", l.path(), differ[l])
		}
		return nil
	}
	return err
}

// listPatience is far more than a change that is in the table takes to be shown.
const listPatience = 10 * time.Second

func listsDiffer(have, want []paging.Entry) error {
	for i := range min(len(have), len(want)) {
		if have[i].User != want[i].User || !have[i].At.Equal(want[i].At) {
			return fmt.Errorf("entry %d is %s since %v, by the facts %s since %v", i, have[i].User, have[i].At, want[i].User, want[i].At)
		}
	}
	if len(have) != len(want) {
		return fmt.Errorf("%d entries, by the facts %d", len(have), len(want))
	}
	return nil
}

// factLists are the lists that the facts imply.
func (s *system) factLists(ctx context.Context) (map[targetList][]paging.Entry, error) {
	lists := map[targetList][]paging.Entry{}
	if err := s.eachFact(ctx, func(f relations.Fact) {
		if f.State == f.Relation.Kind.Active() {
			l := targetList{f.Relation.Kind, f.Relation.Target}
			lists[l] = append(lists[l], paging.Entry{User: f.Relation.User, At: f.StateChangedAt})
		}
	}); err != nil {
		return nil, err
	}
	for _, l := range lists {
		slices.SortFunc(l, func(a, b paging.Entry) int {
			return cmp.Or(b.At.Compare(a.At), cmp.Compare(a.User, b.User))
		})
	}
	return lists, nil
}

// openRelations opens the shards by the map that is in force.
func (s *system) openRelations(ctx context.Context) (*relations.Store, error) {
	db, err := control.Open(ctx, s.cfg.Control)
	if err != nil {
		return nil, err
	}
	defer db.Close()
	shards, err := db.ShardMap(ctx)
	if err != nil {
		return nil, err
	}
	return relations.Open(ctx, relations.Config{URLs: s.cfg.Postgres, Map: shards})
}

// eachFact visits every relation in its shard.
func (s *system) eachFact(ctx context.Context, visit func(relations.Fact)) error {
	store, err := s.openRelations(ctx)
	if err != nil {
		return err
	}
	defer store.Close()
	for shard := range s.cfg.Postgres {
		if err := store.Facts(ctx, shard, func(f relations.Fact) error { visit(f); return nil }); err != nil {
			return err
		}
	}
	return nil
}

// longest are comparedLists lists of each kind.
func longest(lists map[targetList][]paging.Entry) (all []targetList) {
	byKind := map[topology.Kind][]targetList{}
	for l := range lists {
		byKind[l.kind] = append(byKind[l.kind], l)
	}
	for _, of := range byKind {
		slices.SortFunc(of, func(a, b targetList) int {
			return cmp.Or(len(lists[b])-len(lists[a]), cmp.Compare(a.target, b.target))
		})
		all = append(all, of[:min(comparedLists, len(of))]...)
	}
	return all
}
