package config

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/tidemark/tidemark/internal/kafkaaccess"
	"github.com/tidemark/tidemark/internal/tlsfiles"
)

// TLS of a client. Files are PEM, and read again when they change.
type TLS struct {
	Enabled bool `koanf:"enabled"`
	// CAFile verifies the server; empty: the system's authorities.
	CAFile string `koanf:"ca_file"`
	// CertFile and KeyFile show who the client is; both or neither.
	CertFile string `koanf:"cert_file"`
	KeyFile  string `koanf:"key_file"`
	// ServerName that the certificate must bear; empty: the dialed host.
	ServerName string `koanf:"server_name"`
}

// ListenTLS of a listener. Files are PEM, and read again when they change.
type ListenTLS struct {
	// CertFile of the listener, with its chain, and KeyFile of it; both, or
	// neither for a listener without TLS.
	CertFile string `koanf:"cert_file"`
	KeyFile  string `koanf:"key_file"`
	// ClientCAFile has the authorities of which one signed the certificate of
	// every client that is answered; empty: clients show none.
	ClientCAFile string `koanf:"client_ca_file"`
}

// SASL shows brokers who comes.
type SASL struct {
	// Mechanism is PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512; empty: none.
	Mechanism string `koanf:"mechanism"`
	// User of the brokers.
	User string `koanf:"user"`
	// PasswordFile holds the user's password, and is read again for each new
	// connection.
	PasswordFile string `koanf:"password_file"`
}

func (t TLS) validate(p *problems, path string) {
	if (t.CertFile == "") != (t.KeyFile == "") {
		p.add(path+".cert_file", "and %s.key_file go together: give both or neither", path)
	}
	if !t.Enabled && t != (TLS{}) {
		p.add(path+".enabled", "is false, but %s has other settings: switch it on or remove them", path)
	}
}

func (t ListenTLS) validate(p *problems, path string) {
	if (t.CertFile == "") != (t.KeyFile == "") {
		p.add(path+".cert_file", "and %s.key_file go together: give both or neither", path)
	}
	if t.ClientCAFile != "" && t.CertFile == "" {
		p.add(path+".client_ca_file", "is given without a certificate for the listener: give %s.cert_file and key_file, too", path)
	}
}

func (k Kafka) validateAccess(p *problems) {
	k.TLS.validate(p, "kafka.tls")
	s := k.SASL
	if s == (SASL{}) {
		return
	}
	if !slices.Contains(kafkaaccess.Mechanisms(), s.Mechanism) {
		p.add("kafka.sasl.mechanism", "%q is not one of %s", s.Mechanism, strings.Join(kafkaaccess.Mechanisms(), ", "))
	}
	if s.User == "" {
		p.add("kafka.sasl.user", "is empty: name the user of the brokers")
	}
	if s.PasswordFile == "" {
		p.add("kafka.sasl.password_file", "is empty: name a file that holds the password")
	}
	if s.Mechanism == kafkaaccess.Plain && !k.TLS.Enabled && slices.ContainsFunc(k.Brokers, leavesMachine) {
		p.add("kafka.sasl.mechanism", "%s sends the password readable: switch kafka.tls.enabled on, or choose a SCRAM mechanism", s.Mechanism)
	}
}

// leavesMachine tells whether what is sent to host:port may be read elsewhere.
func leavesMachine(address string) bool {
	host, _, err := net.SplitHostPort(address)
	ip := net.ParseIP(host)
	return err == nil && host != "localhost" && (ip == nil || !ip.IsLoopback())
}

func (c Config) validateRedis(p *problems) {
	c.RedisTLS.validate(p, "redis_tls")
	if c.Redis == "" {
		return
	}
	u, err := url.Parse(c.Redis)
	if err != nil || u.Scheme != "redis" && u.Scheme != "rediss" || u.Host == "" {
		p.add("redis", "is not a redis:// or rediss:// URL")
		return
	}
	c.RedisAuth.validate(p, u)
	if u.Query().Has("skip_verify") {
		p.add("redis", "has skip_verify in its URL, with which anyone may answer in its place: give redis_tls.ca_file instead")
	}
	if c.RedisTLS.Enabled && u.Scheme != "rediss" {
		p.add("redis", "is a redis:// URL, which means no TLS, but redis_tls.enabled is true: write rediss://, or switch redis_tls off")
	}
}

// RedisAuth shows Redis who comes.
type RedisAuth struct {
	// User of the access control list; empty: the default user.
	User string `koanf:"user"`
	// PasswordFile holds the user's password, and is read again for each new
	// connection.
	PasswordFile string `koanf:"password_file"`
}

