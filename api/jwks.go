package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lestrrat-go/jwx/v3/jwa"
	"github.com/lestrrat-go/jwx/v3/jwk"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/singleflight"
)

// Limits and times of a JWKS.
const (
	maxJWKSBytes = 1 << 20
	maxJWKSKeys  = 64
	// forcedEvery is the least time between fetches that tokens with an
	// unknown key ask for, so that made-up key ids cannot flood the key server.
	forcedEvery = 10 * time.Second
	// retryEvery is the time between tries while no set is there.
	retryEvery = time.Second
)

// keySet is a JWKS that is fetched again and again. When a fetch goes wrong,
// the last good set stays in use, for as long as it takes.
type keySet struct {
	cfg    AuthConfig
	client *http.Client
	keys   atomic.Pointer[fetchedKeys]
	group  singleflight.Group

	mu     sync.Mutex
	forced time.Time // last fetch that a token asked for
	failed error     // of the last fetch

	refreshes *prometheus.CounterVec
}

// fetchedKeys is one set; it never changes.
type fetchedKeys struct {
	epoch uint64 // from 1, up by one with each set that differs
	keys  []publicKey
	at    time.Time
}

type publicKey struct {
	kid        string
	algorithms []jwa.SignatureAlgorithm
	raw        any
}

func newKeySet(c AuthConfig) (*keySet, error) {
	if c.RefreshInterval <= 0 {
		c.RefreshInterval = 5 * time.Minute
	}
	s := &keySet{cfg: c, client: newJWKSClient(c.Dial), refreshes: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "tidemark_api_token_key_refreshes_total",
		Help: "Fetches of the JWKS, by result: ok, error.",
	}, []string{"result"})}
	age := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "tidemark_api_token_keys_age_seconds",
		Help: "Time since the JWKS in use was fetched; -1 before the first.",
	}, s.age)
	return s, errors.Join(register(c.Registerer, s.refreshes), register(c.Registerer, age))
}

// newJWKSClient never goes on from https to http: whoever could answer there
// could name his own keys.
func newJWKSClient(dial func(ctx context.Context, network, address string) (net.Conn, error)) *http.Client {
	c := &http.Client{Timeout: 5 * time.Second, CheckRedirect: func(to *http.Request, via []*http.Request) error {
		switch {
		case to.URL.Scheme != via[0].URL.Scheme:
			return fmt.Errorf("the key server redirects from %s to %s", via[0].URL.Scheme, to.URL.Scheme)
		case len(via) >= 5:
			return errors.New("the key server redirects more than 4 times")
		}
		return nil
	}}
	if dial != nil {
		c.Transport = &http.Transport{DialTLSContext: dial, MaxIdleConns: 2, IdleConnTimeout: 30 * time.Second}
	}
	return c
}

func (s *keySet) age() float64 {
	if k := s.keys.Load(); k != nil {
		return s.cfg.now().Sub(k.at).Seconds()
	}
	return -1
}

func (s *keySet) epoch() uint64 {
	if k := s.keys.Load(); k != nil {
		return k.epoch
	}
	return 0
}

func (s *keySet) failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}

