package privacy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark/tidemark/internal/breaker"
	"github.com/tidemark/tidemark/topology"
)

// ErrUndecided says that the control database does not answer, that nothing is
// remembered of what was asked, and that the policy is to refuse then.
var ErrUndecided = errors.New("what holds for the target cannot be asked")

// SnapshotConfig of what a process remembers.
type SnapshotConfig struct {
	Store *Store
	Policy
	// Subjects bounds the accounts, videos and pairs of users that are remembered,
	// about 200 bytes each; default 100,000.
	Subjects   int
	Logger     *slog.Logger
	Registerer prometheus.Registerer // optional
}

// Snapshot answers, for every command and count, what events said last of their
// targets, from memory where that is current (memory.go), so that nothing is
// asked of the control database for a target that was asked for before.
type Snapshot struct {
	store   *Store
	policy  Policy
	memory  *memory
	log     *slog.Logger
	breaker breaker.Breaker // of questions to the database

	mu  sync.Mutex
	why error // why changes are not heard of

	verdicts map[Verdict]prometheus.Counter
	lookups  *prometheus.CounterVec
}

// lookupLimit is how long an answer of the database is waited for.
const lookupLimit = time.Second

// NewSnapshot makes one; its Run is the caller's to run.
func NewSnapshot(cfg SnapshotConfig) (*Snapshot, error) {
	if cfg.Subjects == 0 {
		cfg.Subjects = 100_000
	}
	s := &Snapshot{
		store: cfg.Store, policy: cfg.Policy, memory: newMemory(cfg.Subjects), log: cfg.Logger.With("component", "visibility"),
		verdicts: map[Verdict]prometheus.Counter{},
	}
	checks := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "tidemark_visibility_checks_total", Help: "Commands that would begin a relation, by the verdict: allowed, no_target or no_account."}, []string{"verdict"})
	for v, name := range map[Verdict]string{Allowed: "allowed", NoTarget: "no_target", NoAccount: "no_account"} {
		s.verdicts[v] = checks.WithLabelValues(name)
	}
	s.lookups = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "tidemark_visibility_lookups_total", Help: "Accounts, videos and pairs of users that were asked for, by where the answer came from: memory, database, last (the database did not answer, and this was known last) or none."}, []string{"source"})
	for _, source := range []string{fromMemory, fromDatabase, fromLast, fromNowhere} {
		s.lookups.WithLabelValues(source)
	}
	heard := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "tidemark_visibility_listening", Help: "1 while changes are heard of, so that memory is used."}, func() float64 {
		if s.Detail() == "" {
			return 1
		}
		return 0
	})
	if cfg.Registerer != nil {
		for _, c := range []prometheus.Collector{checks, s.lookups, heard} {
			if err := cfg.Registerer.Register(c); err != nil {
				return nil, fmt.Errorf("visibility: registering metrics: %w", err)
			}
		}
	}
	return s, nil
}

// Sources of an answer; also the values of the metric label.
const (
	fromMemory   = "memory"
	fromDatabase = "database"
	fromLast     = "last"
	fromNowhere  = "none"
)

// MayBegin gives the verdict on a command that would begin the relation (I7). It
// is not part of the command's transaction: what is deleted between the two is
// withdrawn from every public number and list all the same (J3). Its error is
// ErrUndecided, or that friends cannot be asked.
func (s *Snapshot) MayBegin(ctx context.Context, r topology.Relation) (Verdict, error) {
	at := standing{kind: r.Kind, user: r.User}
	target := videoKey(r.Target)
	if r.Kind == topology.Follow {
		target = accountKey(r.Target)
	}
	found, err := s.lookUp(ctx, []subjectKey{accountKey(r.User), target}, true)
	if err != nil {
		return NoTarget, err
	}
	at.own, at.target = found[0], found[1]
	other := at.target.author
	if r.Kind == topology.Follow {
		other = r.Target
	}
	if other != "" && other != r.User && !s.policy.AllowBlocked {
		pair, err := s.lookUp(ctx, []subjectKey{pairKey(r.User, other)}, s.isStrong(at.target))
		if err != nil {
			return NoTarget, err
		}
		at.apart = pair[0].blocked
	}
	if at.target.video == FriendsOnly && other != r.User {
		friends, err := s.store.befriended(ctx, r.User, []string{other})
		if err != nil {
			return NoTarget, err
		}
		at.befriended = friends[0]
	}
	v := s.policy.judge(at)
	s.verdicts[v].Inc()
	return v, nil
}

