package kafkaaccess_test

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/IBM/sarama"
	gometrics "github.com/rcrowley/go-metrics"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"

	"github.com/tidemark/tidemark/internal/kafkaaccess"
	"github.com/tidemark/tidemark/internal/testenv"
	"github.com/tidemark/tidemark/internal/tlsfiles"
)

func TestMain(m *testing.M) {
	gometrics.UseNilMetrics = true // sarama's meters have a goroutine that never ends
	goleak.VerifyTestMain(m)
}

const (
	user   = "tidemark"
	secret = "hunter2-very-secret"
)

// A refusal is told as the broker tells it. The embedded one only hangs up.
func TestRefusalIsSaid(t *testing.T) {
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.EnableSASL(), kfake.Superuser(kafkaaccess.Plain, user, secret))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.ControlKey(int16(kmsg.SASLAuthenticate), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		resp := req.ResponseKind().(*kmsg.SASLAuthenticateResponse)
		resp.ErrorCode, resp.ErrorMessage = kerr.SaslAuthenticationFailed.Code, kmsg.StringPtr("Authentication failed: Invalid username or password")
		return resp, nil, true
	})
	for _, m := range kafkaaccess.Mechanisms() {
		a := &kafkaaccess.Access{SASL: &kafkaaccess.SASL{Mechanism: m, User: user, Password: says(secret)}}
		for library, ask := range partitions {
			_, err := ask(t.Context(), a, c.ListenAddrs()[0])
			if err == nil || !strings.Contains(err.Error(), "Authentication failed") && !strings.Contains(err.Error(), "SASL_AUTHENTICATION_FAILED") {
				t.Errorf("%s, %s: error %v", m, library, err)
			}
			if err != nil && strings.Contains(err.Error(), secret) {
				t.Errorf("%s, %s: the error has the password: %v", m, library, err)
			}
		}
	}
}