// run fetches at once, then every RefreshInterval, or every second while there
// is no set yet.
func (s *keySet) run(ctx context.Context) error {
	for {
		s.refresh(ctx)
		wait := s.cfg.RefreshInterval
		if s.keys.Load() == nil {
			wait = min(wait, retryEvery)
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
	}
}

// candidates looks the key up; when it is not there, the set may have been
// rotated, so it is fetched once more.
func (s *keySet) candidates(ctx context.Context, kid, alg string) ([]verifyKey, error) {
	if !asymmetric[alg] {
		return nil, errToken("the token's algorithm is not one of public keys")
	}
	found, err := s.lookup(kid, alg)
	if err == nil {
		return found, nil
	}
	// Whoever comes while a fetch is under way waits for it.
	fetched := s.group.DoChan("", func() (any, error) {
		if s.force() {
			s.refresh(context.WithoutCancel(ctx))
		}
		return nil, nil
	})
	select {
	case <-fetched:
		return s.lookup(kid, alg)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (s *keySet) lookup(kid, alg string) ([]verifyKey, error) {
	set := s.keys.Load()
	if set == nil {
		return nil, errNoKeys
	}
	var found []verifyKey
	for _, k := range set.keys {
		if kid != "" && kid != k.kid {
			continue
		}
		for _, a := range k.algorithms {
			if a.String() == alg {
				found = append(found, verifyKey{a, k.raw})
			}
		}
	}
	switch {
	case len(found) == 0:
		return nil, errToken("the token's key or algorithm is not one of the issuer's")
	case kid == "" && len(found) > 1:
		return nil, errToken("the token does not name its key (kid), and the issuer has several")
	}
	return found, nil
}

// force tells whether a token may ask for a fetch now.
func (s *keySet) force() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.cfg.now()
	if !s.forced.IsZero() && now.Sub(s.forced) < forcedEvery {
		return false
	}
	s.forced = now
	return true
}

func (s *keySet) refresh(ctx context.Context) {
	keys, err := s.fetch(ctx)
	if err == nil {
		s.adopt(keys)
	}
	if ctx.Err() != nil {
		return
	}
	s.mu.Lock()
	changed := (s.failed != nil) != (err != nil)
	s.failed = err
	s.mu.Unlock()
	switch {
	case err != nil:
		s.refreshes.WithLabelValues("error").Inc()
		if changed {
			s.cfg.Logger.Warn("token keys cannot be fetched; the last good set stays in use", "error", err)
		}
	default:
		s.refreshes.WithLabelValues("ok").Inc()
		if changed {
			s.cfg.Logger.Info("token keys are fetched again", "keys", len(keys))
		}
	}
}

// adopt makes keys the set in use; the epoch moves only if they differ.
func (s *keySet) adopt(keys []publicKey) {
	for {
		old := s.keys.Load()
		next := &fetchedKeys{epoch: 1, keys: keys, at: s.cfg.now()}
		if old != nil {
			next.epoch = old.epoch
			if !reflect.DeepEqual(old.keys, keys) {
				next.epoch++
			}
		}
		if s.keys.CompareAndSwap(old, next) {
			return
		}
	}
}

func (s *keySet) fetch(ctx context.Context) ([]publicKey, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.cfg.JWKSURL, nil)
	if err != nil {
		return nil, fmt.Errorf("fetching the JWKS: %w", err)
	}
	res, err := s.client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("fetching the JWKS: %w", err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("fetching the JWKS: the key server answered %s", res.Status)
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, maxJWKSBytes+1))
	if err != nil {
		return nil, fmt.Errorf("fetching the JWKS: %w", err)
	}
	if len(body) > maxJWKSBytes {
		return nil, fmt.Errorf("fetching the JWKS: it is larger than %d bytes", maxJWKSBytes)
	}
	return parseKeys(body)
}

// parseKeys reads the public signature keys of a JWKS. Keys for other uses and
// of types that are not known here are passed over, symmetric ones too.
func parseKeys(body []byte) ([]publicKey, error) {
	set, err := jwk.Parse(body, jwk.WithIgnoreParseError(true))
	if err != nil {
		return nil, fmt.Errorf("reading the JWKS: %w", err)
	}
	if set.Len() > maxJWKSKeys {
		return nil, fmt.Errorf("reading the JWKS: it has %d keys, more than %d", set.Len(), maxJWKSKeys)
	}
	var keys []publicKey
	for i := range set.Len() {
		if k, _ := set.Key(i); k != nil {
			if key, ok := signatureKey(k); ok {
				keys = append(keys, key)
			}
		}
	}
	if len(keys) == 0 {
		return nil, errors.New("reading the JWKS: it has no public key for signatures")
	}
	return keys, nil
}

func signatureKey(k jwk.Key) (publicKey, bool) {
	if use, ok := k.KeyUsage(); ok && use != "sig" {
		return publicKey{}, false
	}
	var raw any
	public, err := jwk.PublicKeyOf(k)
	if err != nil || jwk.Export(public, &raw) != nil {
		return publicKey{}, false
	}
	key := publicKey{algorithms: algorithmsOf(raw), raw: raw}
	key.kid, _ = k.KeyID()
	if alg, ok := k.Algorithm(); ok {
		var only []jwa.SignatureAlgorithm
		for _, a := range key.algorithms {
			if a.String() == alg.String() {
				only = append(only, a)
			}
		}
		key.algorithms = only
	}
	return key, len(key.algorithms) > 0
}
