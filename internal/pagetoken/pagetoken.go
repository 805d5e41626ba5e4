// Package pagetoken makes the tokens with which a client asks for the next page
// of a list.
//
// A token is opaque to clients and trusted by nobody before its signature is
// checked. It says where the page before has ended and until when it is good.
// What was asked (list, subject, viewer, filter) is not in it but in what is
// signed, so that a token opens only the list that it was made for, and only
// for the same viewer; the size of pages may change from one to the next.
//
//	base64url( version | expiry | generation | positions | HMAC-SHA256 )
//
// The signature is the last 32 bytes in every version and covers all before
// it, so that an old token of ours is told from a forged one.
package pagetoken

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Why a token is refused. None says more: a client that guesses learns nothing.
var (
	// ErrForged says that the token is not one of ours for this query: cut,
	// changed, of another list or viewer, or signed with a key that is gone.
	ErrForged = errors.New("the page token is not one of this list")
	// ErrExpired says that the token is ours and no longer good.
	ErrExpired = errors.New("the page token has expired")
	// ErrVersion says that the token is ours, of another version of the format.
	ErrVersion = errors.New("the page token is of another version")
)

// ErrTooLong says that a place does not fit into a token.
var ErrTooLong = errors.New("the place in the list does not fit into a page token")

const (
	// MaxBytes of a token: with a bearer token it must fit into a request's head.
	MaxBytes = 10 << 10
	// MinKeyBytes is the shortest key: as long as the hash.
	MinKeyBytes = 32
	// Lifetime of a token. A list is live, so a place in it means little after.
	Lifetime = 24 * time.Hour

	version  = 1
	signed   = "tidemark page token\x00"
	macBytes = sha256.Size
)

// Query is what a token is bound to.
type Query struct {
	List    string // what is listed, such as likers
	Subject string // whose list it is
	Viewer  string // who asks
	Filter  string // what narrows the list
}

// Position stands behind the last entry of a shard that a page has passed.
type Position struct {
	Shard uint32
	AtUs  int64 // of the entry, in Unix microseconds
	ID    string
}

// Place is where a list goes on.
type Place struct {
	// Generation that the positions mean something in; 0 where there is none.
	Generation uint32
	// Positions by ascending shard. A shard that is missing is at its beginning.
	Positions []Position
}

// Signer makes tokens and opens them. It is safe for concurrent use.
type Signer struct {
	keys [][]byte
	now  func() time.Time
}

// NewSigner makes one that signs with the first key and accepts those of all.
// To rotate, put the new key last in every process, then first, and remove the
// old one after Lifetime.
func NewSigner(keys ...[]byte) (*Signer, error) {
	if len(keys) == 0 {
		return nil, errors.New("page tokens: there is no key")
	}
	for i, k := range keys {
		if len(k) < MinKeyBytes {
			return nil, fmt.Errorf("page tokens: key %d has %d bytes, fewer than %d", i, len(k), MinKeyBytes)
		}
	}
	return &Signer{keys: keys, now: time.Now}, nil
}

// Seal makes the token of a place. Its error is ErrTooLong.
func (s *Signer) Seal(q Query, p Place) (string, error) {
	b := []byte{version}
	b = binary.AppendUvarint(b, uint64(s.now().Add(Lifetime).Unix()))
	b = appendPlace(b, p)
	b = append(b, s.mac(s.keys[0], q, b)...)
	if base64.RawURLEncoding.EncodedLen(len(b)) > MaxBytes {
		return "", ErrTooLong
	}
	return base64.RawURLEncoding.EncodeToString(b), nil
}

// Open reads the place in a token that was made for q. Its errors are
// ErrForged, ErrExpired and ErrVersion.
func (s *Signer) Open(q Query, token string) (Place, error) {
	// encoding/base64 passes over line ends, so that one token would have many
	// forms.
	if len(token) > MaxBytes || strings.ContainsAny(token, "\r\n") {
		return Place{}, ErrForged
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err != nil || len(b) <= macBytes {
		return Place{}, ErrForged
	}
	body, mac := b[:len(b)-macBytes], b[len(b)-macBytes:]
	if !s.signedByUs(q, body, mac) {
		return Place{}, ErrForged
	}
	if body[0] != version {
		return Place{}, ErrVersion
	}
	r := reader{b: body[1:]}
	expiry := r.uvarint()
	p := r.place()
	switch {
	case r.bad || len(r.b) > 0:
		return Place{}, ErrForged
	case s.now().Unix() >= int64(expiry):
		return Place{}, ErrExpired
	}
	return p, nil
}

func (s *Signer) signedByUs(q Query, body, mac []byte) bool {
	for _, k := range s.keys {
		if hmac.Equal(mac, s.mac(k, q, body)) {
			return true
		}
	}
	return false
}

// mac signs a body and what it is bound to. Each part has its length before it:
// no two queries are written alike.
func (s *Signer) mac(key []byte, q Query, body []byte) []byte {
	m := hmac.New(sha256.New, key)
	m.Write([]byte(signed))
	for _, part := range []string{q.List, q.Subject, q.Viewer, q.Filter} {
		m.Write(binary.AppendUvarint(nil, uint64(len(part))))
		m.Write([]byte(part))
	}
	m.Write(body)
	return m.Sum(nil)
}
