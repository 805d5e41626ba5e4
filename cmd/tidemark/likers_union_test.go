package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http/httptest"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tidemark/tidemark/api"
	"github.com/tidemark/tidemark/drills/oracle"
	"github.com/tidemark/tidemark/drills/paging"
	"github.com/tidemark/tidemark/internal/gokakit"
	"github.com/tidemark/tidemark/internal/pagetoken"
	"github.com/tidemark/tidemark/internal/pause"
	"github.com/tidemark/tidemark/internal/testenv"
	"github.com/tidemark/tidemark/privacy"
	"github.com/tidemark/tidemark/relations"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/views"
)

// open shows everything to everybody.
type open struct{}

func (open) UserList(context.Context, string, string, privacy.List) (bool, error) { return true, nil }
func (open) VideoList(context.Context, string, string, topology.Kind) (privacy.Access, error) {
	return privacy.Shown, nil
}
func (open) Users(_ context.Context, _ string, ids []string) ([]bool, error)  { return shown(ids), nil }
func (open) Videos(_ context.Context, _ string, ids []string) ([]bool, error) { return shown(ids), nil }

func shown(ids []string) []bool {
	all := make([]bool, len(ids))
	for i := range all {
		all[i] = true
	}
	return all
}

var errNotAsked = errors.New("only lists of targets are asked")

// others are sources of what is not asked.
type others struct{}

func (others) List(context.Context, relations.ListQuery) (relations.ListPage, error) {
	return relations.ListPage{}, errNotAsked
}
func (others) Count(topology.Kind, string) (views.Count, error) { return views.Count{}, errNotAsked }
func (others) Counts(topology.Kind, []string) ([]views.Count, error) {
	return nil, errNotAsked
}

// serveLists answers lists of the rig over HTTP.
func (r *likersRig) serveLists() paging.Client {
	r.t.Helper()
	key := []byte("0123456789abcdef0123456789abcdef")
	auth := api.AuthConfig{HS256Key: key}
	verifier, err := api.NewVerifier(auth)
	if err != nil {
		r.t.Fatal(err)
	}
	a, err := api.New(api.Config{Verifier: verifier})
	if err != nil {
		r.t.Fatal(err)
	}
	tokens, err := pagetoken.NewSigner(key)
	if err != nil {
		r.t.Fatal(err)
	}
	api.RegisterLists(a, api.ListSources{Users: others{}, Targets: r.view, Privacy: open{}, Counts: others{}, Tokens: tokens})
	server := httptest.NewServer(a)
	r.t.Cleanup(server.Close)
	token, err := auth.Mint("reader", "", time.Hour)
	if err != nil {
		r.t.Fatal(err)
	}
	return paging.Client{BaseURL: server.URL, Token: token}
}

// crowd is a target with users who stay and others who come and go.
type crowd struct {
	target string
	stable []string
	rnd    *rand.Rand
	rig    *likersRig
	others []uint64 // versions
}

const (
	crowdOthers = 150
	crowdSpan   = 400 // microseconds, so that many enter at one time
	crowdSince  = 1_700_000_000_000_000
)

func (r *likersRig) crowd(seed uint64) *crowd {
	r.t.Helper()
	c := &crowd{target: fmt.Sprintf("V%d", seed), rnd: rand.New(rand.NewPCG(seed, 3)), rig: r, others: make([]uint64, crowdOthers)}
	var records []*kgo.Record
	for i := range 80 + c.rnd.IntN(paging.MaxPage-80) {
		user := fmt.Sprintf("stable%d-%d", seed, i)
		c.stable = append(c.stable, user)
		records = append(records, r.changeTo(c.target, user, 1, topology.Liked, c.time()))
	}
	if err := r.kafka.ProduceSync(r.t.Context(), records...).FirstErr(); err != nil {
		r.t.Fatal(err)
	}
	return c
}

func (c *crowd) time() int64 { return crowdSince + c.rnd.Int64N(crowdSpan) }

