// Package kafkaaccess says how brokers are reached: plain, with TLS, with SASL.
// It fills in both client libraries, so that neither knows more than the other.
package kafkaaccess

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/tidemark/tidemark/internal/tlsfiles"
)

// Access is how brokers are reached; nil: plain text, and nobody asks who
// comes.
type Access struct {
	TLS  *tlsfiles.Client // nil: none
	SASL *SASL            // nil: none
}

// SASL shows a user to the brokers.
type SASL struct {
	Mechanism string // Plain, ScramSHA256 or ScramSHA512
	User      string
	// Password is asked for at each authentication, so that one which has been
	// changed takes effect; its error never has the password.
	Password func() (string, error)
}

// Mechanisms of SASL, by the names that Kafka gives them.
const (
	Plain       = sarama.SASLTypePlaintext
	ScramSHA256 = sarama.SASLTypeSCRAMSHA256
	ScramSHA512 = sarama.SASLTypeSCRAMSHA512
)

// Mechanisms are all that are known.
func Mechanisms() []string { return []string{Plain, ScramSHA256, ScramSHA512} }

const (
	dialTimeout = 10 * time.Second
	keepAlive   = 30 * time.Second
)

// Dial connects to a broker; SASL comes after it.
func (a *Access) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	if a == nil || a.TLS == nil {
		d := net.Dialer{Timeout: dialTimeout, KeepAlive: keepAlive}
		return d.DialContext(ctx, network, address)
	}
	return a.TLS.Dial(ctx, network, address)
}

// Franz is the part of a franz-go client's options.
func (a *Access) Franz() []kgo.Opt {
	if a == nil {
		return nil
	}
	var opts []kgo.Opt
	if a.TLS != nil {
		opts = append(opts, kgo.Dialer(a.TLS.Dial))
	}
	if a.SASL != nil {
		opts = append(opts, kgo.SASL(a.SASL.mechanism()))
	}
	return opts
}

func (s *SASL) mechanism() sasl.Mechanism {
	secret := func(context.Context) (scram.Auth, error) {
		password, err := s.Password()
		return scram.Auth{User: s.User, Pass: password}, err
	}
	switch s.Mechanism {
	case ScramSHA256:
		return scram.Sha256(secret)
	case ScramSHA512:
		return scram.Sha512(secret)
	default:
		return plain.Plain(func(context.Context) (plain.Auth, error) {
			password, err := s.Password()
			return plain.Auth{User: s.User, Pass: password}, err
		})
	}
}

// FillSarama writes SASL into a sarama configuration, whose dialer is Dial. The
// password of Plain is the one of now: sarama takes it as a value.
func (a *Access) FillSarama(c *sarama.Config) error {
	if a == nil || a.SASL == nil {
		return nil
	}
	s := a.SASL
	password, err := s.Password()
	if err != nil {
		return err
	}
	c.Net.SASL.Enable, c.Net.SASL.Handshake, c.Net.SASL.Version = true, true, sarama.SASLHandshakeV1
	c.Net.SASL.Mechanism, c.Net.SASL.User, c.Net.SASL.Password = sarama.SASLMechanism(s.Mechanism), s.User, password
	if s.Mechanism != Plain {
		c.Net.SASL.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient { return &scramClient{mechanism: s.mechanism()} }
	}
	return nil
}

// scramClient is franz-go's SCRAM in sarama's terms, so that there is one.
type scramClient struct {
	mechanism sasl.Mechanism
	session   sasl.Session
	first     string
	done      bool
}

// Begin ignores what it is given: the mechanism asks for the password itself.
func (c *scramClient) Begin(_, _, _ string) error {
	session, first, err := c.mechanism.Authenticate(context.Background(), "")
	if err != nil {
		return fmt.Errorf("SASL %s: %w", c.mechanism.Name(), err)
	}
	c.session, c.first = session, string(first)
	return nil
}

// Step gives the first message before there is a challenge.
func (c *scramClient) Step(challenge string) (string, error) {
	if first := c.first; first != "" {
		c.first = ""
		return first, nil
	}
	done, answer, err := c.session.Challenge([]byte(challenge))
	if err != nil {
		return "", fmt.Errorf("SASL %s: %w", c.mechanism.Name(), err)
	}
	c.done = done
	return string(answer), nil
}

func (c *scramClient) Done() bool { return c.done }