// broker has TLS when server is given, and the user with every mechanism.
func broker(t *testing.T, server *tls.Config) string {
	t.Helper()
	opts := []kfake.Opt{kfake.NumBrokers(1), kfake.EnableSASL(), kfake.SeedTopics(3, "t")}
	for _, m := range kafkaaccess.Mechanisms() {
		opts = append(opts, kfake.Superuser(m, user, secret))
	}
	if server != nil {
		opts = append(opts, kfake.TLS(server))
	}
	c, err := kfake.NewCluster(opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c.ListenAddrs()[0]
}

// partitions asks the broker with each client library.
var partitions = map[string]func(ctx context.Context, a *kafkaaccess.Access, address string) (int, error){
	"franz-go": func(ctx context.Context, a *kafkaaccess.Access, address string) (int, error) {
		cl, err := kgo.NewClient(append(a.Franz(), kgo.SeedBrokers(address), kgo.RetryTimeout(time.Second), kgo.RequestRetries(1))...)
		if err != nil {
			return 0, err
		}
		defer cl.Close()
		topics, err := kadm.NewClient(cl).ListTopics(ctx, "t")
		return len(topics["t"].Partitions), err
	},
	"sarama": func(ctx context.Context, a *kafkaaccess.Access, address string) (int, error) {
		c := sarama.NewConfig()
		c.Version, c.Metadata.Retry.Max = sarama.V2_8_0_0, 0
		c.Net.Proxy.Enable, c.Net.Proxy.Dialer = true, dialer{ctx, a}
		if err := a.FillSarama(c); err != nil {
			return 0, err
		}
		cl, err := sarama.NewClient([]string{address}, c)
		if err != nil {
			return 0, err
		}
		defer func() { _ = cl.Close() }()
		all, err := cl.Partitions("t")
		return len(all), err
	},
}

type dialer struct {
	ctx    context.Context
	access *kafkaaccess.Access
}

func (d dialer) Dial(network, address string) (net.Conn, error) {
	return d.access.Dial(d.ctx, network, address)
}

func says(password string) func() (string, error) {
	return func() (string, error) { return password, nil }
}

// Both libraries reach a broker in every way that there is, and say why not
// when they may not, without the password.
func TestAccess(t *testing.T) {
	ours, theirs := testenv.NewAuthority(t), testenv.NewAuthority(t)
	var files tlsfiles.ServerConfig
	files.Setting, files.CA = "broker", ours.File
	files.Cert, files.Key = ours.Issue(t, testenv.Certificate{})
	server, err := tlsfiles.NewServer(files)
	if err != nil {
		t.Fatal(err)
	}
	encrypted := func(ca string, certificate bool) *tlsfiles.Client {
		cfg := tlsfiles.ClientConfig{Files: tlsfiles.Files{Setting: "kafka.tls", CA: ca}}
		if certificate {
			cfg.Cert, cfg.Key = ours.Issue(t, testenv.Certificate{})
		}
		c, err := tlsfiles.NewClient(cfg)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	good, unread := encrypted(ours.File, true), errors.New("reading kafka.sasl.password_file: gone")
	as := func(mechanism, name string, password func() (string, error)) *kafkaaccess.SASL {
		return &kafkaaccess.SASL{Mechanism: mechanism, User: name, Password: password}
	}
	tests := map[string]struct {
		plainBroker bool
		access      *kafkaaccess.Access
		refused     bool   // with words of the library
		want        string // in the error; "" and not refused: it works
	}{
		"wrong password, PLAIN":         {access: &kafkaaccess.Access{TLS: good, SASL: as(kafkaaccess.Plain, user, says("no-"+secret))}, want: "EOF"},
		"wrong password, SCRAM-SHA-256": {access: &kafkaaccess.Access{TLS: good, SASL: as(kafkaaccess.ScramSHA256, user, says("no-"+secret))}, want: "EOF"},
		"wrong password, SCRAM-SHA-512": {access: &kafkaaccess.Access{TLS: good, SASL: as(kafkaaccess.ScramSHA512, user, says("no-"+secret))}, want: "EOF"},
		"no such user":                  {access: &kafkaaccess.Access{TLS: good, SASL: as(kafkaaccess.ScramSHA512, "nobody", says(secret))}, want: "EOF"},
		"password that cannot be read":  {access: &kafkaaccess.Access{TLS: good, SASL: as(kafkaaccess.ScramSHA512, user, func() (string, error) { return "", unread })}, want: unread.Error()},
		"no SASL":                       {access: &kafkaaccess.Access{TLS: good}, refused: true},
		"another authority":             {access: &kafkaaccess.Access{TLS: encrypted(theirs.File, true), SASL: as(kafkaaccess.ScramSHA512, user, says(secret))}, want: "kafka.tls.ca_file does not have"},
		"no certificate":                {access: &kafkaaccess.Access{TLS: encrypted(ours.File, false), SASL: as(kafkaaccess.ScramSHA512, user, says(secret))}, want: "tls: certificate required"},
	}
	for _, m := range kafkaaccess.Mechanisms() {
		test := tests[m]
		test.access = &kafkaaccess.Access{TLS: good, SASL: as(m, user, says(secret))}
		tests[m+" with TLS"] = test
		test.plainBroker, test.access = true, &kafkaaccess.Access{SASL: as(m, user, says(secret))}
		tests[m+" without TLS"] = test
	}
	withTLS, without := broker(t, server.Config()), broker(t, nil)
	for name, test := range tests {
		for library, ask := range partitions {
			t.Run(name+"/"+library, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				address := withTLS
				if test.plainBroker {
					address = without
				}
				n, err := ask(ctx, test.access, address)
				if test.want == "" && !test.refused {
					if n != 3 || err != nil {
						t.Errorf("%d partitions, %v; want 3", n, err)
					}
					return
				}
				if err == nil || !strings.Contains(err.Error(), test.want) {
					t.Errorf("error %v, want one with %q", err, test.want)
				}
				if err != nil && strings.Contains(err.Error(), secret) {
					t.Errorf("the error has the password: %v", err)
				}
			})
		}
	}
}

// A password that is changed takes effect in the next connection of the same
// client, and of the next configuration of sarama.
func TestPasswordChanges(t *testing.T) {
	address := broker(t, nil)
	var now atomic.Pointer[string]
	old, fresh := "of-last-month", secret
	now.Store(&old)
	a := &kafkaaccess.Access{SASL: &kafkaaccess.SASL{Mechanism: kafkaaccess.ScramSHA256, User: user, Password: func() (string, error) { return *now.Load(), nil }}}
	cl, err := kgo.NewClient(append(a.Franz(), kgo.SeedBrokers(address), kgo.RequestRetries(0), kgo.RetryTimeout(time.Second))...)
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	if err := cl.Ping(t.Context()); err == nil {
		t.Fatal("the broker takes a wrong password")
	}
	now.Store(&fresh)
	testenv.Eventually(t, 10*time.Second, func() error { return cl.Ping(t.Context()) })
	if n, err := partitions["sarama"](t.Context(), a, address); n != 3 || err != nil {
		t.Errorf("sarama: %d, %v", n, err)
	}
}

func TestNone(t *testing.T) {
	var a *kafkaaccess.Access
	c := sarama.NewConfig()
	if err := a.FillSarama(c); err != nil || c.Net.SASL.Enable || len(a.Franz()) != 0 {
		t.Errorf("no access changes a client: %v", err)
	}
}