// change is one of another relation: its user enters anywhere in the list, also
// where readers have been, or leaves it.
func (c *crowd) change() *kgo.Record {
	n := c.rnd.IntN(len(c.others))
	c.others[n]++
	s := topology.Liked
	if c.others[n]%2 == 0 {
		s = topology.Unliked
	}
	return c.rig.changeTo(c.target, fmt.Sprintf("other%d", n), c.others[n], s, c.time())
}

// churn sends so many changes a second until stop, which says how many.
func (c *crowd) churn(rate int) (stop func() (sent int64, perSecond float64)) {
	ctx, cancel := context.WithCancel(context.Background())
	var sent atomic.Int64
	var done sync.WaitGroup
	start := time.Now()
	done.Go(func() {
		for pause.For(ctx, 5*time.Millisecond) {
			for due := int64(time.Since(start).Seconds() * float64(rate)); sent.Load() < due; sent.Add(1) {
				c.rig.kafka.Produce(context.Background(), c.change(), nil) // what is under way at the end fails nobody else
			}
		}
	})
	end := sync.OnceFunc(func() { cancel(); done.Wait() })
	c.rig.t.Cleanup(end)
	return func() (int64, float64) {
		took := time.Since(start)
		end()
		return sent.Load(), float64(sent.Load()) / took.Seconds()
	}
}

// readings reads a crowd's list to its end, once for each size of page, while
// others come and go.
func (c *crowd) readings(client paging.Client, rate int) (*oracle.Findings, paging.Figures) {
	c.rig.t.Helper()
	list := "/v1/videos/" + c.target + "/likers"
	testenv.Eventually(c.rig.t, time.Minute, func() error { return client.Has(c.rig.t.Context(), list, len(c.stable)) })
	stop := c.churn(rate)
	findings := new(oracle.Findings)
	readers := paging.New(paging.Config{Client: client, Lists: []paging.List{{Path: list, Stable: c.stable}}, Findings: findings})
	var all sync.WaitGroup
	for _, size := range []int{1, 7, 100, 200} {
		all.Go(func() { readers.Read(c.rig.t.Context(), 0, size) })
	}
	all.Wait()
	sent, perSecond := stop()
	figures := readers.Figures()
	c.rig.t.Logf("%s: %d who stay, %d changes of others, %.0f/s, %d pages with %d entries, the slowest after %v",
		c.target, len(c.stable), sent, perSecond, figures.Pages, figures.Entries, figures.Slowest.Round(time.Millisecond))
	return findings, figures
}

// long is read before the tests forget the machine's settings.
var long = os.Getenv("TIDEMARK_TEST_LONG") != ""

const unionRate = 2000 // changes of others a second

// The union of all pages tells everybody who stays exactly once, newest first,
// whatever the size of pages, while 2,000 others a second enter the list
// anywhere and leave it.
func TestF3UnionOfPagesUnderChange(t *testing.T) {
	seeds := uint64(2)
	switch {
	case long:
		seeds = 50
	case testing.Short():
		seeds = 1
	}
	r := newLikersRig(t, 0)
	for i := range 3 {
		r.process(fmt.Sprint("p", i), t.TempDir())
	}
	client := r.serveLists()
	for seed := range seeds {
		findings, figures := r.crowd(seed).readings(client, unionRate)
		if findings.Total() > 0 {
			t.Errorf("seed %d: %v", seed, findings.Lines())
		}
		if figures.Readings != 4 {
			t.Errorf("seed %d: %d of 4 readings came to their ends", seed, figures.Readings)
		}
	}
}

// That test finds users who are left out when a page's place moves past what
// was only fetched.
func TestUnionOfPagesCanFail(t *testing.T) {
	r := newLikersRig(t, gokakit.WithoutPopping)
	r.process("p", t.TempDir())
	findings, _ := r.crowd(1).readings(r.serveLists(), unionRate)
	if findings.Counts()[paging.Missing] == 0 {
		t.Errorf("nobody is missing: %v", findings.Lines())
	}
}
