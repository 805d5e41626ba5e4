package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/lestrrat-go/jwx/v3/jwa"
	"github.com/lestrrat-go/jwx/v3/jws"
	"github.com/lestrrat-go/jwx/v3/jwt"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark/tidemark/topology"
)

// Identity is who a token says its bearer is (A7).
type Identity struct {
	User    string   // claim sub, a valid id
	Roles   []string // claim roles
	Expires time.Time
}

// HasRole tells whether the token grants role.
func (i Identity) HasRole(role string) bool {
	for _, r := range i.Roles {
		if r == role {
			return true
		}
	}
	return false
}

// AuthConfig says whose tokens are good. Exactly one of HS256Key and JWKSURL
// is set, and it alone decides the algorithms: HS256 for the key; RS, PS, ES
// and EdDSA signatures, as each key's type allows, for a JWKS. A token's own
// header never widens that.
type AuthConfig struct {
	HS256Key []byte // at least 32 bytes; see LoadKey
	JWKSURL  string // http or https
	// Issuer and Audience, if set, must be in the token (iss, aud).
	Issuer, Audience string
	// RefreshInterval is the time between fetches of the JWKS; default 5m.
	RefreshInterval time.Duration
	// Dial makes the TLS connection to the server of an https JWKS URL, if not with
	// the system's authorities. No proxy of the environment is asked then.
	Dial       func(ctx context.Context, network, address string) (net.Conn, error)
	Logger     *slog.Logger          // default: discard
	Registerer prometheus.Registerer // default: none

	now func() time.Time // of tests
}

// clockSkew is how far this clock and the issuer's may be apart.
const clockSkew = 30 * time.Second

// minKeyBytes is the shortest HS256 key: as long as the hash (RFC 7518, 3.2).
const minKeyBytes = 32

func (c *AuthConfig) check() error {
	switch {
	case len(c.HS256Key) == 0 && c.JWKSURL == "":
		return errors.New("auth: neither an HS256 key nor a JWKS URL is set: set one")
	case len(c.HS256Key) > 0 && c.JWKSURL != "":
		return errors.New("auth: both an HS256 key and a JWKS URL are set: keep one")
	case c.JWKSURL == "":
		return checkKey(c.HS256Key)
	}
	u, err := url.Parse(c.JWKSURL)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return fmt.Errorf("auth: JWKS URL %q is not an http or https URL", c.JWKSURL)
	}
	return nil
}

// errToken is why a token is refused; it holds nothing of the token.
type errToken string

func (e errToken) Error() string { return string(e) }

// errNoKeys says that no key set was ever fetched, so no token can be judged.
var errNoKeys = errors.New("the token keys have not been fetched yet")

// keySource gives the keys that may have signed a token.
type keySource interface {
	// candidates are the keys for a token that names kid ("" for none) and
	// alg. An alg that no key of the source may use has none.
	candidates(ctx context.Context, kid, alg string) ([]verifyKey, error)
	// epoch changes whenever keys are no longer what they were.
	epoch() uint64
	// failure is why the last fetch went wrong.
	failure() error
	run(ctx context.Context) error
}

type verifyKey struct {
	alg jwa.SignatureAlgorithm
	raw any
}

// Verifier proves identities from bearer tokens. It remembers tokens that it
// proved, by their SHA-256, until they expire or the keys change.
type Verifier struct {
	cfg    AuthConfig
	keys   keySource
	proven tokenCache
}

// NewVerifier checks c. With a JWKS, tokens are refused as unverifiable until
// Run has fetched it.
func NewVerifier(c AuthConfig) (*Verifier, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.now == nil {
		c.now = time.Now
	}
	v := &Verifier{cfg: c}
	if c.JWKSURL == "" {
		v.keys = secretKey(c.HS256Key)
		return v, nil
	}
	keys, err := newKeySet(c)
	v.keys = keys
	return v, err
}

// Run keeps the keys fresh until ctx ends; it then returns nil. With an HS256
// key there is nothing to do but wait.
func (v *Verifier) Run(ctx context.Context) error { return v.keys.run(ctx) }

// Ready says why tokens cannot be judged now, nil when they can.
func (v *Verifier) Ready() error {
	switch err := v.keys.failure(); {
	case v.keys.epoch() > 0:
		return nil
	case err != nil:
		return fmt.Errorf("%w: %w", errNoKeys, err)
	default:
		return errNoKeys
	}
}

// Verify proves a token (compact JWS) and gives its identity.
func (v *Verifier) Verify(ctx context.Context, token string) (Identity, error) {
	if len(token) > maxTokenBytes {
		return Identity{}, errToken(fmt.Sprintf("the token is longer than %d bytes", maxTokenBytes))
	}
	now, epoch := v.cfg.now(), v.keys.epoch()
	key := tokenKey(token)
	if id, ok := v.proven.get(key, epoch, now); ok {
		return id, nil
	}
	payload, err := v.verifySignature(ctx, []byte(token))
	if err != nil {
		return Identity{}, err
	}
	id, err := v.claims(payload)
	if err != nil {
		return Identity{}, err
	}
	v.proven.put(key, epoch, id)
	return id, nil
}

