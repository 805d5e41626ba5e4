package tlsfiles_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tidemark/tidemark/internal/testenv"
	"github.com/tidemark/tidemark/internal/tlsfiles"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// echo answers every connection with what it hears, behind a server's TLS.
func echo(t *testing.T, server *tlsfiles.Server) (address string) {
	t.Helper()
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := server.Listener(raw)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.SetDeadline(time.Now().Add(10 * time.Second))
			_, _ = io.Copy(c, io.LimitReader(c, 4)) // a refused client gets nothing
			_ = c.Close()
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-done })
	return raw.Addr().String()
}

// talk dials and hears its own words; with TLS 1.3 a server refuses a client's
// certificate only after the client's handshake.
func talk(t *testing.T, c *tlsfiles.Client, address string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	conn, err := c.Dial(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if _, err := conn.Write([]byte("ping")); err != nil {
		return err
	}
	heard := make([]byte, 4)
	if _, err := io.ReadFull(conn, heard); err != nil {
		return err
	}
	if string(heard) != "ping" {
		return errors.New("heard something else")
	}
	return nil
}

func newServer(t *testing.T, cfg tlsfiles.ServerConfig) *tlsfiles.Server {
	t.Helper()
	cfg.Setting = "api.tls"
	s, err := tlsfiles.NewServer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func newClient(t *testing.T, cfg tlsfiles.ClientConfig) *tlsfiles.Client {
	t.Helper()
	cfg.Setting = "kafka.tls"
	c, err := tlsfiles.NewClient(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Whoever cannot prove what the other side asks for is refused, and the error
// says by which setting.
func TestHandshakes(t *testing.T) {
	ours, theirs := testenv.NewAuthority(t), testenv.NewAuthority(t)
	now := time.Now()
	type side struct {
		by          *testenv.Authority
		certificate testenv.Certificate
	}
	good := &side{ours, testenv.Certificate{Names: []string{"kafka.example"}}}
	client := &side{ours, testenv.Certificate{Names: []string{"queries.example"}}}
	for name, test := range map[string]struct {
		server, client *side
		believes       *testenv.Authority // of the client; nil: the system's
		asksFor        string             // name
		clientNames    []string
		anyClient      bool
		want           string // in the error; "": it works
	}{
		"both are who they say":      {server: good, client: client, believes: ours},
		"by the name of the setting": {server: good, client: client, believes: ours, asksFor: "kafka.example"},
		"a client of a listed name":  {server: good, client: client, believes: ours, clientNames: []string{"x.example", "queries.example"}},
		"no certificate asked for":   {server: good, believes: ours, anyClient: true},
		"another authority":          {server: good, client: client, believes: theirs, want: "kafka.tls.ca_file does not have the authority"},
		"the system's authorities":   {server: good, client: client, want: "kafka.tls.ca_file does not have the authority"},
		"another name":               {server: good, client: client, believes: ours, asksFor: "other.example", want: "set kafka.tls.server_name"},
		"a name, but not the address dialed": {
			server: &side{ours, testenv.Certificate{Names: []string{"kafka.example"}, WithoutIP: true}}, client: client, believes: ours, want: "set kafka.tls.server_name"},
		"an expired server": {
			server: &side{ours, testenv.Certificate{From: now.Add(-2 * time.Hour), Until: now.Add(-time.Minute)}}, client: client, believes: ours, want: "renew it"},
		"a server of tomorrow": {
			server: &side{ours, testenv.Certificate{From: now.Add(time.Hour), Until: now.Add(2 * time.Hour)}}, client: client, believes: ours, want: "not valid now"},
		"no client certificate": {server: good, believes: ours, want: "tls: certificate required"},
		"a client of another authority": {
			server: good, client: &side{theirs, testenv.Certificate{}}, believes: ours, want: "tls: "},
		"an expired client": {
			server: good, client: &side{ours, testenv.Certificate{From: now.Add(-2 * time.Hour), Until: now.Add(-time.Minute)}}, believes: ours, want: "tls: "},
		"a client of another name": {server: good, client: client, believes: ours, clientNames: []string{"x.example"}, want: "tls: "},
	} {
		t.Run(name, func(t *testing.T) {
			var server tlsfiles.ServerConfig
			server.Cert, server.Key = test.server.by.Issue(t, test.server.certificate)
			if server.ClientNames = test.clientNames; !test.anyClient {
				server.CA = ours.File
			}
			cfg := tlsfiles.ClientConfig{ServerName: test.asksFor}
			if test.believes != nil {
				cfg.CA = test.believes.File
			}
			if test.client != nil {
				cfg.Cert, cfg.Key = test.client.by.Issue(t, test.client.certificate)
			}
			err := talk(t, newClient(t, cfg), echo(t, newServer(t, server)))
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("error %v, want %q", err, test.want)
			}
			if err != nil && strings.Contains(err.Error(), "PRIVATE") {
				t.Errorf("the error has a key: %v", err)
			}
		})
	}
}

func TestPeerWithoutTLS(t *testing.T) {
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	if err := talk(t, newClient(t, tlsfiles.ClientConfig{}), plain.Listener.Addr().String()); err == nil || !strings.Contains(err.Error(), "does not speak TLS") {
		t.Errorf("error %v", err)
	}
}

// A certificate and the authorities are renewed under a running server and
// client; what is half-written changes nothing.
func TestRenewal(t *testing.T) {
	before, after := testenv.NewAuthority(t), testenv.NewAuthority(t)
	var log bytes.Buffer
	server := tlsfiles.ServerConfig{Logger: slog.New(slog.NewTextHandler(&log, nil))}
	server.Cert, server.Key = before.Issue(t, testenv.Certificate{})
	server.CA = t.TempDir() + "/clients.pem"
	replace(t, server.CA, read(t, before.File))
	var client tlsfiles.ClientConfig
	client.CA = t.TempDir() + "/servers.pem"
	replace(t, client.CA, read(t, before.File))
	client.Cert, client.Key = before.Issue(t, testenv.Certificate{})
	c, address := newClient(t, client), echo(t, newServer(t, server))
	works := func(when string) {
		t.Helper()
		if err := talk(t, c, address); err != nil {
			t.Errorf("%s: %v", when, err)
		}
	}
	works("at first")

	good := read(t, server.Key)
	replace(t, server.Key, good[:len(good)/2])
	works("with half a key")
	works("and once more")
	if n := strings.Count(log.String(), "api.tls.cert_file and api.tls.key_file"); n != 1 {
		t.Errorf("half a key is logged %d times, want once:\n%s", n, log.String())
	}

	after.IssueTo(t, testenv.Certificate{}, server.Cert, server.Key)
	if err := talk(t, c, address); err == nil || !strings.Contains(err.Error(), "kafka.tls.ca_file") {
		t.Errorf("the server's new certificate is not shown, or believed: %v", err)
	}
	replace(t, client.CA, nil)
	if err := talk(t, c, address); err == nil || !strings.Contains(err.Error(), "no PEM certificate") {
		t.Errorf("an empty file of authorities is not named beside the failure: %v", err)
	}
	replace(t, client.CA, append(read(t, before.File), read(t, after.File)...))
	works("after the client believes both")

	replace(t, server.CA, read(t, after.File))
	if err := talk(t, c, address); err == nil {
		t.Error("the server still believes the authority that was taken away")
	}
	after.IssueTo(t, testenv.Certificate{}, client.Cert, client.Key)
	works("with everything renewed")
}

func TestFilesThatCannotBeUsed(t *testing.T) {
	ours := testenv.NewAuthority(t)
	cert, key := ours.Issue(t, testenv.Certificate{})
	_, other := ours.Issue(t, testenv.Certificate{})
	for want, f := range map[string]tlsfiles.Files{
		"reading s.ca_file":                     {CA: "absent"},
		"has no PEM certificate":                {CA: key},
		"reading s.clients":                     {CA: "absent", CASetting: "clients"},
		"reading s.cert_file: stat absent":      {Cert: "absent", Key: key},
		"reading s.cert_file and s.key_file: ":  {Cert: cert, Key: other},
		"reading s.cert_file and s.key_file: t": {Cert: key, Key: cert},
	} {
		f.Setting = "s"
		_, err := tlsfiles.NewClient(tlsfiles.ClientConfig{Files: f})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("client: error %v, want one with %q", err, want)
		}
	}
	if _, err := tlsfiles.NewServer(tlsfiles.ServerConfig{Files: tlsfiles.Files{Setting: "s"}}); err == nil {
		t.Error("a server without a certificate")
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func replace(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}
