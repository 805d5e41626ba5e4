package pagetoken

import (
	"bytes"
	"encoding/base64"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var (
	oldKey   = bytes.Repeat([]byte("o"), MinKeyBytes)
	newKey   = bytes.Repeat([]byte("n"), MinKeyBytes)
	testTime = time.Date(2026, 8, 19, 10, 20, 30, 0, time.UTC)
	query    = Query{List: "likers", Subject: "V9001", Viewer: "u7"}
	place    = Place{Generation: 3, Positions: []Position{{0, 1787134830123456, "u9"}, {2, 1787134830123455, "u9"}, {15, -1, "用户"}}}
)

func signer(t testing.TB, keys ...[]byte) *Signer {
	t.Helper()
	s, err := NewSigner(keys...)
	if err != nil {
		t.Fatal(err)
	}
	s.now = func() time.Time { return testTime }
	return s
}

func seal(t testing.TB, s *Signer, q Query, p Place) string {
	t.Helper()
	token, err := s.Seal(q, p)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func expect(t testing.TB, s *Signer, q Query, token string, want error) {
	t.Helper()
	if p, err := s.Open(q, token); !errors.Is(err, want) || err != nil && !reflect.DeepEqual(p, Place{}) {
		t.Errorf("token %q gives %+v, %v, want %v", token, p, err, want)
	}
}

func places() *rapid.Generator[Place] {
	return rapid.Custom(func(t *rapid.T) Place {
		p := Place{Generation: rapid.Uint32().Draw(t, "generation")}
		shard := rapid.Uint32Range(0, 3).Draw(t, "first shard")
		for range rapid.IntRange(0, 16).Draw(t, "positions") {
			p.Positions = append(p.Positions, Position{shard, rapid.Int64().Draw(t, "at"), rapid.StringN(0, 64, 256).Draw(t, "id")})
			shard += rapid.Uint32Range(1, 100).Draw(t, "step")
		}
		return p
	})
}

func queries() *rapid.Generator[Query] {
	id := rapid.SampledFrom([]string{"", "a", "ab", "b", "likers", "V9001", "u7"})
	return rapid.Custom(func(t *rapid.T) Query {
		return Query{id.Draw(t, "list"), id.Draw(t, "subject"), id.Draw(t, "viewer"), id.Draw(t, "filter")}
	})
}

func TestRoundTrip(t *testing.T) {
	s := signer(t, newKey)
	rapid.Check(t, func(r *rapid.T) {
		q, p := queries().Draw(r, "query"), places().Draw(r, "place")
		got, err := s.Open(q, seal(t, s, q, p))
		if err != nil || !reflect.DeepEqual(got, p) {
			r.Fatalf("%+v comes back as %+v, %v", p, got, err)
		}
		if other := queries().Draw(r, "other query"); other != q {
			if got, err := s.Open(other, seal(t, s, q, p)); !errors.Is(err, ErrForged) {
				r.Fatalf("the token of %+v opens %+v: %+v, %v", q, other, got, err)
			}
		}
	})
}

// TestChanged refuses a token with any bit, character or length changed.
func TestChanged(t *testing.T) {
	s := signer(t, newKey)
	token := seal(t, s, query, place)
	raw, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil {
		t.Fatal(err)
	}
	for bit := range len(raw) * 8 {
		b := bytes.Clone(raw)
		b[bit/8] ^= 1 << (bit % 8)
		expect(t, s, query, base64.RawURLEncoding.EncodeToString(b), ErrForged)
	}
	for bit := range len(token) * 8 { // also bits that base64 has no use for
		b := []byte(token)
		b[bit/8] ^= 1 << (bit % 8)
		expect(t, s, query, string(b), ErrForged)
	}
	for n := range len(token) {
		expect(t, s, query, token[:n], ErrForged)
	}
	for _, more := range []string{"A", "=", "==", "\n", "\r\n", " ", "AAAA", token} {
		expect(t, s, query, token+more, ErrForged)
		expect(t, s, query, more+token, ErrForged)
	}
	expect(t, s, query, token[:9]+"\n"+token[9:], ErrForged)
	expect(t, s, query, strings.Repeat("A", MaxBytes+1), ErrForged)
	expect(t, s, query, token, nil)
}

func TestRotation(t *testing.T) {
	before, both, after := signer(t, oldKey), signer(t, newKey, oldKey), signer(t, newKey)
	old := seal(t, before, query, place)
	expect(t, both, query, old, nil)
	expect(t, after, query, old, ErrForged)
	expect(t, after, query, seal(t, both, query, place), nil)
	expect(t, before, query, seal(t, both, query, place), ErrForged)
}

func TestExpiry(t *testing.T) {
	s := signer(t, newKey)
	token := seal(t, s, query, place)
	s.now = func() time.Time { return testTime.Add(Lifetime - time.Second) }
	expect(t, s, query, token, nil)
	s.now = func() time.Time { return testTime.Add(Lifetime) }
	expect(t, s, query, token, ErrExpired)
	expect(t, s, Query{List: "likers"}, token, ErrForged) // not even told that it has expired
}

// TestOtherVersion tells a token that an earlier version of the format signed
// from a forged one.
func TestOtherVersion(t *testing.T) {
	s := signer(t, newKey)
	body := []byte{0, 1, 2, 3}
	ours := base64.RawURLEncoding.EncodeToString(append(body, s.mac(newKey, query, body)...))
	expect(t, s, query, ours, ErrVersion)
	expect(t, signer(t, oldKey), query, ours, ErrForged)
}

func TestLength(t *testing.T) {
	s := signer(t, newKey)
	long := Place{Generation: 1}
	for shard := range uint32(16) { // of the default R, with the longest ids
		long.Positions = append(long.Positions, Position{shard, 1787134830123456 - int64(shard)<<40, strings.Repeat(string(rune('a'+shard)), 256)})
	}
	t.Logf("16 shards with ids of 256 bytes: %d bytes; with ids of 2: %d", len(seal(t, s, query, long)), len(seal(t, s, query, place)))
	for shard := range uint32(16) {
		long.Positions = append(long.Positions, Position{16 + shard, 0, strings.Repeat(string(rune('A'+shard)), 256)})
	}
	if token, err := s.Seal(query, long); !errors.Is(err, ErrTooLong) {
		t.Errorf("a token of %d bytes, %v", len(token), err)
	}
}

func TestKeys(t *testing.T) {
	if _, err := NewSigner(); err == nil {
		t.Error("a signer without a key")
	}
	if _, err := NewSigner(newKey, newKey[1:]); err == nil || strings.Contains(err.Error(), "nnn") {
		t.Errorf("a short key: %v", err)
	}
}

func FuzzOpen(f *testing.F) {
	s := signer(f, newKey)
	f.Add(seal(f, s, query, place), []byte{version, 1, 2, 3})
	f.Add("", []byte{})
	f.Add("AAAA", []byte{version, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1, 1, 255, 255, 3, 1, 2, 3})
	f.Fuzz(func(t *testing.T, token string, body []byte) {
		if p, err := s.Open(query, token); err == nil {
			if again, err := s.Seal(query, p); err != nil {
				t.Fatalf("%q opened as %+v, sealed as %q, %v", token, p, again, err)
			}
		}
		// What we have signed is read without a panic whatever it is, and what
		// opens means the same when it is written again.
		signed := base64.RawURLEncoding.EncodeToString(append(bytes.Clone(body), s.mac(newKey, query, body)...))
		p, err := s.Open(query, signed)
		if err != nil {
			return
		}
		again, err := s.Open(query, seal(t, s, query, p))
		if err != nil || !reflect.DeepEqual(again, p) {
			t.Fatalf("%+v comes back as %+v, %v", p, again, err)
		}
	})
}
