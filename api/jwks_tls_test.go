package api

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/lestrrat-go/jwx/v3/jwa"

	"github.com/tidemark/tidemark/internal/testenv"
	"github.com/tidemark/tidemark/internal/tlsfiles"
)

// privateIssuer serves a JWKS with a certificate that only ca signed.
func privateIssuer(t *testing.T, ca *testenv.Authority, h http.Handler) (url, certFile, keyFile string) {
	t.Helper()
	certFile, keyFile = ca.Issue(t, testenv.Certificate{})
	tls, err := tlsfiles.NewServer(tlsfiles.ServerConfig{Files: tlsfiles.Files{Setting: "issuer", Cert: certFile, Key: keyFile}})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: h, ReadHeaderTimeout: time.Second}
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(tls.Listener(l)) }()
	t.Cleanup(func() { _ = s.Close(); <-done })
	return "https://" + l.Addr().String() + "/keys", certFile, keyFile
}

func issuerKeys(t *testing.T, url, caFile string) (*Verifier, *keySet) {
	t.Helper()
	client, err := tlsfiles.NewClient(tlsfiles.ClientConfig{Files: tlsfiles.Files{Setting: "auth.jwks_tls", CA: caFile}})
	if err != nil {
		t.Fatal(err)
	}
	v, err := NewVerifier(AuthConfig{JWKSURL: url, Dial: client.Dial})
	if err != nil {
		t.Fatal(err)
	}
	keys := v.keys.(*keySet)
	t.Cleanup(keys.client.CloseIdleConnections)
	return v, keys
}

// An issuer with a certificate of a private authority is believed by it, and
// goes on to another authority without a restart of who asks.
func TestJWKSOfAPrivateAuthority(t *testing.T) {
	now := time.Now()
	key := newSigner(t, jwa.ES256(), "k1")
	ca := testenv.NewAuthority(t)
	url, certFile, keyFile := privateIssuer(t, ca, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, jwksOf(key.jwk(t, nil)))
	}))
	v, keys := issuerKeys(t, url, ca.File)
	keys.refresh(t.Context())
	if err := v.Ready(); err != nil {
		t.Fatal(err)
	}
	wantUser(t, v, key.token(t, now))

	next := testenv.NewAuthority(t)
	next.IssueTo(t, testenv.Certificate{}, certFile, keyFile)
	keys.client.CloseIdleConnections()
	keys.refresh(t.Context())
	if err := keys.failure(); err == nil || !strings.Contains(err.Error(), "auth.jwks_tls.ca_file") {
		t.Errorf("fetched from an authority that is not believed: %v", err)
	}
	pem, err := os.ReadFile(next.File)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(ca.File, append(pem, '\n'), 0o600); err != nil {
		t.Fatal(err)
	}
	keys.refresh(t.Context())
	if err := keys.failure(); err != nil {
		t.Errorf("with the new authority in the file: %v", err)
	}
}

// A wrong authority leaves the process not ready, and readiness says which
// setting decides it; so does an issuer that leads elsewhere without TLS.
func TestJWKSOfAWrongAuthority(t *testing.T) {
	ca := testenv.NewAuthority(t)
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { t.Error("asked without TLS") }))
	defer plain.Close()
	url, _, _ := privateIssuer(t, ca, http.RedirectHandler(plain.URL, http.StatusFound))
	for file, want := range map[string]string{
		testenv.NewAuthority(t).File: "auth.jwks_tls.ca_file does not have the authority",
		ca.File:                      "redirects from https to http",
	} {
		v, keys := issuerKeys(t, url, file)
		keys.refresh(t.Context())
		if err := v.Ready(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ready: %v, want %q", err, want)
		}
	}
}
