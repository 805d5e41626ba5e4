package api

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lestrrat-go/jwx/v3/jwa"
	"github.com/lestrrat-go/jwx/v3/jwk"
	"github.com/lestrrat-go/jwx/v3/jws"
	"github.com/prometheus/client_golang/prometheus"
)

// keyServer serves a JWKS that tests change.
type keyServer struct {
	*httptest.Server
	body    atomic.Value // string; "" answers 503
	fetches atomic.Int64
	fetched chan struct{} // if set, takes a word of each fetch
}

func newKeyServer(t *testing.T, body string) *keyServer {
	s := &keyServer{}
	s.body.Store(body)
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.fetches.Add(1)
		if s.fetched != nil {
			select {
			case s.fetched <- struct{}{}:
			case <-r.Context().Done():
			}
		}
		if b := s.body.Load().(string); b != "" {
			_, _ = w.Write([]byte(b))
			return
		}
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	t.Cleanup(s.Close)
	return s
}

type signer struct {
	alg jwa.SignatureAlgorithm
	kid string
	key crypto.Signer
}

func newSigner(t *testing.T, alg jwa.SignatureAlgorithm, kid string) signer {
	t.Helper()
	var key crypto.Signer
	var err error
	switch alg {
	case jwa.RS256(), jwa.PS256():
		key, err = rsa.GenerateKey(rand.Reader, 2048)
	case jwa.ES256():
		key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	default:
		_, key, err = ed25519.GenerateKey(rand.Reader)
	}
	if err != nil {
		t.Fatal(err)
	}
	return signer{alg, kid, key}
}

