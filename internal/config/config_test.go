package config

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

func write(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), FileName)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestDefaultIsValid(t *testing.T) {
	c, err := Load("")
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(c, Default()) {
		t.Errorf("Load(\"\") = %+v, want the defaults", c)
	}
	c.Kafka.Brokers = append(c.Kafka.Brokers, "a:1")
	if len(Default().Kafka.Brokers) != 0 {
		t.Error("the defaults are shared")
	}
}

// The example names every setting, with the default where there is one.
func TestExample(t *testing.T) {
	c, err := Load(write(t, Example))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range settings(&c) {
		last := s.path[strings.LastIndexByte(s.path, '.')+1:]
		if !strings.Contains(Example, last+":") {
			t.Errorf("example.yaml lacks %s", s.path)
		}
	}
	d := Default()
	c.Postgres, c.Control, c.Kafka, c.Redis, c.RedisTLS, c.RedisAuth, c.Auth = d.Postgres, d.Control, d.Kafka, d.Redis, d.RedisTLS, d.RedisAuth, d.Auth
	if !reflect.DeepEqual(c, d) {
		t.Errorf("example.yaml has\n%+v, the defaults are\n%+v", c, d)
	}
}

func TestEnvironmentWins(t *testing.T) {
	path := write(t, "shards: 2\nkafka:\n  brokers: [file:1]\nseal_interval: 1s\n")
	t.Setenv("TIDEMARK_KAFKA_BROKERS", "a:1, b:2")
	t.Setenv("TIDEMARK_POSTGRES", "postgres://u@h1,h2/s0\npostgres://u@h/s1")
	t.Setenv("TIDEMARK_REFRESH_INTERVAL", "20ms")
	t.Setenv("TIDEMARK_HOT_STANDBY", "true")
	t.Setenv("TIDEMARK_COUNT_PARTITIONS", "16")
	t.Setenv("TIDEMARK_SERVICE_HOST", "10.0.0.1") // an orchestrator's
	c, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.Shards, want.CountPartitions, want.HotStandby = 2, 16, true
	want.Kafka.Brokers = []string{"a:1", "b:2"}
	want.Postgres = []string{"postgres://u@h1,h2/s0", "postgres://u@h/s1"}
	want.RefreshInterval, want.SealInterval = 20*time.Millisecond, time.Second
	if !reflect.DeepEqual(c, want) {
		t.Errorf("got\n%+v, want\n%+v", c, want)
	}
}

func TestLoadRefuses(t *testing.T) {
	for name, test := range map[string]struct{ file, want string }{
		"unknown setting":    {"shard: 4\n", "shard is not a setting"},
		"unknown in section": {"kafka:\n  broker: [a:1]\n", "kafka.broker is not a setting"},
		"not YAML":           {"shards: [\n", FileName},
		"not a number":       {"shards: many\n", "shards"},
		"not a duration":     {"seal_interval: soon\n", "seal_interval"},
		"invalid value":      {"seal_interval: 1ms\n", "seal_interval is 1ms, not in 50ms..1h0m0s"},
		"too large":          {"# " + strings.Repeat("x", maxFileBytes), "more than"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Load(write(t, test.file))
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want one with %q", err, test.want)
			}
		})
	}
	if _, err := Load(filepath.Join(t.TempDir(), "absent.yaml")); err == nil {
		t.Error("an absent file is accepted")
	}
	if _, err := Load(write(t, "kafka:\nauth: {}\n")); err != nil {
		t.Errorf("empty sections: %v", err)
	}
}

