package drills

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tidemark/tidemark/drills/oracle"
	"github.com/tidemark/tidemark/drills/reading"
	"github.com/tidemark/tidemark/internal/config"
	"github.com/tidemark/tidemark/internal/verify"
	"github.com/tidemark/tidemark/relations"
	"github.com/tidemark/tidemark/topology"
)

// Classes of what is wrong with a cache.
const (
	CacheWrong  oracle.Class = "cache-wrong"   // an entry above its floor, a floor above its fact, a version with two states, a count above the display table
	CacheBehind oracle.Class = "cache-behind"  // an entry below its fact, or a count below the display table, although all is quiet
	CacheAlive  oracle.Class = "cache-alive"   // Redis holds entries of a generation that has ended
	StateStays  oracle.Class = "state-differs" // with all quiet the API tells a state that is not the fact
	CacheUnread oracle.Class = "cache-unread"  // the drill shows nothing: no answer came from the cache
)

// CacheVerifier compares what Redis holds with floors and facts, as `tidemark
// verify --redis` does.
type CacheVerifier func(ctx context.Context, cfg config.Config) (verify.CacheReport, verify.CountsReport, error)

// CacheChecked is what was seen of a cache.
type CacheChecked struct {
	Comparisons int             `json:"comparisons"` // of the whole cache, while the drill ran and at its end
	Entries     int64           `json:"entries"`     // relations at the end
	Counts      int64           `json:"counts"`      // displayed ones and buckets, at the end
	Generations uint64          `json:"generations"` // that there ever were
	States      int             `json:"states"`      // told by the API at the end, and compared with their facts
	Hits        int64           `json:"hits"`        // relations that queries found in Redis
	Asked       int64           `json:"asked"`       // relations that queries asked for
	Users       reading.Figures `json:"users"`
}

// cached waits until every process is ready and a generation is active, and
// compares what it holds. Traffic goes on.
func (s *system) cached(ctx context.Context) error {
	if err := await(ctx, s.patience, "every process being ready", func() error { return s.allReady(ctx) }); err != nil {
		return err
	}
	return s.compareCache(ctx)
}

// compareCache compares once a whole cache is in Redis.
func (s *system) compareCache(ctx context.Context) error {
	var found verify.CacheReport
	var counts verify.CountsReport
	if err := await(ctx, s.patience, "a cache being active and in Redis", func() (err error) {
		found, counts, err = s.verifyCache(ctx, s.cfg)
		return err
	}); err != nil {
		return err
	}
	s.addWrong(found, counts)
	return nil
}

// addWrong notes what can never be, whatever is under way.
func (s *system) addWrong(found verify.CacheReport, counts verify.CountsReport) {
	s.mu.Lock()
	s.cacheChecked.Comparisons++
	s.mu.Unlock()
	s.findings.AddMany(CacheWrong, found.Wrong, "relations, generation %d: %s", found.Generation, strings.Join(found.Examples, "; "))
	s.findings.AddMany(CacheWrong, counts.Wrong, "counts, generation %d: %s", counts.Generation, strings.Join(counts.Examples, "; "))
}