func (s signer) jwk(t *testing.T, edit func(jwk.Key)) string {
	t.Helper()
	k, err := jwk.Import(s.key.Public())
	if err != nil {
		t.Fatal(err)
	}
	if s.kid != "" {
		_ = k.Set(jwk.KeyIDKey, s.kid)
	}
	if edit != nil {
		edit(k)
	}
	b, err := json.Marshal(k)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func (s signer) token(t *testing.T, now time.Time) string {
	t.Helper()
	h := jws.NewHeaders()
	if s.kid != "" {
		_ = h.Set(jws.KeyIDKey, s.kid)
	}
	b, err := jws.Sign([]byte(claimsAt(now, nil)), jws.WithKey(s.alg, s.key, jws.WithProtectedHeaders(h)))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func jwksOf(keys ...string) string { return `{"keys":[` + strings.Join(keys, ",") + `]}` }

// jwksVerifier is a Verifier with a clock that tests move and no Run.
func jwksVerifier(t *testing.T, s *keyServer, now *time.Time) (*Verifier, *keySet) {
	t.Helper()
	v, err := NewVerifier(AuthConfig{JWKSURL: s.URL, Registerer: prometheus.NewRegistry(), now: func() time.Time { return *now }})
	if err != nil {
		t.Fatal(err)
	}
	keys := v.keys.(*keySet)
	t.Cleanup(keys.client.CloseIdleConnections)
	t.Cleanup(http.DefaultTransport.(*http.Transport).CloseIdleConnections)
	return v, keys
}

func wantUser(t *testing.T, v *Verifier, token string) {
	t.Helper()
	if id, err := v.Verify(context.Background(), token); err != nil || id.User != "u7" {
		t.Errorf("a good token: %+v, %v", id, err)
	}
}

func wantRefused(t *testing.T, v *Verifier, token, why string) {
	t.Helper()
	var refused errToken
	if _, err := v.Verify(context.Background(), token); !errors.As(err, &refused) || !strings.Contains(err.Error(), why) {
		t.Errorf("%v, want a refusal with %q", err, why)
	}
}

func TestJWKSAlgorithms(t *testing.T) {
	now := time.Now()
	for _, alg := range []jwa.SignatureAlgorithm{jwa.RS256(), jwa.PS256(), jwa.ES256(), jwa.EdDSA(), jwa.EdDSAEd25519()} {
		t.Run(alg.String(), func(t *testing.T) {
			s := newSigner(t, alg, "k1")
			v, _ := jwksVerifier(t, newKeyServer(t, jwksOf(s.jwk(t, nil))), &now)
			wantUser(t, v, s.token(t, now))
			other := newSigner(t, alg, "k1")
			wantRefused(t, v, other.token(t, now), "signature")
			unnamed := s
			unnamed.kid = ""
			wantUser(t, v, unnamed.token(t, now))
		})
	}
}

// Algorithm confusion: the public key, which everybody has, is no HMAC secret.
func TestJWKSAlgorithmConfusion(t *testing.T) {
	now := time.Now()
	s := newSigner(t, jwa.RS256(), "k1")
	public := s.jwk(t, nil)
	key, err := jwk.ParseKey([]byte(public))
	if err != nil {
		t.Fatal(err)
	}
	pem, err := jwk.Pem(key)
	if err != nil {
		t.Fatal(err)
	}
	// The server lists a symmetric key too, which must not count.
	v, _ := jwksVerifier(t, newKeyServer(t, jwksOf(public, `{"kty":"oct","kid":"k2","k":"`+b64(string(testKey))+`"}`)), &now)
	claims := claimsAt(now, nil)
	for _, secret := range [][]byte{pem, []byte(public), testKey} {
		for _, kid := range []string{"k1", "k2", "k3"} {
			wantRefused(t, v, hs256(secret, `{"alg":"HS256","kid":"`+kid+`"}`, claims), "algorithm")
		}
		wantRefused(t, v, hs256(secret, hsHeader, claims), "algorithm")
	}
	wantRefused(t, v, b64(`{"alg":"none","kid":"k1"}`)+"."+b64(claims)+".", "algorithm")
	wantRefused(t, v, hs256(testKey, `{"alg":"ES256","kid":"k1"}`, claims), "algorithm")
	wantUser(t, v, s.token(t, now))
}

func TestJWKSKeyLimits(t *testing.T) {
	now := time.Now()
	s := newSigner(t, jwa.RS256(), "k1")
	only := func(alg jwa.SignatureAlgorithm) string {
		return s.jwk(t, func(k jwk.Key) { _ = k.Set(jwk.AlgorithmKey, alg) })
	}
	v, keys := jwksVerifier(t, newKeyServer(t, jwksOf(only(jwa.PS256()))), &now)
	wantRefused(t, v, s.token(t, now), "algorithm") // RS256 with a key for PS256
	for name, body := range map[string]string{
		"not JSON":            "<html>",
		"no keys":             `{"keys":[]}`,
		"only encryption":     jwksOf(s.jwk(t, func(k jwk.Key) { _ = k.Set(jwk.KeyUsageKey, "enc") })),
		"only symmetric":      jwksOf(`{"kty":"oct","k":"` + b64(string(testKey)) + `"}`),
		"too many":            jwksOf(strings.Repeat(s.jwk(t, nil)+",", maxJWKSKeys) + s.jwk(t, nil)),
		"no usable algorithm": jwksOf(only(jwa.ES256())),
	} {
		if _, err := parseKeys([]byte(body)); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if k, err := parseKeys([]byte(jwksOf(`{"kty":"new"}`, s.jwk(t, nil)))); err != nil || len(k) != 1 {
		t.Errorf("a key of an unknown type beside a good one: %v, %v", k, err)
	}
	big := newKeyServer(t, `{"keys":[`+strings.Repeat(" ", maxJWKSBytes)+`]}`)
	keys.cfg.JWKSURL = big.URL
	if _, err := keys.fetch(context.Background()); err == nil || !strings.Contains(err.Error(), "larger") {
		t.Errorf("a huge JWKS: %v", err)
	}
}

func TestJWKSRotation(t *testing.T) {
	now := time.Now()
	old, next := newSigner(t, jwa.ES256(), "k1"), newSigner(t, jwa.ES256(), "k2")
	s := newKeyServer(t, jwksOf(old.jwk(t, nil)))
	v, keys := jwksVerifier(t, s, &now)
	wantUser(t, v, old.token(t, now))

	// A token with the new key makes the set be fetched at once.
	s.body.Store(jwksOf(old.jwk(t, nil), next.jwk(t, nil)))
	now = now.Add(forcedEvery)
	wantUser(t, v, next.token(t, now))
	wantUser(t, v, old.token(t, now))

	// A revoked key is no longer good, nor are remembered tokens.
	oldToken := old.token(t, now)
	wantUser(t, v, oldToken)
	s.body.Store(jwksOf(next.jwk(t, nil)))
	keys.refresh(context.Background())
	now = now.Add(time.Second)
	wantRefused(t, v, oldToken, "key")
	wantUser(t, v, next.token(t, now))
}

// Made-up key ids do not reach the key server more often than allowed.
func TestJWKSUnknownKeysAreLimited(t *testing.T) {
	now := time.Now()
	good := newSigner(t, jwa.EdDSA(), "k1")
	s := newKeyServer(t, jwksOf(good.jwk(t, nil)))
	v, keys := jwksVerifier(t, s, &now)
	keys.refresh(context.Background())
	for i := range 100 {
		forged := good
		forged.kid = fmt.Sprint("made-up-", i)
		wantRefused(t, v, forged.token(t, now), "key")
	}
	if n := s.fetches.Load(); n != 2 {
		t.Errorf("%d fetches, want 2", n)
	}
	now = now.Add(forcedEvery)
	wantRefused(t, v, good.token(t, now.Add(-2*time.Hour)), "expired")
	forged := good
	forged.kid = "made-up"
	wantRefused(t, v, forged.token(t, now), "key")
	if n := s.fetches.Load(); n != 3 {
		t.Errorf("%d fetches, want 3", n)
	}
}

func TestJWKSServerAway(t *testing.T) {
	now := time.Now()
	good := newSigner(t, jwa.EdDSA(), "k1")
	s := newKeyServer(t, "")
	v, keys := jwksVerifier(t, s, &now)
	if _, err := v.Verify(context.Background(), good.token(t, now)); !errors.Is(err, errNoKeys) {
		t.Errorf("no set was ever fetched: %v", err)
	}
	if v.Ready() == nil {
		t.Error("ready without keys")
	}
	s.body.Store(jwksOf(good.jwk(t, nil)))
	keys.refresh(context.Background())
	if err := v.Ready(); err != nil {
		t.Error(err)
	}
	for _, broken := range []string{"", "<html>", `{"keys":[]}`} {
		s.body.Store(broken)
		keys.refresh(context.Background())
		now = now.Add(time.Second)
		wantUser(t, v, good.token(t, now))
	}
	s.Close()
	keys.refresh(context.Background())
	now = now.Add(time.Second)
	wantUser(t, v, good.token(t, now))
}

func TestJWKSIdentityUnavailable(t *testing.T) {
	now := time.Now()
	v, _ := jwksVerifier(t, newKeyServer(t, ""), &now)
	a, err := New(Config{Verifier: v})
	if err != nil {
		t.Fatal(err)
	}
	ta := &testAPI{t: t, api: a}
	r := request(t, http.MethodGet, "/v1/operations/op-1", "")
	r.Header.Set("Authorization", "Bearer "+newSigner(t, jwa.EdDSA(), "k1").token(t, now))
	res := expectProblem(t, ta, r, 503, "identity-unavailable", "")
	if res.Header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
}

func TestVerifierRun(t *testing.T) {
	now := time.Now()
	good := newSigner(t, jwa.EdDSA(), "k1")
	s := newKeyServer(t, jwksOf(good.jwk(t, nil)))
	s.fetched = make(chan struct{})
	v, keys := jwksVerifier(t, s, &now)
	keys.cfg.RefreshInterval = time.Millisecond
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- v.Run(ctx) }()
	for range 3 { // at once, and again and again
		<-s.fetched
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	wantUser(t, v, good.token(t, now))
}