func (a RedisAuth) validate(p *problems, at *url.URL) {
	if a == (RedisAuth{}) {
		return
	}
	if a.PasswordFile == "" {
		p.add("redis_auth.password_file", "is empty: name a file that holds the password of redis_auth.user")
	}
	if at.User != nil {
		p.add("redis_auth", "and the URL of redis both say who comes: keep one")
	}
	if at.Scheme == "redis" && slices.ContainsFunc(append(at.Query()["addr"], at.Host), leavesMachine) {
		p.add("redis_auth.password_file", "would be sent readable: write rediss:// in the URL of redis")
	}
}

// CacheCredentials are read for each new connection to Redis; nil if the URL has
// them, or nobody asks.
func (c Config) CacheCredentials() (func(context.Context) (user, password string, err error), error) {
	a := c.RedisAuth
	if a == (RedisAuth{}) {
		return nil, nil
	}
	read := func(context.Context) (string, string, error) {
		password, err := readPassword("redis_auth.password_file", a.PasswordFile)
		return a.User, password, err
	}
	_, _, err := read(context.Background())
	return read, err
}

// Access is how the brokers are reached; nil when neither TLS nor SASL is on.
func (k Kafka) Access() (*kafkaaccess.Access, error) {
	t, err := k.TLS.client("kafka.tls")
	if err != nil || t == nil && k.SASL == (SASL{}) {
		return nil, err
	}
	access := &kafkaaccess.Access{TLS: t}
	if k.SASL != (SASL{}) {
		if _, err := k.SASL.password(); err != nil {
			return nil, err
		}
		access.SASL = &kafkaaccess.SASL{Mechanism: k.SASL.Mechanism, User: k.SASL.User, Password: k.SASL.password}
	}
	return access, nil
}

func (s SASL) password() (string, error) {
	return readPassword("kafka.sasl.password_file", s.PasswordFile)
}

// readPassword leaves out white space at the file's ends.
func readPassword(setting, file string) (string, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("reading %s: %w", setting, err)
	}
	password := strings.TrimSpace(string(b))
	if password == "" {
		return "", fmt.Errorf("reading %s: %s is empty", setting, file)
	}
	return password, nil
}

// CacheTLS is how a rediss:// URL is reached; nil: with what its client takes
// by itself, the system's authorities.
func (c Config) CacheTLS() (*tlsfiles.Client, error) { return c.RedisTLS.client("redis_tls") }

// JWKSClient is how an https JWKS URL is reached; nil: with the system's
// authorities.
func (a Auth) JWKSClient() (*tlsfiles.Client, error) { return a.JWKSTLS.client("auth.jwks_tls") }

// ClientTLS is how query processes reach likers processes; nil when TLS is
// off.
func (l Likers) ClientTLS() (*tlsfiles.Client, error) { return l.TLS.client("likers.tls") }

// ServerTLS is how likers processes answer; nil when TLS is off.
func (l Likers) ServerTLS(log *slog.Logger) (*tlsfiles.Server, error) {
	if !l.TLS.Enabled {
		return nil, nil
	}
	return tlsfiles.NewServer(tlsfiles.ServerConfig{
		Files: l.TLS.files("likers.tls"), ClientNames: l.ClientNames, Logger: log,
	})
}

// ServerTLS is how the API answers; nil when TLS is off.
func (a API) ServerTLS(log *slog.Logger) (*tlsfiles.Server, error) {
	return a.TLS.server("api.tls", log)
}

// ServerTLS is how operators are answered; nil when TLS is off.
func (o Ops) ServerTLS(log *slog.Logger) (*tlsfiles.Server, error) {
	return o.TLS.server("ops.tls", log)
}

func (t TLS) files(path string) tlsfiles.Files {
	return tlsfiles.Files{Setting: path, CA: t.CAFile, Cert: t.CertFile, Key: t.KeyFile}
}

func (t TLS) client(path string) (*tlsfiles.Client, error) {
	if !t.Enabled {
		return nil, nil
	}
	return tlsfiles.NewClient(tlsfiles.ClientConfig{Files: t.files(path), ServerName: t.ServerName})
}

func (t ListenTLS) server(path string, log *slog.Logger) (*tlsfiles.Server, error) {
	if t.CertFile == "" {
		return nil, nil
	}
	return tlsfiles.NewServer(tlsfiles.ServerConfig{
		Files: tlsfiles.Files{Setting: path, CA: t.ClientCAFile, CASetting: "client_ca_file", Cert: t.CertFile, Key: t.KeyFile}, Logger: log,
	})
}

// scheme is how a listener's URL begins.
func (t ListenTLS) scheme() string {
	if t.CertFile == "" {
		return "http"
	}
	return "https"
}

// URL of the API at host:port.
func (a API) URL(address string) string { return a.TLS.scheme() + "://" + address }

// URL of the operators' interface at host:port.
func (o Ops) URL(address string) string { return o.TLS.scheme() + "://" + address }