// judgeCache compares all, when no command is under way any more and the counts
// are quiet: what Redis holds of a relation, and what the API tells of it, must be
// the fact.
func (s *system) judgeCache(ctx context.Context) error {
	if s.redis == nil {
		return nil
	}
	var report verify.CacheReport
	var counts verify.CountsReport
	err := await(ctx, s.quietWithin, "the cache being up to date", func() (err error) {
		report, counts, err = s.verifyCache(ctx, s.cfg)
		if err == nil && report.Late+counts.Late > 0 && report.Wrong+counts.Wrong == 0 {
			err = fmt.Errorf("%d of %d relations are below their facts, %d of %d counts below the display table", report.Late, report.Entries, counts.Late, counts.Displays+counts.Buckets)
		}
		return err
	})
	var not stuckError
	switch {
	case err != nil && !errors.As(err, &not):
		return err
	case err != nil && report.Late+counts.Late > 0:
		s.findings.AddMany(CacheBehind, report.Late+counts.Late, "generations %d and %d: %v", report.Generation, counts.Generation, err)
	case err != nil:
		s.findings.Add(Stuck, "%v", err)
	}
	s.addWrong(report, counts)
	checked := &s.cacheChecked
	checked.Entries, checked.Counts = report.Entries, counts.Displays+counts.Buckets
	if newest, err := s.generation(ctx); err == nil && newest != nil {
		checked.Generations = newest.ID
	}
	if checked.States, err = s.compareStates(ctx); err != nil {
		return err
	}
	if checked.Hits, checked.Asked, err = s.cacheReads(ctx); err != nil {
		return err
	}
	if checked.Hits == 0 {
		s.findings.Add(CacheUnread, "none of %d relations was found in the cache", checked.Asked)
	}
	f := checked.Users
	s.tallies.note("%d cache generations; users asked %d times for %d relations (%d named, %d told late, %d refused, %d cut, the latest answer after %v) and changed %d; %d %% of all relations were found in Redis",
		checked.Generations, f.Reads, f.Items, f.Named, f.Late, f.Refused, f.Cut, f.Slowest.Round(time.Millisecond), f.Writes, 100*checked.Hits/max(1, checked.Asked))
	return nil
}

// comparedUsers are asked for at the end, with all of their relations.
const comparedUsers = 1500

// compareStates has the API tell users' relations, and compares them with the
// facts.
func (s *system) compareStates(ctx context.Context) (compared int, err error) {
	type question struct {
		user string
		kind topology.Kind
	}
	want := map[question][]relations.Fact{}
	if err := s.eachFact(ctx, func(f relations.Fact) {
		q := question{f.Relation.User, f.Relation.Kind}
		if len(want) < comparedUsers || want[q] != nil {
			want[q] = append(want[q], f)
		}
	}); err != nil {
		return 0, err
	}
	var left []batch
	for q, facts := range want {
		token, err := s.auth.Mint(q.user, "", time.Hour)
		if err != nil {
			return 0, err
		}
		client := reading.Client{BaseURL: "http://" + s.cfg.API.Listen, Token: token}
		for some := range slices.Chunk(facts, reading.MaxBatch) {
			left = append(left, batch{client, q.kind, some})
			compared += len(some)
		}
	}
	err = await(ctx, listPatience, "the API telling the facts", func() error {
		left = slices.DeleteFunc(left, func(b batch) bool { return b.tell(ctx) == nil })
		if len(left) > 0 {
			return fmt.Errorf("%d answers differ", len(left))
		}
		return nil
	})
	var not stuckError
	if errors.As(err, &not) {
		for _, b := range left {
			if err := b.tell(ctx); err != nil {
				s.findings.Add(StateStays, "%v", err)
			}
		}
		return compared, nil
	}
	return compared, err
}

// batch is a question, and what must be told.
type batch struct {
	client reading.Client
	kind   topology.Kind
	facts  []relations.Fact
}

// tell asks, and says what differs.
func (b batch) tell(ctx context.Context) error {
	targets := make([]string, len(b.facts))
	for i, f := range b.facts {
		targets[i] = f.Relation.Target
	}
	told, err := b.client.Query(ctx, b.kind, targets, nil)
	if err != nil {
		return err
	}
	for i, f := range b.facts {
		if told[i].State != f.State || told[i].Version != f.Version {
			return fmt.Errorf("%s is told as %v at version %d, by the fact it is %v at %d", f.Relation.Key(), told[i].State, told[i].Version, f.State, f.Version)
		}
	}
	return nil
}

// cacheReads are what queries asked for, and what of it Redis had, since the
// API's process was started.
func (s *system) cacheReads(ctx context.Context) (hits, asked int64, err error) {
	for _, r := range s.rolesOf("queries") {
		h, a, err := reading.CacheReads(ctx, "http://"+r.ops)
		if err != nil {
			return 0, 0, fmt.Errorf("reading the metrics of %s: %w", r.name, err)
		}
		hits, asked = hits+h, asked+a
	}
	return hits, asked, nil
}
