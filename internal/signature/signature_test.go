package signature

import (
	"bytes"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

var (
	testNow  = time.Unix(1_790_000_000, 0)
	testKey  = Key{"app-1", bytes.Repeat([]byte("s"), 32)}
	testBody = []byte(`{"desiredState":"LIKED"}`)
)

func verifier() Verifier {
	return Verifier{
		Secret: func(id string) []byte {
			if id == testKey.ID {
				return testKey.Secret
			}
			return nil
		},
		MaxAge: 5 * time.Minute, Now: func() time.Time { return testNow },
	}
}

func unsigned() *http.Request {
	r := httptest.NewRequest(http.MethodPut, "http://likes.example/v1/videos/a%2Fb/like-relation", bytes.NewReader(testBody))
	r.Header.Set("Authorization", "Bearer abc")
	r.Header.Set("Idempotency-Key", "op-101")
	return r
}

func signed(t testing.TB, at time.Time) *http.Request {
	t.Helper()
	r := unsigned()
	if err := Sign(r, testBody, testKey, at); err != nil {
		t.Fatal(err)
	}
	return r
}

func reasonOf(t *testing.T, err error) Reason {
	t.Helper()
	var refusal *Refusal
	if err != nil && !errors.As(err, &refusal) {
		t.Fatalf("not a refusal: %v", err)
	}
	if refusal == nil {
		return ""
	}
	return refusal.Reason
}

func TestSignedIsVerified(t *testing.T) {
	for _, age := range []time.Duration{0, 5 * time.Minute, -30 * time.Second} {
		if err := verifier().Verify(signed(t, testNow.Add(-age)), testBody); err != nil {
			t.Errorf("signed %v ago: %v", age, err)
		}
	}
}

// replaced puts other text into what the client's own Sign made, as somebody on
// the way would.
func replaced(field, old, text string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set(field, strings.Replace(r.Header.Get(field), old, text, 1)) }
}