func (v *Verifier) verifySignature(ctx context.Context, token []byte) ([]byte, error) {
	kid, alg, err := tokenHeader(token)
	if err != nil {
		return nil, err
	}
	keys, err := v.keys.candidates(ctx, kid, alg)
	if err != nil {
		return nil, err
	}
	for _, k := range keys {
		payload, err := jws.Verify(token, jws.WithCompact(), jws.WithKey(k.alg, k.raw), jws.WithAlgorithmMatch(true), jws.WithCritValidation(true))
		if err == nil {
			return payload, nil
		}
	}
	return nil, errToken("the token's signature is not one of ours")
}

// tokenHeader reads what the token says of its key. It is not trusted: it only
// chooses among keys and algorithms that are allowed anyway.
func tokenHeader(token []byte) (kid, alg string, err error) {
	msg, err := jws.Parse(token, jws.WithCompact())
	if err != nil || len(msg.Signatures()) != 1 {
		return "", "", errToken("the token is not a signed JWT in compact form")
	}
	h := msg.Signatures()[0].ProtectedHeaders()
	a, ok := h.Algorithm()
	if !ok {
		return "", "", errToken("the token names no algorithm")
	}
	kid, _ = h.KeyID()
	return kid, a.String(), nil
}

func (v *Verifier) claims(payload []byte) (Identity, error) {
	t := jwt.New()
	if err := unmarshalClaims(payload, t); err != nil {
		return Identity{}, errToken("the token's claims are not those of a JWT")
	}
	checks := []jwt.ValidateOption{
		jwt.WithClock(jwt.ClockFunc(v.cfg.now)), jwt.WithAcceptableSkew(clockSkew),
		jwt.WithRequiredClaim(jwt.ExpirationKey), jwt.WithRequiredClaim(jwt.SubjectKey),
	}
	if v.cfg.Issuer != "" {
		checks = append(checks, jwt.WithIssuer(v.cfg.Issuer))
	}
	if v.cfg.Audience != "" {
		checks = append(checks, jwt.WithAudience(v.cfg.Audience))
	}
	if err := jwt.Validate(t, checks...); err != nil {
		return Identity{}, claimError(err)
	}
	var id Identity
	id.User, _ = t.Subject()
	id.Expires, _ = t.Expiration()
	if err := topology.CheckID(id.User); err != nil {
		return Identity{}, errToken("the token's claim sub " + err.Error())
	}
	return id, readRoles(t, &id)
}

// claimError says which claim is wrong, without its value.
func claimError(err error) error {
	switch {
	case errors.Is(err, jwt.TokenExpiredError()):
		return errToken("the token has expired")
	case errors.Is(err, jwt.TokenNotYetValidError()):
		return errToken("the token is not valid yet (claim nbf)")
	case errors.Is(err, jwt.InvalidIssuedAtError()):
		return errToken("the token is from the future (claim iat)")
	case errors.Is(err, jwt.InvalidIssuerError()):
		return errToken("the token's claim iss is not the configured issuer")
	case errors.Is(err, jwt.InvalidAudienceError()):
		return errToken("the token's claim aud does not name the configured audience")
	default:
		return errToken("the token must have the claims sub and exp")
	}
}

const (
	rolesClaim = "roles"
	maxRoles   = 32
)

func readRoles(t jwt.Token, id *Identity) error {
	if !t.Has(rolesClaim) {
		return nil
	}
	var raw []any
	if err := t.Get(rolesClaim, &raw); err != nil || len(raw) > maxRoles {
		return errToken(fmt.Sprintf("the token's claim roles is not an array of at most %d strings", maxRoles))
	}
	for _, r := range raw {
		role, ok := r.(string)
		if !ok {
			return errToken("the token's claim roles has an element that is not a string")
		}
		id.Roles = append(id.Roles, role)
	}
	return nil
}

// authenticate proves who sent r, or says why not.
func (a *API) authenticate(r *http.Request) (Identity, *Problem) {
	token, p := bearer(r.Header)
	if p != nil {
		return Identity{}, p
	}
	id, err := a.verifier.Verify(r.Context(), token)
	var refused errToken
	switch {
	case err == nil:
		return id, nil
	case errors.As(err, &refused):
		return Identity{}, unauthenticated(refused.Error(), `Bearer error="invalid_token"`)
	default:
		return Identity{}, unavailable(kindIdentityUnverified, "the token keys cannot be fetched now: try again")
	}
}

func bearer(h http.Header) (string, *Problem) {
	values := h.Values("Authorization")
	switch len(values) {
	case 0:
		return "", unauthenticated("is missing: send a token as Authorization: Bearer TOKEN", "Bearer")
	case 1:
	default:
		return "", unauthenticated(badTwice, "Bearer")
	}
	scheme, token, _ := strings.Cut(values[0], " ")
	if !strings.EqualFold(scheme, "bearer") || token == "" {
		return "", unauthenticated("is not of the form: Bearer TOKEN", "Bearer")
	}
	return token, nil
}

func unauthenticated(message, challenge string) *Problem {
	p := newProblem(kindUnauthenticated, "header.Authorization: "+message)
	p.Errors = []FieldError{{Location: "header.Authorization", Message: message}}
	p.challenge = challenge
	return p
}
