package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/tidemark/tidemark/internal/signature"
)

// ConflictPolicy says what becomes of a command that the server refused because
// the relation was changed elsewhere, when the user has not clicked since.
type ConflictPolicy string

// The policies.
const (
	// AcceptServer leaves the relation as it is; the View has a *ConflictError.
	// For what can be taken back with another click.
	AcceptServer ConflictPolicy = "accept-server"
	// KeepIntent sends the wish again on top of the newer version.
	KeepIntent ConflictPolicy = "keep-intent"
)

// SigningKey is a secret of at least 32 bytes that the API knows by its ID.
type SigningKey = signature.Key

// Config says which API a client speaks to, as whom, and how. Zero values take
// the defaults that are named.
type Config struct {
	// URL of the API, such as https://likes.example.com. Required.
	URL string
	// User is the user whose relations these are; the journal belongs to it.
	// Required. The server goes by the token alone.
	User string
	// Token gives a bearer token of the user. It is asked before every attempt,
	// so it should remember one until it expires. Required.
	Token func(context.Context) (string, error)
	// SigningKey gives the key that requests are signed with, for deployments that
	// need signatures. It is asked before every attempt, so that a new key takes
	// effect at once. The clock of this machine is signed, too. Optional.
	SigningKey func(context.Context) (SigningKey, error)
	// Journal is the file that unsettled commands survive a restart in; "": they
	// do not.
	Journal string
	// DeviceID goes with every command, for the server's risk rules. Optional.
	DeviceID string
	// Conflict: AcceptServer.
	Conflict ConflictPolicy
	// AttemptTimeout bounds one request: 10 s.
	AttemptTimeout time.Duration
	// RetryMin and RetryMax are the first and the longest pause between two
	// attempts: 200 ms, 30 s. A longer Retry-After of the server is obeyed.
	RetryMin, RetryMax time.Duration
	// Lifetime is how long a command may be sent again after it was made, under
	// the server's retention of operations (7 days): 6 days.
	Lifetime time.Duration
	// MaxInFlight is the most requests at a time: 4.
	MaxInFlight int
	// MaxPending is the most relations that may be unsettled: 10,000.
	MaxPending int
	// MaxSettled is how many settled relations are remembered: 10,000. Those
	// longest untouched are forgotten.
	MaxSettled int
	// Changed is told of a relation whose View changed, by any cause, from any
	// goroutine, without a lock held. It should return soon: the relation's
	// next command waits for it. What the journal had is sent at once, so it may
	// be called before Open returns. Optional.
	Changed func(View)
	HTTP    *http.Client // nil: one of its own
	Logger  *slog.Logger // nil discards. Ids of targets are not logged.

	ownHTTP   bool
	compactAt int64 // size under which a journal is left alone
}

func ownHTTP(conns int) *http.Client {
	return &http.Client{Transport: &http.Transport{
		Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true,
		MaxIdleConnsPerHost: conns, IdleConnTimeout: 90 * time.Second, TLSHandshakeTimeout: 10 * time.Second,
	}}
}

func (c Config) withDefaults() (Config, error) {
	var errs []error
	if u, err := url.Parse(c.URL); err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		errs = append(errs, errors.New("URL is not that of an API"))
	}
	c.URL = strings.TrimRight(c.URL, "/")
	if c.User == "" || c.Token == nil {
		errs = append(errs, errors.New("User and Token are required"))
	}
	if c.Conflict == "" {
		c.Conflict = AcceptServer
	}
	if c.Conflict != AcceptServer && c.Conflict != KeepIntent {
		errs = append(errs, fmt.Errorf("Conflict %q is not %s or %s", string(c.Conflict), AcceptServer, KeepIntent))
	}
	duration := func(field string, v *time.Duration, std time.Duration) {
		if *v == 0 {
			*v = std
		}
		if *v < 0 {
			errs = append(errs, fmt.Errorf("%s is %v, not above 0", field, *v))
		}
	}
	duration("AttemptTimeout", &c.AttemptTimeout, 10*time.Second)
	duration("RetryMin", &c.RetryMin, 200*time.Millisecond)
	duration("RetryMax", &c.RetryMax, 30*time.Second)
	duration("Lifetime", &c.Lifetime, 6*24*time.Hour)
	number := func(field string, v *int, std int) {
		if *v == 0 {
			*v = std
		}
		if *v < 0 {
			errs = append(errs, fmt.Errorf("%s is %d, not above 0", field, *v))
		}
	}
	number("MaxInFlight", &c.MaxInFlight, 4)
	number("MaxPending", &c.MaxPending, 10_000)
	number("MaxSettled", &c.MaxSettled, 10_000)
	if c.HTTP == nil {
		c.HTTP, c.ownHTTP = ownHTTP(c.MaxInFlight), true
	}
	if c.compactAt == 0 {
		c.compactAt = 1 << 20
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if err := errors.Join(errs...); err != nil {
		return c, fmt.Errorf("%w: client: %w", ErrInvalid, err)
	}
	return c, nil
}
