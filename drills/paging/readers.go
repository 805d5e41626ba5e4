package paging

import (
	"context"
	"errors"
	"hash/fnv"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/tidemark/tidemark/drills/oracle"
	"github.com/tidemark/tidemark/internal/pause"
)

// Classes of findings; the package comment explains each.
const (
	Missing  oracle.Class = "list-missing"
	Twice    oracle.Class = "list-twice"
	Disorder oracle.Class = "list-disorder"
	Short    oracle.Class = "list-short"
	Refused  oracle.Class = "list-refused"
)

// List is what is read.
type List struct {
	Path   string   // such as /v1/videos/V1/likers
	Stable []string // users who stay in it, in any order
}

// Config of readers.
type Config struct {
	Client  Client
	Lists   []List
	Sizes   []int // of pages; each reading has one of them
	Readers int   // that read at the same time
	Seed    uint64
	// Again is how long after a refusal a page is asked again; default 100 ms.
	Again    time.Duration
	Findings *oracle.Findings
}

// Figures of readers.
type Figures struct {
	Readings int64         `json:"readings"` // lists read to their ends
	Pages    int64         `json:"pages"`
	Entries  int64         `json:"entries"`
	Standby  int64         `json:"standby"` // pages that standbys had a part in
	Refused  int64         `json:"refused"` // pages answered with 503 and Retry-After
	Slowest  time.Duration `json:"slowestNs"`
}

// Readers read lists until they are stopped.
type Readers struct {
	cfg       Config
	stop      context.CancelFunc
	tasks     sync.WaitGroup
	finishing chan struct{} // closed when no reading begins any more
	finish    func()

	mu      sync.Mutex
	figures Figures
	since   []map[string]time.Time // of Config.Lists: when a user who stays entered
}

// New makes readers that read nothing yet.
func New(cfg Config) *Readers {
	if cfg.Again == 0 {
		cfg.Again = 100 * time.Millisecond
	}
	r := &Readers{cfg: cfg, stop: func() {}, finishing: make(chan struct{}), since: make([]map[string]time.Time, len(cfg.Lists))}
	r.finish = sync.OnceFunc(func() { close(r.finishing) })
	for i, l := range cfg.Lists {
		r.since[i] = make(map[string]time.Time, len(l.Stable))
		for _, user := range l.Stable {
			r.since[i][user] = time.Time{}
		}
	}
	return r
}

// Start begins to read.
func Start(cfg Config) *Readers {
	r := New(cfg)
	var ctx context.Context
	ctx, r.stop = context.WithCancel(context.Background())
	for n := range cfg.Readers {
		r.tasks.Go(func() {
			h := fnv.New64a()
			_, _ = h.Write([]byte("reader " + strconv.Itoa(n)))
			rnd := rand.New(rand.NewPCG(cfg.Seed, h.Sum64()))
			for ctx.Err() == nil && !r.isFinishing() {
				r.Read(ctx, rnd.IntN(len(cfg.Lists)), cfg.Sizes[rnd.IntN(len(cfg.Sizes))])
			}
		})
	}
	return r
}

// Finish begins no reading any more, and waits until those that were begun are
// at their ends, or ctx ends.
func (r *Readers) Finish(ctx context.Context) {
	r.finish()
	defer context.AfterFunc(ctx, r.stop)()
	r.tasks.Wait()
}

// Stop ends the readings, unfinished ones too; a second call does nothing.
func (r *Readers) Stop() {
	r.stop()
	r.tasks.Wait()
}

func (r *Readers) isFinishing() bool {
	select {
	case <-r.finishing:
		return true
	default:
		return false
	}
}

// Figures so far.
func (r *Readers) Figures() Figures {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.figures
}

// Read goes through list n once, in pages of a size.
func (r *Readers) Read(ctx context.Context, n, size int) {
	w := walk{readers: r, n: n, list: r.cfg.Lists[n].Path, size: size, told: map[string]time.Time{}}
	for after := ""; ; {
		p, ok := r.ask(ctx, w.list, size, after)
		if !ok {
			return
		}
		w.take(p)
		if p.Next == "" {
			break
		}
		after = p.Next
	}
	w.end()
}

// ask asks for a page until it is answered; ok is false when the reading has
// to be given up.
func (r *Readers) ask(ctx context.Context, list string, size int, after string) (p Page, ok bool) {
	for start := time.Now(); ; {
		p, err := r.cfg.Client.page(ctx, list, size, after)
		switch {
		case ctx.Err() != nil:
			return p, false
		case errors.Is(err, errRefused):
			r.count(func(f *Figures) { f.Refused++ })
			if !pause.For(ctx, r.cfg.Again) {
				return p, false
			}
		case err != nil:
			r.cfg.Findings.Add(Refused, "%s, pages of %d: %v", list, size, err)
			pause.For(ctx, r.cfg.Again)
			return p, false
		default:
			took := time.Since(start)
			r.count(func(f *Figures) {
				f.Pages++
				f.Entries += int64(len(p.Entries))
				if p.Standby {
					f.Standby++
				}
				f.Slowest = max(f.Slowest, took)
			})
			return p, true
		}
	}
}

func (r *Readers) count(change func(*Figures)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.figures)
}

// entered says since when a user stays in a list, as the first page said that
// told him; stays is false for one who comes and goes.
func (r *Readers) entered(list int, e Entry) (since time.Time, stays bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	since, stays = r.since[list][e.User]
	if stays && since.IsZero() {
		since = e.At
		r.since[list][e.User] = since
	}
	return since, stays
}
