package api

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/lestrrat-go/jwx/v3/jwa"
	"github.com/lestrrat-go/jwx/v3/jwt"

	"github.com/tidemark/tidemark/topology"
)

// secretKey is the only key of a deployment with an HS256 key.
type secretKey []byte

func (k secretKey) candidates(_ context.Context, _, alg string) ([]verifyKey, error) {
	if alg != jwa.HS256().String() {
		return nil, errToken("the token's algorithm is not HS256")
	}
	return []verifyKey{{jwa.HS256(), []byte(k)}}, nil
}

func (k secretKey) failure() error                { return nil }
func (k secretKey) epoch() uint64                 { return 1 }
func (k secretKey) run(ctx context.Context) error { <-ctx.Done(); return nil }

// asymmetric are the algorithms of algorithmsOf.
var asymmetric = map[string]bool{
	"RS256": true, "RS384": true, "RS512": true, "PS256": true, "PS384": true, "PS512": true,
	"ES256": true, "ES384": true, "ES512": true, "EdDSA": true, "Ed25519": true,
}

// algorithmsOf are the signature algorithms that a public key may be used
// with: its type decides, so no other reading of the same bytes is possible.
func algorithmsOf(raw any) []jwa.SignatureAlgorithm {
	switch k := raw.(type) {
	case *rsa.PublicKey:
		if k.N.BitLen() < 2048 {
			return nil
		}
		return []jwa.SignatureAlgorithm{jwa.RS256(), jwa.RS384(), jwa.RS512(), jwa.PS256(), jwa.PS384(), jwa.PS512()}
	case *ecdsa.PublicKey:
		switch k.Curve.Params().BitSize {
		case 256:
			return []jwa.SignatureAlgorithm{jwa.ES256()}
		case 384:
			return []jwa.SignatureAlgorithm{jwa.ES384()}
		case 521:
			return []jwa.SignatureAlgorithm{jwa.ES512()}
		}
	case ed25519.PublicKey:
		return []jwa.SignatureAlgorithm{jwa.EdDSA(), jwa.EdDSAEd25519()}
	}
	return nil
}

func checkKey(key []byte) error {
	if len(key) < minKeyBytes {
		return fmt.Errorf("auth: the HS256 key has %d bytes, fewer than %d", len(key), minKeyBytes)
	}
	return nil
}

// maxKeyFileBytes bounds what is read as a key.
const maxKeyFileBytes = 4 << 10

// LoadKey reads an HS256 key from a file: its bytes without white space around
// them.
func LoadKey(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("reading the HS256 key: %w", err)
	}
	if info.Size() > maxKeyFileBytes {
		return nil, fmt.Errorf("reading the HS256 key: %s has %d bytes, more than %d", path, info.Size(), maxKeyFileBytes)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading the HS256 key: %w", err)
	}
	key := bytes.TrimSpace(b)
	return key, checkKey(key)
}

// LoadOrCreateKey is LoadKey, after writing a random key (hex, readable by the
// owner only) if there is no such file.
func LoadOrCreateKey(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return LoadKey(path)
	}
	if err != nil {
		return nil, fmt.Errorf("creating the HS256 key: %w", err)
	}
	var key [minKeyBytes]byte
	_, _ = rand.Read(key[:]) // never fails
	_, err = fmt.Fprintf(f, "%x\n", key)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return nil, fmt.Errorf("creating the HS256 key: %w", err)
	}
	return LoadKey(path)
}

// MintToken signs a token for user with an HS256 key; role "" grants none.
func MintToken(key []byte, user, role string, ttl time.Duration) (string, error) {
	return AuthConfig{HS256Key: key}.Mint(user, role, ttl)
}

// Mint is MintToken with the configuration's key, issuer and audience.
func (c AuthConfig) Mint(user, role string, ttl time.Duration) (string, error) {
	if err := topology.CheckID(user); err != nil {
		return "", fmt.Errorf("minting a token: user %w", err)
	}
	if ttl <= 0 {
		return "", fmt.Errorf("minting a token: lifetime %v is not positive", ttl)
	}
	if err := checkKey(c.HS256Key); err != nil {
		return "", fmt.Errorf("minting a token: %w", err)
	}
	now := time.Now()
	b := jwt.NewBuilder().Subject(user).IssuedAt(now).Expiration(now.Add(ttl))
	if role != "" {
		b = b.Claim(rolesClaim, []string{role})
	}
	if c.Issuer != "" {
		b = b.Issuer(c.Issuer)
	}
	if c.Audience != "" {
		b = b.Audience([]string{c.Audience})
	}
	t, err := b.Build()
	if err != nil {
		return "", fmt.Errorf("minting a token: %w", err)
	}
	signed, err := jwt.Sign(t, jwt.WithKey(jwa.HS256(), c.HS256Key))
	if err != nil {
		return "", fmt.Errorf("minting a token: %w", err)
	}
	return string(signed), nil
}

// unmarshalClaims reads a JWT's payload, one JSON object.
func unmarshalClaims(payload []byte, t jwt.Token) error { return json.Unmarshal(payload, t) }
