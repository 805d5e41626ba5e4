package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/tidemark/tidemark/internal/config"
	"github.com/tidemark/tidemark/internal/embedded"
	"github.com/tidemark/tidemark/internal/kafkaaccess"
	"github.com/tidemark/tidemark/internal/testenv"
	"github.com/tidemark/tidemark/internal/tlsfiles"
)

// kafkaSecret and redisSecret must be in no log and no error.
const (
	kafkaSecret = "hunter2-of-kafka"
	redisSecret = "hunter2-of-redis"
)

// encrypted is infrastructure that speaks TLS alone where it can, and asks who
// comes.
type encrypted struct {
	ours, theirs *testenv.Authority
	cfg          config.Config
	control      string // its URL with a client that does not check
	cache        *miniredis.Miniredis
	database     *embedded.Postgres
	startAgain   func() // the database, where it was
	databaseLog  string // file
}

func newEncrypted(t *testing.T) *encrypted {
	t.Helper()
	e := &encrypted{ours: testenv.NewAuthority(t), theirs: testenv.NewAuthority(t), cfg: config.Default()}
	home := t.TempDir()
	c := &e.cfg
	c.Shards, c.CountPartitions, c.DisplayPartitions, c.LikerPartitions, c.ReverseShards = 2, 2, 2, 2, 4
	c.StateDir, c.SealInterval, c.Log.Level = filepath.Join(home, "state"), 200*time.Millisecond, "debug"
	c.API.Listen, c.Ops.Listen, c.Exports.Dir = "127.0.0.1:0", "127.0.0.1:0", filepath.Join(home, "exports")
	e.postgres(t)
	e.kafka(t)
	e.redis(t)
	cert, key := e.ours.Issue(t, testenv.Certificate{Names: []string{"tidemark.example"}})
	c.API.TLS = config.ListenTLS{CertFile: cert, KeyFile: key}
	c.Ops.TLS = config.ListenTLS{CertFile: cert, KeyFile: key, ClientCAFile: e.ours.File}
	c.Likers.TLS = config.TLS{Enabled: true, CAFile: e.ours.File, CertFile: cert, KeyFile: key, ServerName: "tidemark.example"}
	c.Likers.ClientNames = []string{"tidemark.example"}
	c.Auth.HS256KeyFile = filepath.Join(home, "token-key")
	writeSecret(t, c.Auth.HS256KeyFile, strings.Repeat("k", 40))
	page := filepath.Join(home, "page-key")
	writeSecret(t, page, strings.Repeat("p", 40))
	c.API.PageTokenKeyFiles = []string{page}
	return e
}

func writeSecret(t *testing.T, path, secret string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(secret), 0o600); err != nil {
		t.Fatal(err)
	}
}

