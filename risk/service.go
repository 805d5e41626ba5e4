package risk

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/tidemark/tidemark/internal/breaker"
	"github.com/tidemark/tidemark/internal/filestamp"
)

// ServiceConfig says how the service is asked.
type ServiceConfig struct {
	URL string
	// Secret is sent as bearer token; empty: SecretFile is, which is read again
	// when it changes. Both empty: none is.
	Secret     string
	SecretFile string
	// Dial makes connections with TLS; nil: with the system's authorities.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Timeout of a question, with the wait for its turn.
	Timeout time.Duration
	// InFlight are the questions that are asked at a time.
	InFlight int
}

// Errors of asking, besides those of the connection.
var (
	errOpen = errors.New("the service has failed lately and is not asked")
	errBusy = errors.New("as many questions are under way as may, and none ended in time")
)

// service asks a risk service over HTTP.
type service struct {
	cfg     ServiceConfig
	client  *http.Client
	turns   chan struct{}
	breaker breaker.Breaker
	secret  atomic.Pointer[string]
	seen    filestamp.Seen // of the secret's file; of readSecret alone
}

func newService(c ServiceConfig) (*service, error) {
	s := &service{cfg: c, turns: make(chan struct{}, c.InFlight)}
	s.secret.Store(&c.Secret)
	if err := s.readSecret(); err != nil {
		return nil, err
	}
	s.client = &http.Client{
		Transport: &http.Transport{
			DialTLSContext: c.Dial, MaxIdleConns: c.InFlight, MaxIdleConnsPerHost: c.InFlight, IdleConnTimeout: 30 * time.Second,
			DisableCompression: true, MaxResponseHeaderBytes: 16 << 10,
		},
		// Questions and the secret go where the configuration says, nowhere else.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return s, nil
}

func (s *service) secretChanged() bool { return s.cfg.SecretFile != "" && s.seen.Changed() }

// maxSecretBytes is the longest secret's file.
const maxSecretBytes = 4 << 10

func (s *service) readSecret() error {
	if s.cfg.SecretFile == "" {
		return nil
	}
	var seen filestamp.Seen
	b, err := seen.Read(s.cfg.SecretFile, maxSecretBytes)
	s.seen = seen
	if err != nil {
		return fmt.Errorf("reading the secret of the risk service: %w", err)
	}
	secret := strings.TrimSpace(string(b))
	if secret == "" || strings.ContainsFunc(secret, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return fmt.Errorf("reading the secret of the risk service: %s is empty, or not of printable ASCII in one word", s.cfg.SecretFile)
	}
	s.secret.Store(&secret)
	return nil
}

// ask gives the service's verdict, within the timeout.
func (s *service) ask(ctx context.Context, q Question) (Verdict, error) {
	if !s.breaker.Enter() {
		return Verdict{}, errOpen
	}
	within, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	v, err := s.inTurn(within, q)
	if ctx.Err() == nil { // a client that has gone says nothing of the service
		s.breaker.Leave(err)
	}
	return v, err
}

func (s *service) inTurn(ctx context.Context, q Question) (Verdict, error) {
	select {
	case s.turns <- struct{}{}:
		defer func() { <-s.turns }()
	case <-ctx.Done():
		return Verdict{}, errBusy
	}
	return s.post(ctx, q)
}

func (s *service) post(ctx context.Context, q Question) (Verdict, error) {
	body, err := asJSON(q)
	if err != nil {
		return Verdict{}, fmt.Errorf("writing the question: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.cfg.URL, bytes.NewReader(body))
	if err != nil {
		return Verdict{}, fmt.Errorf("asking the risk service: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	if secret := *s.secret.Load(); secret != "" {
		req.Header.Set("Authorization", "Bearer "+secret)
	}
	res, err := s.client.Do(req)
	if err != nil {
		return Verdict{}, fmt.Errorf("asking the risk service: %w", err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return Verdict{}, fmt.Errorf("asking the risk service: it answers with status %d, not 200", res.StatusCode)
	}
	v, err := readAnswer(res.Body)
	if err != nil {
		return Verdict{}, fmt.Errorf("asking the risk service: %w", err)
	}
	return v, nil
}

// resultOf names how asking went, for metrics.
func resultOf(err error) string {
	switch {
	case err == nil:
		return "answer"
	case errors.Is(err, errOpen):
		return "open"
	case errors.Is(err, errBusy):
		return "busy"
	case errors.Is(err, context.DeadlineExceeded) || os.IsTimeout(err):
		return "timeout"
	}
	return "error"
}