// Whatever a signature must cover cannot be changed, and whatever it says of
// itself is held to it.
func TestRefused(t *testing.T) {
	set := func(field, value string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set(field, value) }
	}
	input := func(old, text string) func(*http.Request) { return replaced("Signature-Input", old, text) }
	for _, c := range []struct {
		name   string
		change func(*http.Request)
		want   Reason
	}{
		{"another method", func(r *http.Request) { r.Method = http.MethodPost }, NotOurs},
		{"another target", func(r *http.Request) { r.URL.Path, r.URL.RawPath = "/v1/videos/V2/like-relation", "" }, NotOurs},
		{"the same target, decoded", func(r *http.Request) { r.URL.RawPath = "" }, NotOurs},
		{"a query", func(r *http.Request) { r.URL.RawQuery = "a=b" }, Incomplete},
		{"another user", set("Authorization", "Bearer abd"), NotOurs},
		{"no user", func(r *http.Request) { r.Header.Del("Authorization") }, Malformed},
		{"another operation", set("Idempotency-Key", "op-102"), NotOurs},
		{"a second operation", func(r *http.Request) { r.Header.Add("Idempotency-Key", "op-102") }, NotOurs},
		{"no operation", func(r *http.Request) { r.Header.Del("Idempotency-Key") }, Malformed},
		{"another digest", set("Content-Digest", digest([]byte("{}"))), NotOurs},
		{"no digest", func(r *http.Request) { r.Header.Del("Content-Digest") }, Malformed},
		{"no signature at all", func(r *http.Request) { r.Header.Del("Signature-Input"); r.Header.Del("Signature") }, Missing},
		{"no signature value", func(r *http.Request) { r.Header.Del("Signature") }, Malformed},
		{"a signature of no bytes", set("Signature", "tidemark=::"), NotOurs},
		{"a signature that is text", set("Signature", `tidemark="a"`), Malformed},
		{"another label", set("Signature", "other=:AAAA:"), Malformed},
		{"not base64", set("Signature", "tidemark=:*:"), Malformed},
		{"not a dictionary", set("Signature-Input", "((("), Malformed},
		{"not a list", set("Signature-Input", "tidemark=1"), Missing},
		{"the tag of another", input(`tag="tidemark"`, `tag="other"`), Missing},
		{"a tag that is a token", input(`tag="tidemark"`, `tag=tidemark`), Missing},
		{"two of ours", func(r *http.Request) {
			v := r.Header.Get("Signature-Input")
			r.Header.Set("Signature-Input", v+", b"+strings.TrimPrefix(v, "tidemark"))
		}, Malformed},
		{"not the path", input(` "@path"`, ""), Incomplete},
		{"not the body", input(` "content-digest"`, ""), Incomplete},
		{"not the token", input(` "authorization"`, ""), Incomplete},
		{"not the operation", input(` "idempotency-key"`, ""), Incomplete},
		{"a component twice", input(`"@path"`, `"@path" "@path"`), Malformed},
		{"a component in upper case", input(`"@path"`, `"@path" "Date"`), Malformed},
		{"a component with a parameter", input(`"authorization"`, `"authorization";sf`), Malformed},
		{"a component that is a number", input(`"@path"`, `"@path" 1`), Malformed},
		{"a component that ends lines", input(`"@path"`, `"@path" "a: b"`), Malformed},
		{"a derived component not read here", input(`"@path"`, `"@path" "@scheme"`), Malformed},
		{"a field that is not there", input(`"@path"`, `"@path" "x-other"`), Malformed},
		{"33 components", input(`"@path"`, `"@path"`+strings.Repeat(` "x"`, 28)), Malformed},
		{"a long field", set("Signature-Input", strings.Repeat("a", maxHeaderBytes+1)), Malformed},
		{"another order", input(`"@method" "@path"`, `"@path" "@method"`), NotOurs},
		{"made a second later", input("created=1790000000", "created=1790000001"), NotOurs},
		{"made long ago", input("created=1790000000", "created=1789999699"), OutsideTime},
		{"made in the future", input("created=1790000000", "created=1790000031"), OutsideTime},
		{"made at the end of time", input("created=1790000000", "created=999999999999999"), OutsideTime},
		{"made before all time", input("created=1790000000", "created=-999999999999999"), OutsideTime},
		{"made at no time", input(";created=1790000000", ""), Malformed},
		{"made at a text", input("created=1790000000", `created="1790000000"`), Malformed},
		{"expired", input(";keyid", ";expires=1789999969;keyid"), OutsideTime},
		{"an expires that is text", input(";keyid", `;expires="";keyid`), Malformed},
		{"an expires that nobody signed", input(";keyid", ";expires=1790000300;keyid"), NotOurs},
		{"another key", input(`"app-1"`, `"app-2"`), UnknownKey},
		{"no key", input(`;keyid="app-1"`, ""), Malformed},
		{"an empty key", input(`"app-1"`, `""`), Malformed},
		{"a long key id", input(`"app-1"`, `"`+strings.Repeat("k", MaxKeyIDBytes+1)+`"`), Malformed},
		{"another algorithm", input(`"hmac-sha256"`, `"ed25519"`), Malformed},
		{"a parameter that nobody signed", input(";keyid", `;nonce="x";keyid`), NotOurs},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := signed(t, testNow)
			c.change(r)
			err := verifier().Verify(r, testBody)
			if got := reasonOf(t, err); got != c.want {
				t.Errorf("reason %q, want %q: %v", got, c.want, err)
			}
			if err != nil && (strings.Contains(err.Error(), "abc") || strings.Contains(err.Error(), "op-101")) {
				t.Errorf("the refusal has the request's secrets: %v", err)
			}
		})
	}
}

func TestBodyIsSigned(t *testing.T) {
	if got := reasonOf(t, verifier().Verify(signed(t, testNow), []byte(`{"desiredState":"UNLIKED"}`))); got != WrongDigest {
		t.Errorf("another body: reason %q", got)
	}
	for value, want := range map[string]Reason{
		"md5=:AAAA:":                          Malformed,
		"sha-256=1":                           Malformed,
		digest(testBody) + ", sha-512=:AAAA:": WrongDigest,
		digest(testBody) + ", md5=:AAAA:":     "",
		"":                                    Malformed,
	} {
		h := http.Header{"Content-Digest": {value}}
		if got := reasonOf(t, checkDigest(h, testBody)); got != want {
			t.Errorf("Content-Digest %q: reason %q, want %q", value, got, want)
		}
	}
}

// A signature of another beside ours, such as a gateway's, is not looked at.
func TestSignaturesOfOthers(t *testing.T) {
	r := signed(t, testNow)
	r.Header.Add("Signature-Input", `gw=("x-other";sf);created=1;keyid="gw"`)
	r.Header.Add("Signature", "gw=:AAAA:")
	if err := verifier().Verify(r, testBody); err != nil {
		t.Error(err)
	}
}

func TestKeyIsChecked(t *testing.T) {
	for _, k := range []Key{{"", testKey.Secret}, {"赞", testKey.Secret}, {"a", []byte("short")}} {
		if err := Sign(unsigned(), testBody, k, testNow); err == nil {
			t.Errorf("signed with key %q of %d bytes", k.ID, len(k.Secret))
		}
	}
}
