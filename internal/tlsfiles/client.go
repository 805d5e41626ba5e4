package tlsfiles

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"time"
)

// Bounds of a connection's beginning, unless the context ends before.
const (
	dialTimeout      = 10 * time.Second
	handshakeTimeout = 10 * time.Second
	keepAlive        = 30 * time.Second
)

// ClientConfig says how a Client dials.
type ClientConfig struct {
	Files // CA empty: the system's authorities
	// ServerName that the server's certificate must bear; empty: the dialed
	// host.
	ServerName string
	// Protocols to offer, such as h2; empty: none.
	Protocols []string
}

// Client makes connections with TLS. It dials rather than giving a tls.Config
// away: that one has no way to renew the authorities which it believes.
type Client struct {
	cfg    ClientConfig
	source *source
}

// NewClient reads the files once, to say now what is wrong with them.
func NewClient(cfg ClientConfig) (*Client, error) {
	s, err := newSource(cfg.Files)
	if err != nil {
		return nil, err
	}
	return &Client{cfg: cfg, source: s}, nil
}

// WithProtocols is the client with others to offer.
func (c *Client) WithProtocols(protocols ...string) *Client {
	cfg := c.cfg
	cfg.Protocols = protocols
	return &Client{cfg: cfg, source: c.source}
}

// Dial connects to host:port and shakes hands. The connection is a *tls.Conn.
func (c *Client) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	d := net.Dialer{Timeout: dialTimeout, KeepAlive: keepAlive}
	raw, err := d.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	m, stale := c.source.current()
	conn := tls.Client(raw, c.config(m, address))
	if err := conn.HandshakeContext(ctx); err != nil {
		err = c.cfg.explain(address, err)
		return nil, errors.Join(err, stale, ignoreClosed(raw.Close()))
	}
	return conn, nil
}

// ignoreClosed: a failed handshake may have closed the connection already.
func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

func (c *Client) config(m *material, address string) *tls.Config {
	t := &tls.Config{MinVersion: minVersion, RootCAs: m.authorities, ServerName: c.cfg.ServerName, NextProtos: c.cfg.Protocols}
	if t.ServerName == "" {
		t.ServerName, _, _ = net.SplitHostPort(address) // the dialer has read it
	}
	if m.pair != nil {
		t.Certificates = []tls.Certificate{*m.pair}
	}
	return t
}