func TestValidateNamesTheField(t *testing.T) {
	for want, change := range map[string]func(*Config){
		"prefix":                          func(c *Config) { c.Prefix = "A" },
		"shards":                          func(c *Config) { c.Shards = 0 },
		"count partitions":                func(c *Config) { c.CountPartitions = 5000 },
		"display partitions":              func(c *Config) { c.DisplayPartitions = 0 },
		"replication factor":              func(c *Config) { c.ReplicationFactor = 0 },
		"retention":                       func(c *Config) { c.Retention = time.Minute },
		"postgres has 1 URLs":             func(c *Config) { c.Postgres = []string{"postgres://h/a"} },
		"postgres[1] is not a":            func(c *Config) { c.Shards, c.Postgres = 2, []string{"postgres://h/a", "mysql://h/b"} },
		"postgres[1] is the URL":          func(c *Config) { c.Shards, c.Postgres = 2, []string{"postgres://h/a", "postgres://h/a"} },
		"control":                         func(c *Config) { c.Control = "postgres://h:port/c" },
		"kafka.brokers[0]":                func(c *Config) { c.Kafka.Brokers = []string{"localhost"} },
		"kafka.brokers[1]":                func(c *Config) { c.Kafka.Brokers = []string{"h:1", "h:0"} },
		"kafka.tls.cert_file":             func(c *Config) { c.Kafka.TLS = TLS{Enabled: true, CertFile: "x"} },
		"kafka.tls.enabled":               func(c *Config) { c.Kafka.TLS = TLS{CAFile: "x"} },
		"redis":                           func(c *Config) { c.Redis = "localhost:6379" },
		"likers.listen":                   func(c *Config) { c.Likers.Listen = "8082" },
		"likers.advertise is not set":     func(c *Config) { c.Likers.Listen = "[::]:8082" },
		"likers.advertise \"0.0.0.0":      func(c *Config) { c.Likers.Advertise = "0.0.0.0:8082" },
		"max_standby_staleness":           func(c *Config) { c.Likers.MaxStandbyStaleness = 2 * time.Hour },
		"kafka.sasl.mechanism \"GSSAPI\"": func(c *Config) { c.Kafka.SASL = SASL{Mechanism: "GSSAPI", User: "u", PasswordFile: "f"} },
		"kafka.sasl.user":                 func(c *Config) { c.Kafka.SASL = SASL{Mechanism: "PLAIN", PasswordFile: "f"} },
		"kafka.sasl.password_file":        func(c *Config) { c.Kafka.SASL = SASL{Mechanism: "PLAIN", User: "u"} },
		"kafka.sasl.mechanism PLAIN sends": func(c *Config) {
			c.Kafka.SASL, c.Kafka.Brokers = SASL{Mechanism: "PLAIN", User: "u", PasswordFile: "f"}, []string{"kafka.example:9092"}
		},
		"redis has skip_verify":       func(c *Config) { c.Redis = "rediss://h:1/0?skip_verify=true" },
		"redis is a redis:// URL":     func(c *Config) { c.Redis, c.RedisTLS.Enabled = "redis://h:1", true },
		"redis_tls.cert_file":         func(c *Config) { c.RedisTLS = TLS{Enabled: true, CertFile: "x"} },
		"api.tls.cert_file":           func(c *Config) { c.API.TLS.KeyFile = "x" },
		"ops.tls.client_ca_file":      func(c *Config) { c.Ops.TLS.ClientCAFile = "x" },
		"likers.client_names":         func(c *Config) { c.Likers.ClientNames = []string{"x"} },
		"control names a file":        func(c *Config) { c.Control = "postgres://u:hunter2@h/c?sslmode=verify-full&sslrootcert=/absent.pem" },
		"likers.tls needs":            func(c *Config) { c.Likers.TLS = TLS{Enabled: true, CAFile: "x"} },
		"likers.tls.enabled":          func(c *Config) { c.Likers.TLS = TLS{CAFile: "x"} },
		"api.listen":                  func(c *Config) { c.API.Listen = "8080" },
		"ops.listen \"127.0.0.1:80\"": func(c *Config) { c.API.Listen, c.Ops.Listen = "127.0.0.1:80", "127.0.0.1:80" },
		"ops.listen \"h:x\"":          func(c *Config) { c.Ops.Listen = "h:x" },
		"auth.jwks_url \"http":        func(c *Config) { c.Auth.JWKSURL = "http://id.example/keys" },
		"auth.jwks_url and":           func(c *Config) { c.Auth = Auth{JWKSURL: "https://id/k", HS256KeyFile: "k"} },
		"log.level":                   func(c *Config) { c.Log.Level = "loud" },
		"log.format":                  func(c *Config) { c.Log.Format = "xml" },
		"state_dir":                   func(c *Config) { c.StateDir = "" },
		"instance":                    func(c *Config) { c.Instance = "a/b" },
		"refresh_interval":            func(c *Config) { c.RefreshInterval = 0 },
		"seal_interval":               func(c *Config) { c.SealInterval = 2 * time.Hour },
		"stale_base_policy":           func(c *Config) { c.StaleBasePolicy = "toggle" },
		"stale_base.follow":           func(c *Config) { c.StaleBase.Follow = "toggle" },
		"visibility.unknown_targets":  func(c *Config) { c.Visibility.UnknownTargets = "maybe" },
		"visibility.unavailable":      func(c *Config) { c.Visibility.Unavailable = "" },
		"visibility.blocks":           func(c *Config) { c.Visibility.Blocks = "both" },
		"visibility.strong_check[1]":  func(c *Config) { c.Visibility.StrongCheck = []string{"UNKNOWN", "private"} },
		"visibility.remembered":       func(c *Config) { c.Visibility.RememberedSubjects = 0 },
		"gap_healing":                 func(c *Config) { c.GapHealing = "never" },
		"outbox_retention":            func(c *Config) { c.OutboxRetention = time.Hour },
		"command_retention":           func(c *Config) { c.CommandRetention = 0 },
	} {
		t.Run(want, func(t *testing.T) {
			c := Default()
			change(&c)
			err := c.Validate()
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("error %v, want one with %q", err, want)
			}
		})
	}
}

