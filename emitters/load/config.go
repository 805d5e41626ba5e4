package load

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"time"
)

// Config says what to send and to whom.
type Config struct {
	// BaseURL of the API, such as http://127.0.0.1:8080.
	BaseURL string
	// Token gives a bearer token for a user. It is called again when the API
	// answers 401. Called concurrently.
	Token func(user string) (string, error)
	// HTTP sends the requests; nil: a client with enough connections.
	HTTP *http.Client

	// Rate of commands per second; 0: flat out, as fast as Workers allow, and
	// latency then counts from when a command was first sent.
	Rate float64
	// Commands to send; 0: until the context ends (a replay: until the file
	// ends).
	Commands int64
	// ReadRate of batch queries per second beside the commands; 0: none.
	ReadRate float64
	// WarmUp is the time from the start whose commands and reads are sent but
	// not measured.
	WarmUp time.Duration

	// Workers bounds the requests in flight, reads apart. Default 64.
	Workers int
	// Pending bounds the commands that are due and undecided, those that wait
	// for another command of their relation included. Default 16 times Workers.
	Pending int
	// Relations bounds the remembered relations. Default 1,000,000 (about
	// 200 MB). A forgotten one costs a refused command to learn again.
	Relations int
	// Timeout of one request. Default 10 s.
	Timeout time.Duration
	// Attempts at one command before it is given up, 429 and 503 included.
	// Default 10.
	Attempts int
	// FreshRetries makes each attempt a new operation, as a client must not: for
	// drills that have to notice.
	FreshRetries bool
	// MaxBackoff is the longest wait between attempts, and the longest
	// Retry-After that is honoured in full. Default 5 s.
	MaxBackoff time.Duration

	// Seed makes the same commands again. RunID makes their operation ids; ""
	// is a new one for each run, since an operation id is never used twice.
	Seed  uint64
	RunID string

	Users   int // default 1,000,000
	Targets int // default 10,000,000
	Mix     Mix
	// TargetSkew of writes, ReadSkew of reads, UserSkew of both.
	TargetSkew, ReadSkew, UserSkew Skew

	// Replay sends a recorded log instead of a generated mix.
	Replay *Replay

	// Progress is called every ProgressEvery (default 1 s) and at the end.
	Progress      func(Progress)
	ProgressEvery time.Duration
	Logger        *slog.Logger // default: silent

	// Said in the report: what was prepared, and the commit of the code.
	Preparation, Commit string
}

// Mix is the composition of generated commands. Shares are of all commands.
type Mix struct {
	On float64 `json:"on"` // of plain commands: on; the rest is off, of a relation that was put on before
	// Resend repeats one of the last 1,024 commands, same operation id.
	Resend float64 `json:"resend"`
	// StaleBase sends the version before the known one.
	StaleBase float64 `json:"staleBase"`
	// Switch changes LIKED to DISLIKED or back, or puts another kind on for
	// the same user and target.
	Switch float64 `json:"switch"`
	// Like, Favorite and Follow are the kinds of new relations, as weights.
	Like     float64 `json:"like"`
	Favorite float64 `json:"favorite"`
	Follow   float64 `json:"follow"`
	// Hot is the share of new relations that go to one target.
	Hot float64 `json:"hot"`
}

// Likes1 is the mix of workload LIKES-1.
func Likes1() Mix {
	return Mix{On: 0.75, Resend: 0.10, StaleBase: 0.02, Switch: 0.10, Like: 0.80, Favorite: 0.12, Follow: 0.08}
}

// Default is LIKES-1 at 1,000 commands per second; the caller adds BaseURL and
// Token.
func Default() Config {
	return Config{
		Rate: 1000, Workers: 64, Relations: 1_000_000, Timeout: 10 * time.Second, Attempts: 10, MaxBackoff: 5 * time.Second,
		Seed: 1, Users: 1_000_000, Targets: 10_000_000, Mix: Likes1(),
		TargetSkew: Skew{Shape: LinkBenchWrites}, ReadSkew: Skew{Shape: LinkBenchReads}, UserSkew: Skew{Shape: Uniform},
		ProgressEvery: time.Second,
	}
}

