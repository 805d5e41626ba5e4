package api

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

func b64(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }

// hs256 signs any header and claims by hand, so that they may be nonsense.
func hs256(key []byte, header, claims string) string {
	signed := b64(header) + "." + b64(claims)
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(signed))
	return signed + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// claimsAt are good claims of user u7, changed by edit.
func claimsAt(now time.Time, edit func(map[string]any)) string {
	c := map[string]any{"sub": "u7", "exp": now.Add(time.Hour).Unix(), "iss": "issuer", "aud": []string{"tidemark"}}
	if edit != nil {
		edit(c)
	}
	b, _ := json.Marshal(c)
	return string(b)
}

const hsHeader = `{"alg":"HS256","typ":"JWT"}`

func TestTokens(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	v, err := NewVerifier(AuthConfig{HS256Key: testKey, Issuer: "issuer", Audience: "tidemark", now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	with := func(name string, value any) string {
		return hs256(testKey, hsHeader, claimsAt(now, func(c map[string]any) {
			if c[name] = value; value == nil {
				delete(c, name)
			}
		}))
	}
	good := with("x", 1)
	parts := strings.Split(good, ".")
	for _, c := range []struct{ name, token, refused string }{
		{"good", good, ""},
		{"roles", with("roles", []string{"operator"}), ""},
		{"audience as a string", with("aud", "tidemark"), ""},
		{"expired within the skew", with("exp", now.Add(-20*time.Second).Unix()), ""},
		{"expired", with("exp", now.Add(-31*time.Second).Unix()), "expired"},
		{"no exp", with("exp", nil), "sub and exp"},
		{"exp null", hs256(testKey, hsHeader, `{"sub":"u7","exp":null,"iss":"issuer","aud":"tidemark"}`), "token"},
		{"exp text", with("exp", "soon"), "claims"},
		{"exp beyond time", with("exp", 1e300), "claims"},
		{"not yet", with("nbf", now.Add(time.Minute).Unix()), "nbf"},
		{"from the future", with("iat", now.Add(time.Minute).Unix()), "iat"},
		{"another issuer", with("iss", "other"), "iss"},
		{"no issuer", with("iss", nil), "token"},
		{"another audience", with("aud", []string{"other"}), "aud"},
		{"no sub", with("sub", nil), "sub"},
		{"sub empty", with("sub", ""), "sub is empty"},
		{"sub long", with("sub", strings.Repeat("u", 257)), "sub is longer"},
		{"sub control character", with("sub", "a\n"), "sub has a control"},
		{"sub number", with("sub", 7), "claims"},
		{"roles text", with("roles", "operator"), "roles"},
		{"roles of numbers", with("roles", []int{1}), "roles"},
		{"too many roles", with("roles", make([]string, 33)), "roles"},
		{"another key", hs256([]byte("another key of thirty-two bytes!"), hsHeader, claimsAt(now, nil)), "signature"},
		{"alg none", b64(`{"alg":"none"}`) + "." + b64(claimsAt(now, nil)) + ".", "algorithm"},
		{"alg none with a signature", hs256(testKey, `{"alg":"none"}`, claimsAt(now, nil)), "algorithm"},
		{"alg NONE", hs256(testKey, `{"alg":"NONE"}`, claimsAt(now, nil)), "token"},
		{"no alg", hs256(testKey, `{}`, claimsAt(now, nil)), "algorithm"},
		{"alg HS512", hs256(testKey, `{"alg":"HS512"}`, claimsAt(now, nil)), "algorithm"},
		{"alg RS256", hs256(testKey, `{"alg":"RS256"}`, claimsAt(now, nil)), "algorithm"},
		{"critical extension", hs256(testKey, `{"alg":"HS256","crit":["x"],"x":1}`, claimsAt(now, nil)), "signature"},
		{"payload not encoded", hs256(testKey, `{"alg":"HS256","b64":false,"crit":["b64"]}`, claimsAt(now, nil)), "signature"},
		{"key in the header", hs256([]byte("k"), `{"alg":"HS256","jwk":{"kty":"oct","k":"aw"}}`, claimsAt(now, nil)), "token"},
		{"signature of nothing", parts[0] + "." + parts[1] + ".", "token"},
		{"changed claims", parts[0] + "." + b64(claimsAt(now, func(c map[string]any) { c["sub"] = "u8" })) + "." + parts[2], "signature"},
		{"claims not an object", hs256(testKey, hsHeader, `["u7"]`), "claims"},
		{"claims nested token", hs256(testKey, `{"alg":"HS256","cty":"JWT"}`, good), "claims"},
		{"two parts", parts[0] + "." + parts[1], "compact"},
		{"four parts", good + "." + parts[2], "token"},
		{"five parts", "a.b.c.d.e", "token"},
		{"JSON form", `{"payload":"` + parts[1] + `","signatures":[{"protected":"` + parts[0] + `","signature":"` + parts[2] + `"}]}`, "compact"},
		{"not base64", "!.!.!", "compact"},
		{"empty", "", "compact"},
		{"long", strings.Repeat("a", maxTokenBytes+1), "longer"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for range 2 { // proven tokens are remembered, refused ones are not
				id, err := v.Verify(context.Background(), c.token)
				var refused errToken
				switch {
				case c.refused == "" && (err != nil || id.User != "u7"):
					t.Errorf("refused: %v (%+v)", err, id)
				case c.refused != "" && !errors.As(err, &refused):
					t.Errorf("accepted or no refusal: %+v, %v", id, err)
				case c.refused != "" && !strings.Contains(err.Error(), c.refused):
					t.Errorf("refused because %q, want %q", err, c.refused)
				}
			}
		})
	}
	id, _ := v.Verify(context.Background(), with("roles", []string{"operator", "auditor"}))
	if !id.HasRole("operator") || id.HasRole("admin") {
		t.Errorf("roles %v", id.Roles)
	}
	now = now.Add(2 * time.Hour)
	if _, err := v.Verify(context.Background(), good); err == nil {
		t.Error("a remembered token is good after its end")
	}
}

func TestMintToken(t *testing.T) {
	cfg := AuthConfig{HS256Key: testKey, Issuer: "issuer", Audience: "tidemark"}
	token, err := cfg.Mint("赞", "operator", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	v, err := NewVerifier(cfg)
	if err != nil {
		t.Fatal(err)
	}
	id, err := v.Verify(context.Background(), token)
	if err != nil || id.User != "赞" || !reflect.DeepEqual(id.Roles, []string{"operator"}) || time.Until(id.Expires) > time.Hour {
		t.Errorf("%+v, %v", id, err)
	}
	for name, bad := range map[string]func() (string, error){
		"user":     func() (string, error) { return MintToken(testKey, "", "", time.Hour) },
		"lifetime": func() (string, error) { return MintToken(testKey, "u", "", 0) },
		"key":      func() (string, error) { return MintToken([]byte("short"), "u", "", time.Hour) },
	} {
		if _, err := bad(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("bad %s: %v", name, err)
		}
	}
}

func TestAuthConfig(t *testing.T) {
	for _, c := range []struct {
		cfg  AuthConfig
		want string
	}{
		{AuthConfig{}, "neither"},
		{AuthConfig{HS256Key: testKey, JWKSURL: "https://issuer/keys"}, "both"},
		{AuthConfig{HS256Key: []byte("short")}, "fewer than 32"},
		{AuthConfig{JWKSURL: "file:///etc/passwd"}, "http"},
		{AuthConfig{JWKSURL: "issuer/keys"}, "http"},
	} {
		if _, err := NewVerifier(c.cfg); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.cfg, err, c.want)
		}
	}
}

func TestKeyFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	if _, err := LoadKey(path); err == nil {
		t.Error("no file was read")
	}
	made, err := LoadOrCreateKey(path)
	if err != nil {
		t.Fatal(err)
	}
	again, err := LoadOrCreateKey(path)
	if err != nil || string(again) != string(made) || len(made) != 64 {
		t.Errorf("key %d bytes, again equal %v, %v", len(made), string(again) == string(made), err)
	}
	if info, _ := os.Stat(path); info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v", info.Mode())
	}
	for content, want := range map[string]string{"short\n": "fewer than 32", strings.Repeat("k", maxKeyFileBytes+1): "more than"} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := LoadKey(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func TestAuthorizationHeader(t *testing.T) {
	ta := newTestAPI(t, &fakeStore{})
	token := mint(t, "u7")
	for _, c := range []struct {
		name      string
		values    []string
		challenge string
	}{
		{"none", nil, "Bearer"},
		{"empty", []string{""}, "Bearer"},
		{"no token", []string{"Bearer"}, "Bearer"},
		{"blank token", []string{"Bearer "}, "Bearer"},
		{"basic", []string{"Basic dTc6cHc="}, "Bearer"},
		{"two", []string{"Bearer " + token, "Bearer " + token}, "Bearer"},
		{"list", []string{"Bearer " + token + ", Bearer " + token}, `Bearer error="invalid_token"`},
		{"garbage", []string{"Bearer \xff\x00"}, `Bearer error="invalid_token"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := request(t, http.MethodPut, likePath, `{"desiredState":"LIKED"}`)
			r.Header["Authorization"] = c.values
			res := expectProblem(t, ta, r, 401, "unauthenticated", "header.Authorization")
			if got := res.Header.Get("WWW-Authenticate"); got != c.challenge {
				t.Errorf("WWW-Authenticate %q, want %q", got, c.challenge)
			}
		})
	}
	r := request(t, http.MethodPut, likePath, `{"desiredState":"LIKED"}`)
	r.Header.Set("Authorization", "bearer "+token) // the scheme has no case
	ta.do(r, 200, nil)
}

// Every operation under /v1/ needs a token; the document does not.
func TestEverythingNeedsAToken(t *testing.T) {
	ta := newTestAPI(t, &fakeStore{})
	for path := range ta.api.huma.OpenAPI().Paths {
		for _, method := range []string{http.MethodGet, http.MethodPut, http.MethodPost} {
			r := request(t, method, strings.NewReplacer("{", "", "}", "").Replace(path), "{}")
			r.Header.Del("Authorization")
			expectProblem(t, ta, r, 401, "unauthenticated", "header.Authorization")
		}
	}
	r := request(t, http.MethodGet, "/openapi.json", "")
	r.Header.Del("Authorization")
	ta.do(r, 200, nil)
}

func TestTokenCacheIsBounded(t *testing.T) {
	var c tokenCache
	now := time.Now()
	var first [sha256.Size]byte
	c.put(first, 1, Identity{User: "u7", Expires: now.Add(time.Hour)})
	for i := range 3 * maxProven {
		key := sha256.Sum256([]byte{byte(i), byte(i >> 8), byte(i >> 16)})
		c.put(key, 1, Identity{Expires: now.Add(time.Hour)})
		if i%1000 == 0 {
			if id, ok := c.get(first, 1, now); !ok || id.User != "u7" {
				t.Fatalf("a token in use was dropped after %d others", i)
			}
		}
	}
	if n := len(c.young) + len(c.older); n > 2*maxProven {
		t.Errorf("%d tokens remembered", n)
	}
	if _, ok := c.get(first, 2, now); ok {
		t.Error("a token outlived its keys")
	}
	if _, ok := c.get(first, 1, now.Add(2*time.Hour)); ok {
		t.Error("a token outlived its end")
	}
}
