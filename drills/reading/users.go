package reading

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/tidemark/tidemark/drills/oracle"
	"github.com/tidemark/tidemark/internal/pause"
	"github.com/tidemark/tidemark/topology"
)

// Classes of findings; the package comment explains each.
const (
	Wrong   oracle.Class = "state-wrong"
	Below   oracle.Class = "state-below"
	Refused oracle.Class = "state-refused"
)

// Config of users.
type Config struct {
	BaseURL string
	Token   func(user string) (string, error)
	Users   int // that ask at the same time
	Targets int // that each of them has relations to
	// Every is the time between two requests of a user; default 10 ms.
	Every    time.Duration
	Seed     uint64
	Findings *oracle.Findings
}

// Figures of users.
type Figures struct {
	Reads   int64         `json:"reads"`  // questions that were answered
	Items   int64         `json:"items"`  // relations told
	Named   int64         `json:"named"`  // relations of which a version was named
	Late    int64         `json:"late"`   // relations that were told below their newest version, which was not named
	Writes  int64         `json:"writes"` // changes that were decided
	Refused int64         `json:"refused"`
	Cut     int64         `json:"cut"`
	Slowest time.Duration `json:"slowestNs"` // answer to a question
}

// Users ask and change until they are stopped.
type Users struct {
	cfg   Config
	stop  context.CancelFunc
	tasks sync.WaitGroup

	mu      sync.Mutex
	figures Figures
}

// Start begins.
func Start(cfg Config) (*Users, error) {
	if cfg.Every == 0 {
		cfg.Every = 10 * time.Millisecond
	}
	us := &Users{cfg: cfg}
	ctx, stop := context.WithCancel(context.Background())
	us.stop = stop
	for n := range cfg.Users {
		u, err := us.newUser(n)
		if err != nil {
			stop()
			return us, err
		}
		us.tasks.Go(func() {
			for ctx.Err() == nil {
				u.step(ctx)
				pause.For(ctx, cfg.Every)
			}
		})
	}
	return us, nil
}

// Stop ends them; a second call does nothing.
func (us *Users) Stop() {
	us.stop()
	us.tasks.Wait()
}

// Figures so far.
func (us *Users) Figures() Figures {
	us.mu.Lock()
	defer us.mu.Unlock()
	return us.figures
}

func (us *Users) count(change func(*Figures)) {
	us.mu.Lock()
	defer us.mu.Unlock()
	change(&us.figures)
}

// user is one of them; only its own goroutine uses it.
type user struct {
	*Users
	client   Client
	name     string
	rnd      *rand.Rand
	had      []history // by target
	sequence int
}

// history is what a relation was.
type history struct {
	target string
	states map[uint64]topology.State // by version
	newest uint64
}

func (us *Users) newUser(n int) (*user, error) {
	u := &user{Users: us, name: "asker" + strconv.Itoa(n)}
	token, err := us.cfg.Token(u.name)
	if err != nil {
		return nil, err
	}
	u.client = Client{BaseURL: us.cfg.BaseURL, Token: token}
	h := fnv.New64a()
	_, _ = h.Write([]byte(u.name))
	u.rnd = rand.New(rand.NewPCG(us.cfg.Seed, h.Sum64()))
	for i := range us.cfg.Targets {
		u.had = append(u.had, history{target: "asked" + strconv.Itoa(i), states: map[uint64]topology.State{0: topology.Like.Initial()}})
	}
	return u, nil
}

// changes is how often a user changes something instead of asking.
const changes = 0.25

func (u *user) step(ctx context.Context) {
	at := &u.had[u.rnd.IntN(len(u.had))]
	if u.rnd.Float64() < changes {
		u.change(ctx, at)
		return
	}
	// The one that was changed last is asked for most often, since that is where
	// old answers are found.
	asked := []*history{at}
	for range u.rnd.IntN(len(u.had)) {
		if more := &u.had[u.rnd.IntN(len(u.had))]; !contains(asked, more) {
			asked = append(asked, more)
		}
	}
	u.ask(ctx, asked, u.rnd.IntN(2) == 0)
}