// withDefaults fills what may be left zero.
func (c Config) withDefaults() Config {
	d := Default()
	orInt := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	orInt(&c.Workers, d.Workers)
	orInt(&c.Pending, 16*c.Workers)
	orInt(&c.Relations, d.Relations)
	orInt(&c.Attempts, d.Attempts)
	orInt(&c.Users, d.Users)
	orInt(&c.Targets, d.Targets)
	if c.Timeout == 0 {
		c.Timeout = d.Timeout
	}
	if c.MaxBackoff == 0 {
		c.MaxBackoff = d.MaxBackoff
	}
	if c.ProgressEvery == 0 {
		c.ProgressEvery = d.ProgressEvery
	}
	if c.Mix == (Mix{}) {
		c.Mix = d.Mix
	}
	for skew, shape := range map[*Skew]string{&c.TargetSkew: LinkBenchWrites, &c.ReadSkew: LinkBenchReads, &c.UserSkew: Uniform} {
		if skew.Shape == "" {
			skew.Shape = shape
		}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// check names every field at fault.
func (c Config) check() error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf("load: "+format, args...)) }
	if u, err := url.Parse(c.BaseURL); err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		wrong("base URL %q is not http://host:port", c.BaseURL)
	}
	if c.Token == nil {
		wrong("no token source is given")
	}
	between := func(field string, v, lo, hi float64) {
		if !(v >= lo && v <= hi) {
			wrong("%s is %v, not in %v..%v", field, v, lo, hi)
		}
	}
	between("rate", c.Rate, 0, 1e7)
	between("read rate", c.ReadRate, 0, 1e7)
	between("commands", float64(c.Commands), 0, 1e15)
	between("workers", float64(c.Workers), 1, 65536)
	between("pending", float64(c.Pending), float64(c.Workers), 1e7)
	between("relations", float64(c.Relations), float64(c.Pending), 1e9)
	between("attempts", float64(c.Attempts), 1, 1e6)
	between("users", float64(c.Users), 2, 1e9)
	between("targets", float64(c.Targets), 1, 1e9)
	between("timeout seconds", c.Timeout.Seconds(), 0.001, 3600)
	between("longest backoff seconds", c.MaxBackoff.Seconds(), 0.001, 3600)
	between("warm-up seconds", c.WarmUp.Seconds(), 0, 86400)
	if len(c.RunID) > 64 {
		wrong("run id is longer than 64 bytes")
	}
	errs = append(errs, c.Mix.check(), c.TargetSkew.check("target skew"), c.ReadSkew.check("read skew"), c.UserSkew.check("user skew"))
	if c.Replay != nil {
		errs = append(errs, c.Replay.check())
	}
	return errors.Join(errs...)
}

func (m Mix) check() error {
	var errs []error
	for _, f := range []struct {
		name  string
		share float64
	}{{"on", m.On}, {"resend", m.Resend}, {"stale base", m.StaleBase}, {"switch", m.Switch}, {"hot", m.Hot}, {"resend + stale base + switch", m.Resend + m.StaleBase + m.Switch}} {
		if !(f.share >= 0 && f.share <= 1) {
			errs = append(errs, fmt.Errorf("load: mix: %s is %v, not a share in 0..1", f.name, f.share))
		}
	}
	if !(m.Like >= 0 && m.Favorite >= 0 && m.Follow >= 0 && m.Like+m.Favorite+m.Follow > 0) {
		errs = append(errs, fmt.Errorf("load: mix: weights of like, favorite and follow are %v, %v, %v: none may be negative, one must be positive", m.Like, m.Favorite, m.Follow))
	}
	return errors.Join(errs...)
}