func TestErrorsKeepPasswords(t *testing.T) {
	c := Default()
	c.Control, c.Redis = "postgres://u:hunter2@h:bad/c", "redys://:hunter2@h"
	if err := c.Validate(); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("error %v, want one without the password", err)
	}
	if got := Redact("postgres://u:hunter2@h/c"); strings.Contains(got, "hunter2") {
		t.Errorf("Redact gives %s", got)
	}
}

func TestRequire(t *testing.T) {
	c := Default()
	err := c.Require(PartPostgres, PartControl, PartKafka, PartRedis, PartAuth)
	for _, want := range []string{"postgres", "control", "kafka.brokers", "TIDEMARK_KAFKA_BROKERS", "redis", "TIDEMARK_AUTH_HS256_KEY_FILE"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v lacks %s", err, want)
		}
	}
	c.Kafka.Brokers, c.Auth.JWKSURL = []string{"h:1"}, "https://id/k"
	if err := c.Require(PartKafka, PartAuth); err != nil {
		t.Error(err)
	}
}

func TestWriteAndLoad(t *testing.T) {
	want := Default()
	want.Shards, want.Postgres = 2, []string{"postgres://u:p%40@127.0.0.1:1/s0?sslmode=disable", "postgres://u:p@127.0.0.1:1/s1"}
	want.Kafka = Kafka{Brokers: []string{"127.0.0.1:9"}, TLS: TLS{Enabled: true, ServerName: "x: y"}}
	want.Instance, want.RefreshInterval, want.Auth.Issuer = "0", 20*time.Millisecond, "yes"
	path := filepath.Join(t.TempDir(), FileName)
	for range 2 { // the second replaces
		if err := want.Write(path); err != nil {
			t.Fatal(err)
		}
	}
	got, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if got.Postgres == nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%+v, want\n%+v", got, want)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v; want 0600", info.Mode(), err)
	}
	if entries, _ := os.ReadDir(filepath.Dir(path)); len(entries) != 1 {
		t.Errorf("%d files are left, want 1", len(entries))
	}
}

func TestEndpoints(t *testing.T) {
	dir := t.TempDir()
	if _, err := ReadEndpoints(dir); err == nil || !strings.Contains(err.Error(), "tidemark dev") {
		t.Errorf("error %v, want what to do", err)
	}
	want := Endpoints{API: "http://127.0.0.1:1", Kafka: "127.0.0.1:2", Postgres: []string{"postgres://a", "postgres://b"}, Control: "postgres://c", Redis: "redis://d", Metrics: "http://e"}
	if err := want.Write(dir); err != nil {
		t.Fatal(err)
	}
	if got, err := ReadEndpoints(dir); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestResolve(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, FileName)
	if _, err := Resolve("", dir); err == nil || !strings.Contains(err.Error(), "--config") {
		t.Errorf("error %v, want what to do", err)
	}
	if err := Default().Write(path); err != nil {
		t.Fatal(err)
	}
	if got, err := Resolve("", dir); err != nil || got != path {
		t.Errorf("Resolve(data dir) = %s, %v", got, err)
	}
	if got, err := Resolve("x.yaml", ""); err != nil || got != "x.yaml" {
		t.Errorf("Resolve(file) = %s, %v", got, err)
	}
	if _, err := Resolve("x.yaml", dir); err == nil {
		t.Error("both flags are accepted")
	}
	t.Chdir(dir)
	if _, err := Resolve("", ""); err == nil {
		t.Error("found a default data directory that is not there")
	}
}

func TestAddressOfLikers(t *testing.T) {
	bound := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 4711}
	for advertise, want := range map[string]string{"": "127.0.0.1:4711", "pod-3:0": "pod-3:4711", "pod-3:80": "pod-3:80", "[::1]:0": "[::1]:4711"} {
		if got := (Likers{Advertise: advertise}).Address(bound); got != want {
			t.Errorf("advertise %q is %q, want %q", advertise, got, want)
		}
	}
}

func TestHS256Key(t *testing.T) {
	key := strings.Repeat("k", 32)
	if got, err := (Auth{HS256KeyFile: write(t, key+"\n")}).HS256Key(); err != nil || string(got) != key {
		t.Errorf("got %q, %v", got, err)
	}
	if _, err := (Auth{HS256KeyFile: write(t, "short")}).HS256Key(); err == nil || strings.Contains(err.Error(), "short") {
		t.Errorf("short key: %v", err)
	}
}

func TestLogger(t *testing.T) {
	var b bytes.Buffer
	log := Log{Level: "warn", Format: "json"}.New(&b)
	log.Info("hidden")
	log.Warn("seen")
	if got := b.String(); strings.Contains(got, "hidden") || !strings.HasPrefix(got, "{") || !strings.Contains(got, "seen") {
		t.Errorf("logged %s", got)
	}
}
