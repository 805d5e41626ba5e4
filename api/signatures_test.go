package api

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tidemark/tidemark/client"
	"github.com/tidemark/tidemark/internal/signature"
)

var signingKey = signature.Key{ID: "app-1", Secret: bytes.Repeat([]byte("s"), 32)}

// newSigningAPI needs signatures for the classes.
func newSigningAPI(t testing.TB, required ...string) *testAPI {
	t.Helper()
	ta := newTestAPI(t, &fakeStore{})
	checks, err := newSignatures(&Signatures{Required: required, Verifier: signature.Verifier{
		Secret: func(id string) []byte {
			if id == signingKey.ID {
				return signingKey.Secret
			}
			return nil
		},
		MaxAge: time.Minute, Now: func() time.Time { return testTime },
	}}, ta.reg)
	if err != nil {
		t.Fatal(err)
	}
	ta.api.signatures = checks
	return ta
}

// sign signs r as the client library does.
func sign(t testing.TB, r *http.Request, body string, at time.Time) *http.Request {
	t.Helper()
	if err := signature.Sign(r, []byte(body), signingKey, at); err != nil {
		t.Fatal(err)
	}
	return r
}

func (ta *testAPI) signatures(class, result string) float64 {
	return valueOf(ta.t, ta.api.signatures.results.WithLabelValues(class, result))
}

const likeBody = `{"desiredState":"LIKED"}`

// A class that needs a signature has nothing decided without one; the refusal
// says what to sign, and others go on as before.
func TestSignaturesAreNeeded(t *testing.T) {
	ta := newSigningAPI(t, "like")
	res := expectProblem(t, ta, request(t, http.MethodPut, likePath, likeBody), 401, "signature-invalid", "header.Signature-Input")
	if got := res.Header.Get("Accept-Signature"); !strings.Contains(got, `"content-digest" "authorization" "idempotency-key");created;keyid`) {
		t.Errorf("Accept-Signature is %q", got)
	}
	if got := res.Header.Get("WWW-Authenticate"); got != "Signature" {
		t.Errorf("WWW-Authenticate is %q", got)
	}
	ta.do(request(t, http.MethodPut, "/v1/videos/V9001/favorite-relation", `{"desiredState":"FAVORITED"}`), 200, nil)
	r := request(t, http.MethodPut, likePath, likeBody)
	r.Header.Set("Idempotency-Key", "op-102")
	ta.do(sign(t, r, likeBody, testTime), 200, nil)
	if len(ta.store.commands) != 2 {
		t.Errorf("decided: %v", ta.store.commands)
	}
	if missing, ok := ta.signatures("like", "missing"), ta.signatures("like", "ok"); missing != 1 || ok != 1 {
		t.Errorf("counted %v without a signature, %v good ones", missing, ok)
	}
}

// A signature that is sent where none is needed must be right all the same.
func TestWrongSignaturesAreRefused(t *testing.T) {
	ta := newSigningAPI(t)
	ta.do(request(t, http.MethodPut, likePath, likeBody), 200, nil)
	ta.store.commands = nil
	for reason, r := range map[signature.Reason]*http.Request{
		signature.OutsideTime: sign(t, request(t, http.MethodPut, likePath, likeBody), likeBody, testTime.Add(-2*time.Minute)),
		signature.WrongDigest: sign(t, request(t, http.MethodPut, likePath, likeBody), `{"desiredState":"UNLIKED"}`, testTime),
		signature.NotOurs:     sign(t, request(t, http.MethodPut, likePath+"?", likeBody), likeBody, testTime),
	} {
		if reason == signature.NotOurs {
			r.Header.Set("Idempotency-Key", "op-103")
		}
		expectProblem(t, ta, r, 401, "signature-invalid", "")
		if n := ta.signatures("like", string(reason)); n != 1 {
			t.Errorf("%s is counted %v times", reason, n)
		}
	}
	if len(ta.store.commands) != 0 {
		t.Errorf("decided: %v", ta.store.commands)
	}
	expectProblem(t, ta, request(t, http.MethodPut, likePath, strings.Repeat("a", MaxBodyBytes+1)), 413, "body-too-large", "body")
}

// A signed request that was recorded and is sent again is a retry within its
// time, and nothing after it.
func TestSignedReplay(t *testing.T) {
	ta := newSigningAPI(t, "like")
	now := testTime
	ta.api.signatures.Verifier.Now = func() time.Time { return now }
	again := func() *http.Request {
		return sign(t, request(t, http.MethodPut, likePath, likeBody), likeBody, testTime)
	}
	var first, second CommandAnswer
	ta.do(again(), 200, &first)
	now = now.Add(time.Minute)
	ta.do(again(), 200, &second)
	if first.Replayed || !second.Replayed || second.RelationVersion != 1 {
		t.Errorf("answers %+v, %+v", first, second)
	}
	now = now.Add(time.Second)
	expectProblem(t, ta, again(), 401, "signature-invalid", "header.Signature-Input")
}

