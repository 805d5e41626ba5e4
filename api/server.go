package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/tidemark/tidemark/internal/tlsfiles"
)

// ServerConfig says where a Server listens and what it bears. Zero values take
// the defaults that are named.
type ServerConfig struct {
	Listen            string           // host:port; port 0 takes a free one
	TLS               *tlsfiles.Server // nil: none
	ReadHeaderTimeout time.Duration    // for a request's head: 5s
	ReadTimeout       time.Duration    // for a whole request: 15s
	WriteTimeout      time.Duration    // from a request's head read to its answer written: 30s
	IdleTimeout       time.Duration    // of a connection between requests: 2m
	ShutdownTimeout   time.Duration    // for requests under way when stopping: 10s
	MaxHeaderBytes    int              // of a request's head: 16 KiB
	Logger            *slog.Logger     // discard
}

func (c ServerConfig) withDefaults() ServerConfig {
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	def(&c.ReadHeaderTimeout, 5*time.Second)
	def(&c.ReadTimeout, 15*time.Second)
	def(&c.WriteTimeout, 30*time.Second)
	def(&c.IdleTimeout, 2*time.Minute)
	def(&c.ShutdownTimeout, 10*time.Second)
	if c.MaxHeaderBytes <= 0 {
		c.MaxHeaderBytes = 16 << 10
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// Server serves a handler over HTTP/1.1 until its context ends, and then lets
// the requests under way finish.
type Server struct {
	cfg  ServerConfig
	http *http.Server

	mu       sync.Mutex
	listener net.Listener
}

// NewServer makes a Server; it does not listen yet.
func NewServer(c ServerConfig, h http.Handler) *Server {
	c = c.withDefaults()
	return &Server{cfg: c, http: &http.Server{
		Handler:           h,
		ReadHeaderTimeout: c.ReadHeaderTimeout,
		ReadTimeout:       c.ReadTimeout,
		WriteTimeout:      c.WriteTimeout,
		IdleTimeout:       c.IdleTimeout,
		MaxHeaderBytes:    c.MaxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(c.Logger.With("component", "http").Handler(), slog.LevelDebug),
	}}
}

// Listen binds the address, so that Addr is known before Run; Run does it
// otherwise.
func (s *Server) Listen() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listener != nil {
		return nil
	}
	l, err := net.Listen("tcp", s.cfg.Listen)
	if err != nil {
		return fmt.Errorf("listening for the API: %w", err)
	}
	s.listener = s.cfg.TLS.Listener(l)
	return nil
}

// Addr is the address in use, as host:port; "" before Listen.
func (s *Server) Addr() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listener == nil {
		return ""
	}
	return s.listener.Addr().String()
}

// Run serves until ctx ends, then stops accepting, waits up to ShutdownTimeout
// for the requests under way, and cuts off what is left. It returns nil after
// a clean stop. A Server runs once.
func (s *Server) Run(ctx context.Context) error {
	if err := s.Listen(); err != nil {
		return err
	}
	served := make(chan error, 1)
	go func() { served <- s.http.Serve(s.listener) }()
	select {
	case err := <-served:
		return fmt.Errorf("serving the API: %w", err)
	case <-ctx.Done():
	}
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.ShutdownTimeout)
	defer cancel()
	err := s.http.Shutdown(late)
	if err != nil {
		_ = s.http.Close()
	}
	if serveErr := <-served; !errors.Is(serveErr, http.ErrServerClosed) {
		err = errors.Join(err, serveErr)
	}
	if err != nil {
		return fmt.Errorf("stopping the API: requests were cut off: %w", err)
	}
	return nil
}