func contains(all []*history, one *history) bool {
	for _, h := range all {
		if h == one {
			return true
		}
	}
	return false
}

// change sends a command until it is decided, then asks for what it has
// brought about.
func (u *user) change(ctx context.Context, at *history) {
	next := [...]topology.State{topology.Liked, topology.Disliked, topology.Unliked}
	u.sequence++
	cmd := command{
		key: uuid.NewString(), target: at.target, base: at.newest, sequence: u.sequence, device: "asking-" + u.name,
		desired: next[u.rnd.IntN(len(next))],
	}
	if cmd.desired == at.states[at.newest] {
		cmd.desired = next[(int(cmd.desired)-int(topology.Unliked))%len(next)]
	}
	for ctx.Err() == nil {
		told, err := u.client.like(ctx, cmd)
		switch {
		case ctx.Err() != nil:
		case err == nil:
			u.decided(at, cmd, told)
			u.ask(ctx, []*history{at}, u.rnd.IntN(2) == 0)
			return
		default:
			u.failed(err, "changing "+at.target)
			pause.For(ctx, setAgain)
		}
	}
}

func (u *user) decided(at *history, cmd command, told Told) {
	u.count(func(f *Figures) { f.Writes++ })
	if had, ok := at.states[told.Version]; told.State != cmd.desired || ok && had != told.State || told.Version < at.newest {
		u.cfg.Findings.Add(Wrong, "%s put %s to %v over version %d: answered %v at version %d", u.name, at.target, cmd.desired, at.newest, told.State, told.Version)
	}
	at.states[told.Version] = told.State
	at.newest = max(at.newest, told.Version)
}

func (u *user) ask(ctx context.Context, asked []*history, name bool) {
	targets, least := make([]string, len(asked)), map[string]uint64{}
	for i, h := range asked {
		targets[i] = h.target
		if name && h.newest > 0 {
			least[h.target] = h.newest
		}
	}
	start := time.Now()
	told, err := u.client.Query(ctx, topology.Like, targets, least)
	switch {
	case ctx.Err() != nil:
		return
	case err != nil:
		u.failed(err, fmt.Sprintf("asking for %d relations", len(targets)))
		return
	}
	took, late := time.Since(start), int64(0)
	for i, h := range asked {
		class, what := h.judge(told[i], least[h.target])
		if class != "" {
			u.cfg.Findings.Add(class, "%s was told of %s, whose newest version is %d (named: %v): %s", u.name, h.target, h.newest, least[h.target] > 0, what)
		} else if told[i].Version < h.newest {
			late++
		}
	}
	u.count(func(f *Figures) {
		f.Reads++
		f.Items += int64(len(asked))
		f.Named += int64(len(least))
		f.Late += late
		f.Slowest = max(f.Slowest, took)
	})
}

// judge says what is wrong with what was told; "" if nothing is.
func (h *history) judge(told Told, least uint64) (class oracle.Class, what string) {
	had, ever := h.states[told.Version]
	switch {
	case !ever:
		return Wrong, fmt.Sprintf("%v at version %d, which never was", told.State, told.Version)
	case had != told.State:
		return Wrong, fmt.Sprintf("%v at version %d, which was %v", told.State, told.Version, had)
	case told.Version < least || told.Below:
		return Below, fmt.Sprintf("%v at version %d (marked as below: %v)", told.State, told.Version, told.Below)
	}
	return "", ""
}

func (u *user) failed(err error, doing string) {
	switch {
	case errors.Is(err, ErrRefused):
		u.count(func(f *Figures) { f.Refused++ })
	case errors.Is(err, ErrCut):
		u.count(func(f *Figures) { f.Cut++ })
	default:
		u.cfg.Findings.Add(Refused, "%s, %s: %v", u.name, doing, err)
	}
}