// The client library signs each attempt with the key of then: a command that is
// refused for its key is decided once the client, or the key file, has another.
func TestClientLibrarySigns(t *testing.T) {
	path := filepath.Join(t.TempDir(), "signing-keys.json")
	write := func(keys ...signature.Key) {
		t.Helper()
		var set []string
		for _, k := range keys {
			set = append(set, fmt.Sprintf(`{"kty":"oct","kid":%q,"k":%q}`, k.ID, b64(string(k.Secret))))
		}
		if err := os.WriteFile(path, []byte(jwksOf(set...)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	next := signature.Key{ID: "app-2", Secret: bytes.Repeat([]byte("n"), 48)}
	write(signingKey)
	keys, err := signature.OpenKeys(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	ta := newSigningAPI(t, "like")
	ta.api.signatures.Verifier = signature.Verifier{Secret: keys.Secret, MaxAge: time.Minute, Now: time.Now}
	server := httptest.NewServer(ta.api)
	defer server.Close()
	var key atomic.Pointer[signature.Key]
	key.Store(&signingKey)
	c, err := client.Open(client.Config{
		URL: server.URL, User: "u7", RetryMin: time.Millisecond, RetryMax: 50 * time.Millisecond,
		Token:      func(context.Context) (string, error) { return mint(t, "u7"), nil },
		SigningKey: func(context.Context) (client.SigningKey, error) { return *key.Load(), nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }() // without a journal there is nothing to lose
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if v, err := c.SetAndSettle(ctx, client.Like("V1"), client.Liked); err != nil || v.Confirmed.Version != 1 {
		t.Fatalf("%+v, error %v", v, err)
	}
	key.Store(&next)
	if err := c.Set(client.Like("V1"), client.Disliked); err != nil {
		t.Fatal(err)
	}
	for ta.signatures("like", string(signature.UnknownKey)) == 0 && ctx.Err() == nil {
		runtime.Gosched()
	}
	write(signingKey, next)
	if v, err := c.Settle(ctx, client.Like("V1")); err != nil || v.Confirmed.Version != 2 || v.State != client.Disliked {
		t.Errorf("with the new key: %+v, error %v", v, err)
	}
}

// Every operation that changes something has a class, so that a deployment can
// ask for its signature, and each class has its operations.
func TestChangesHaveAClass(t *testing.T) {
	ta := newTestAPI(t, &fakeStore{})
	var classes []string
	for path, item := range ta.api.huma.OpenAPI().Paths {
		for _, op := range []*huma.Operation{item.Put, item.Post, item.Patch, item.Delete} {
			if op == nil || strings.HasSuffix(path, "/batch-query") {
				continue
			}
			signed := slices.ContainsFunc(op.Parameters, func(p *huma.Param) bool { return p.Name == "Signature" })
			if !signed {
				t.Errorf("%s %s changes something and cannot be signed: give it a class", op.Method, path)
			}
			classes = append(classes, fmt.Sprint(op.Method, " ", path))
		}
	}
	if len(classes) != len(signature.Classes) {
		t.Errorf("%d operations change something (%v), %d classes", len(classes), classes, len(signature.Classes))
	}
}

// What the signing headers hold never makes the server's mistake, and without
// the key no command is decided.
func FuzzSignatureHeaders(f *testing.F) {
	r := sign(f, request(f, http.MethodPut, likePath, likeBody), likeBody, testTime)
	f.Add(r.Header.Get("Signature-Input"), r.Header.Get("Signature"), r.Header.Get("Content-Digest"))
	f.Add(`a=("@path";sf 1 :AA==:);created=1.0;keyid="app-1";tag="tidemark"`, "a=?1", "sha-256=1")
	ta := newSigningAPI(f, "like")
	ta.api.signatures.Verifier.Secret = func(string) []byte { return make([]byte, 32) }
	token := mint(f, "u7")
	f.Fuzz(func(t *testing.T, input, sum, digest string) {
		r := request(t, http.MethodPut, likePath, likeBody)
		r.Header.Set("Authorization", "Bearer "+token)
		r.Header["Signature-Input"], r.Header["Signature"], r.Header["Content-Digest"] = []string{input}, []string{sum}, []string{digest}
		if status, body := neverWorse(t, ta, r); status != 401 {
			t.Fatalf("status %d: %s", status, body)
		}
	})
}