// postgres starts the server twice: it makes its data as a user of its own, to
// whom the key must belong.
func (e *encrypted) postgres(t *testing.T) {
	t.Helper()
	dir := testenv.ServerDir(t)
	start := func(settings map[string]string) *embedded.Postgres {
		p, err := embedded.StartPostgres(t.Context(), embedded.PostgresConfig{DataDir: dir, Settings: settings})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	p := start(nil)
	if err := p.Stop(); err != nil {
		t.Fatal(err)
	}
	cert, key := filepath.Join(dir, "server.pem"), filepath.Join(dir, "server.key")
	e.ours.IssueTo(t, testenv.Certificate{}, cert, key)
	info, err := os.Stat(filepath.Join(dir, "data"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(key, int(info.Sys().(*syscall.Stat_t).Uid), -1); err != nil {
		t.Fatal(err)
	}
	e.startAgain = func() {
		e.database = start(map[string]string{"ssl": "on", "ssl_cert_file": cert, "ssl_key_file": key})
	}
	e.startAgain()
	p, e.databaseLog = e.database, filepath.Join(dir, "server.log")
	t.Cleanup(func() {
		if err := e.database.Stop(); err != nil {
			t.Error(err)
		}
	})
	for _, name := range []string{"control", "shard0", "shard1"} {
		if err := p.CreateDatabase(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	e.control = p.URL("control")
	e.cfg.Control = verified(t, e.control, e.ours)
	e.cfg.Postgres = []string{verified(t, p.URL("shard0"), e.ours), verified(t, p.URL("shard1"), e.ours)}
}

// verified is a URL with which the server's certificate is checked.
func verified(t *testing.T, raw string, by *testenv.Authority) string {
	t.Helper()
	u, err := url.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	q.Set("sslmode", "verify-full")
	q.Set("sslrootcert", by.File)
	u.RawQuery = q.Encode()
	return u.String()
}

func (e *encrypted) server(t *testing.T) *tlsfiles.Server {
	t.Helper()
	var cfg tlsfiles.ServerConfig
	cfg.CA = e.ours.File
	cfg.Cert, cfg.Key = e.ours.Issue(t, testenv.Certificate{})
	s, err := tlsfiles.NewServer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (e *encrypted) clientTLS(t *testing.T) config.TLS {
	t.Helper()
	cert, key := e.ours.Issue(t, testenv.Certificate{})
	return config.TLS{Enabled: true, CAFile: e.ours.File, CertFile: cert, KeyFile: key}
}

func (e *encrypted) kafka(t *testing.T) {
	t.Helper()
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.GroupMinSessionTimeout(500*time.Millisecond), kfake.BrokerConfigs(map[string]string{"default.replication.factor": "1"}),
		kfake.TLS(e.server(t).Config()), kfake.EnableSASL(), kfake.Superuser(kafkaaccess.ScramSHA512, "tidemark", kafkaSecret))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	file := filepath.Join(t.TempDir(), "kafka-password")
	writeSecret(t, file, kafkaSecret)
	e.cfg.Kafka = config.Kafka{
		Brokers: c.ListenAddrs(), TLS: e.clientTLS(t), SASL: config.SASL{Mechanism: kafkaaccess.ScramSHA512, User: "tidemark", PasswordFile: file},
	}
}

func (e *encrypted) redis(t *testing.T) {
	t.Helper()
	r := miniredis.NewMiniRedis()
	if err := r.StartTLS(e.server(t).Config()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	r.RequireAuth(redisSecret)
	e.cache = r
	e.cfg.Redis, e.cfg.RedisTLS = "rediss://:"+redisSecret+"@"+r.Addr(), e.clientTLS(t)
}

// write is a configuration file after change.
func (e *encrypted) write(t *testing.T, change func(*config.Config)) string {
	t.Helper()
	cfg := e.cfg
	if change != nil {
		change(&cfg)
	}
	path := filepath.Join(t.TempDir(), config.FileName)
	if err := cfg.Write(path); err != nil {
		t.Fatal(err)
	}
	return path
}

// https is a client of the listeners, with or without a certificate.
func (e *encrypted) https(t *testing.T, certificate bool) *http.Client {
	t.Helper()
	cfg := tlsfiles.ClientConfig{ServerName: "tidemark.example"}
	cfg.CA = e.ours.File
	if certificate {
		cfg.Cert, cfg.Key = e.ours.Issue(t, testenv.Certificate{})
	}
	c, err := tlsfiles.NewClient(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return &http.Client{Transport: &http.Transport{DialTLSContext: c.Dial, DisableKeepAlives: true}, Timeout: patience}
}

func fetch(t *testing.T, c *http.Client, method, url, token string, body any) (status int, answer string, err error) {
	t.Helper()
	b, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), method, url, bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Idempotency-Key", rand8())
	res, err := c.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = res.Body.Close() }()
	got, err := io.ReadAll(res.Body)
	return res.StatusCode, string(got), err
}

func rand8() string { return newRunID()[:13] }

// TestEncryptedSystem runs every role where nothing is sent unencrypted: both
// Kafka libraries with TLS, a client's certificate and SCRAM; PostgreSQL with
// its certificate checked, replication included; Redis; owners of lists; the
// API and the operators' interface. Who cannot show what is asked for is
// refused, in words that help and have no secret.
func TestEncryptedSystem(t *testing.T) {
	e := newEncrypted(t)
	file := e.write(t, nil)
	must(t, exitOK, "schema", "migrate", "--config", file)
	must(t, exitOK, "topology", "create", "--config", file)
	r := run(t, append([]string{"run", "--config", file}, roleNames...)...)
	r.await(t, readyLine)
	ops, api := strings.Fields(r.await(t, "operators"))[1], strings.Fields(r.await(t, "API"))[1]
	if !strings.HasPrefix(ops, "https://127.0.0.1:") || !strings.HasPrefix(api, "https://127.0.0.1:") {
		t.Fatalf("operators at %s, API at %s", ops, api)
	}

	token := strings.TrimSpace(must(t, exitOK, "token", "--user", "u1", "--config", file).out)
	anyone := e.https(t, false)
	status, answer, err := fetch(t, anyone, http.MethodPut, api+"/v1/videos/V1/like-relation", token, map[string]string{"desiredState": "LIKED"})
	if status != http.StatusOK || err != nil {
		t.Fatalf("liking: %d %s, %v", status, answer, err)
	}
	eventually(t, func() error {
		_, count, err := fetch(t, anyone, http.MethodGet, api+"/v1/targets/like/V1/count", token, nil)
		if err != nil || !strings.Contains(count, `"displayCount":1`) {
			return fmt.Errorf("count %s, %w", count, err)
		}
		_, likers, err := fetch(t, anyone, http.MethodGet, api+"/v1/videos/V1/likers", token, nil)
		if err != nil || !strings.Contains(likers, `"u1"`) {
			return fmt.Errorf("likers %s, %w", likers, err)
		}
		return nil
	})
	wantVerdict(t, exitOK, "--config", file)
	e.noneInTheClear(t)

	if status, _, err := fetch(t, e.https(t, true), http.MethodGet, ops, "", nil); status != http.StatusOK || err != nil {
		t.Errorf("an operator with a certificate: %d, %v", status, err)
	}
	if _, _, err := fetch(t, anyone, http.MethodGet, ops, "", nil); err == nil {
		t.Error("operators need no certificate")
	}
	if _, _, err := get(t, strings.Replace(api, "https:", "http:", 1)+"/openapi.json"); err == nil {
		status, body, _ := get(t, strings.Replace(api, "https:", "http:", 1)+"/openapi.json")
		if status == http.StatusOK {
			t.Errorf("the API answers without TLS: %s", clip(body))
		}
	}
	e.refusals(t)
	for _, secret := range []string{kafkaSecret, redisSecret, token, "PRIVATE KEY"} {
		if log := r.errOut.String(); strings.Contains(log, secret) {
			t.Errorf("the log has %q", secret)
		}
	}
	if code := r.stop(t); code != exitOK {
		t.Errorf("exit %d", code)
	}
}

// noneInTheClear asks PostgreSQL which connections have no TLS: none of the
// system's, of which some stream the write-ahead log.
func (e *encrypted) noneInTheClear(t *testing.T) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), e.control)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	var all, clear, senders int
	err = conn.QueryRow(t.Context(), `SELECT count(*), count(*) FILTER (WHERE NOT s.ssl), count(*) FILTER (WHERE a.backend_type = 'walsender')
		FROM pg_stat_activity a JOIN pg_stat_ssl s USING (pid) WHERE a.client_addr IS NOT NULL AND a.pid <> pg_backend_pid()`).Scan(&all, &clear, &senders)
	if err != nil || all < 5 || clear > 0 || senders != 2 {
		t.Errorf("of %d connections %d are in the clear, %d stream the log, %v; want 0 and 2", all, clear, senders, err)
	}
}

// refusals asks the doctor about configurations that are wrong in one thing.
func (e *encrypted) refusals(t *testing.T) {
	t.Helper()
	wrong := filepath.Join(t.TempDir(), "wrong-password")
	writeSecret(t, wrong, "no-"+kafkaSecret)
	for name, test := range map[string]struct {
		change func(*config.Config)
		want   []string
	}{
		"PostgreSQL of another authority": {func(c *config.Config) {
			c.Control = verified(t, e.control, e.theirs)
		}, []string{"certificate signed by unknown authority"}},
		"Kafka of another authority": {func(c *config.Config) { c.Kafka.TLS.CAFile = e.theirs.File }, []string{"kafka.tls.ca_file does not have the authority"}},
		"Kafka by another name":      {func(c *config.Config) { c.Kafka.TLS.ServerName = "other.example" }, []string{"set kafka.tls.server_name"}},
		"no certificate for Kafka": {func(c *config.Config) { c.Kafka.TLS.CertFile, c.Kafka.TLS.KeyFile = "", "" },
			[]string{"tls: certificate required"}},
		"a wrong password of Kafka":  {func(c *config.Config) { c.Kafka.SASL.PasswordFile = wrong }, []string{"Kafka"}},
		"no password file":           {func(c *config.Config) { c.Kafka.SASL.PasswordFile = "/absent" }, []string{"reading kafka.sasl.password_file"}},
		"Redis of another authority": {func(c *config.Config) { c.RedisTLS.CAFile = e.theirs.File }, []string{"redis_tls.ca_file does not have the authority"}},
		"a wrong password of Redis":  {func(c *config.Config) { c.Redis = strings.Replace(c.Redis, redisSecret, "no-"+redisSecret, 1) }, []string{"WRONGPASS"}},
	} {
		result := call(t, "doctor", "--config", e.write(t, test.change))
		all := result.out + result.errOut
		for _, want := range test.want {
			if !strings.Contains(all, want) {
				t.Errorf("%s: the doctor does not say %q:\n%s", name, want, all)
			}
		}
		for _, secret := range []string{kafkaSecret, redisSecret} {
			if strings.Contains(all, secret) {
				t.Errorf("%s: the doctor says a password", name)
			}
		}
	}
}
