package tlsfiles

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
)

// ServerConfig says how a listener answers.
type ServerConfig struct {
	Files // Cert and Key are needed; CA empty: clients show no certificate
	// ClientNames are names of which a client's certificate must bear one; empty:
	// any that CA signed. Without CA they mean nothing.
	ClientNames []string
	// Protocols to agree on, such as h2; empty: none.
	Protocols []string
	// Logger hears of files that cannot be read again, once for each failure;
	// nil discards.
	Logger *slog.Logger
}

// Server gives listeners their tls.Config.
type Server struct {
	cfg    ServerConfig
	source *source

	mu   sync.Mutex
	said string // the last failure that was logged
}

// NewServer reads the files once, to say now what is wrong with them.
func NewServer(cfg ServerConfig) (*Server, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Cert == "" {
		return nil, fmt.Errorf("%s: a listener with TLS needs cert_file and key_file", cfg.Setting)
	}
	s, err := newSource(cfg.Files)
	if err != nil {
		return nil, err
	}
	return &Server{cfg: cfg, source: s}, nil
}

// WithProtocols is the server with others to agree on.
func (s *Server) WithProtocols(protocols ...string) *Server {
	cfg := s.cfg
	cfg.Protocols = protocols
	return &Server{cfg: cfg, source: s.source}
}

// Listener has TLS on what l accepts; with a nil Server it is l.
func (s *Server) Listener(l net.Listener) net.Listener {
	if s == nil {
		return l
	}
	return tls.NewListener(l, s.Config())
}

// Config of a listener; each handshake asks for the files' content.
func (s *Server) Config() *tls.Config {
	return &tls.Config{MinVersion: minVersion, NextProtos: s.cfg.Protocols, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return s.config(), nil }}
}

func (s *Server) config() *tls.Config {
	m, err := s.source.current()
	s.say(err)
	t := &tls.Config{MinVersion: minVersion, Certificates: []tls.Certificate{*m.pair}, NextProtos: s.cfg.Protocols}
	if m.authorities != nil {
		t.ClientAuth, t.ClientCAs = tls.RequireAndVerifyClientCert, m.authorities
		// A resumed session would be believed by what was true when it began.
		t.SessionTicketsDisabled = true
		t.VerifyConnection = s.checkName
	}
	return t
}

func (s *Server) checkName(state tls.ConnectionState) error {
	if len(s.cfg.ClientNames) == 0 {
		return nil
	}
	shown := state.PeerCertificates[0]
	for _, name := range s.cfg.ClientNames {
		if shown.VerifyHostname(name) == nil {
			return nil
		}
	}
	return fmt.Errorf("the client's certificate names %s, none of %s", names(shown), strings.Join(s.cfg.ClientNames, ", "))
}

func names(c *x509.Certificate) string {
	if len(c.DNSNames) == 0 {
		return "nothing"
	}
	return strings.Join(c.DNSNames, ", ")
}

// say logs a failure when it differs from the last one.
func (s *Server) say(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		s.said = ""
		return
	}
	if err.Error() != s.said {
		s.said = err.Error()
		s.cfg.Logger.Warn("certificates cannot be read again; those read before stay in use", "error", err)
	}
}