// Withdrawn tells, by place, why the public counts of targets are not shown to a
// viewer; nil when all are.
func (s *Snapshot) Withdrawn(ctx context.Context, viewer string, kind topology.Kind, targets []string) ([]Withdrawal, error) {
	keyOf := videoKey
	if kind == topology.Follow {
		keyOf = accountKey
	}
	if s.memory.noneOf(keyOf("").sort) {
		return nil, nil
	}
	keys := make([]subjectKey, len(targets))
	for i, id := range targets {
		keys[i] = keyOf(id)
	}
	found, err := s.lookUp(ctx, keys, false)
	if err != nil {
		return nil, err
	}
	friends, err := s.friendsAmong(ctx, viewer, found)
	if err != nil {
		return nil, err
	}
	out := make([]Withdrawal, len(found))
	for i, target := range found {
		out[i] = withdrawn(target, viewer, func(author string) bool { return friends[author] })
	}
	return out, nil
}

// friendsAmong tells which authors of videos for friends are friends of user.
func (s *Snapshot) friendsAmong(ctx context.Context, user string, found []subject) (map[string]bool, error) {
	var authors []string
	for _, v := range found {
		if v.video == FriendsOnly && v.author != user && !slices.Contains(authors, v.author) {
			authors = append(authors, v.author)
		}
	}
	if len(authors) == 0 {
		return nil, nil
	}
	are, err := s.store.befriended(ctx, user, authors)
	if err != nil {
		return nil, err
	}
	friends := map[string]bool{}
	for i, author := range authors {
		friends[author] = are[i]
	}
	return friends, nil
}

func (s *Snapshot) isStrong(v subject) bool { return slices.Contains(s.policy.Strong, v.status()) }

// lookUp gives what holds for keys, in their order. strongly: what is remembered
// with a status that is marked as of high risk is asked of the database again.
func (s *Snapshot) lookUp(ctx context.Context, keys []subjectKey, strongly bool) ([]subject, error) {
	found := make([]subject, len(keys))
	var missing []subjectKey
	var places []int
	for i, k := range keys {
		known, ok := s.memory.current(k)
		if !ok || strongly && (k.sort == ofPair || s.isStrong(known)) {
			missing, places = append(missing, k), append(places, i)
			continue
		}
		found[i] = known
	}
	s.lookups.WithLabelValues(fromMemory).Add(float64(len(keys) - len(missing)))
	if len(missing) == 0 {
		return found, nil
	}
	read, err := s.ask(ctx, missing)
	if err != nil {
		return found, s.fallBack(ctx, err, missing, func(i int, v subject) { found[places[i]] = v })
	}
	s.lookups.WithLabelValues(fromDatabase).Add(float64(len(missing)))
	for i, v := range read {
		found[places[i]] = v
	}
	return found, nil
}

// ask reads keys of the database and remembers them.
func (s *Snapshot) ask(ctx context.Context, keys []subjectKey) ([]subject, error) {
	if !s.breaker.Enter() {
		return nil, errors.New("the control database did not answer a moment ago")
	}
	r := s.memory.begin(keys)
	limited, cancel := context.WithTimeout(ctx, lookupLimit)
	defer cancel()
	found, err := s.store.subjects(limited, keys)
	s.memory.end(r, found)
	if ctx.Err() == nil { // a client that has gone says nothing of the database
		s.breaker.Leave(err)
		if err != nil {
			s.log.Warn("the control database does not tell what holds for targets", "error", err)
		}
	}
	return found, err
}

// fallBack gives what was known last, while the database is away. Where nothing
// was, the policy decides: undecided, which lets a command through, or an error.
func (s *Snapshot) fallBack(ctx context.Context, why error, keys []subjectKey, give func(int, subject)) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%w: %w", ErrUndecided, ctx.Err())
	}
	for i, k := range keys {
		v, ok := s.memory.last(k)
		if !ok {
			s.lookups.WithLabelValues(fromNowhere).Inc()
			if s.policy.RefuseUndecided {
				return fmt.Errorf("%w: %w", ErrUndecided, why)
			}
			give(i, subject{undecided: true})
			continue
		}
		s.lookups.WithLabelValues(fromLast).Inc()
		give(i, v)
	}
	return nil
}
