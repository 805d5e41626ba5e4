package views

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"

	"github.com/tidemark/tidemark/internal/tlsfiles"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
	"github.com/tidemark/tidemark/topology/tidemarkv1/tidemarkv1connect"
)

// ownerClients ask owners over HTTP/2, by one connection each.
type ownerClients struct {
	scheme    string
	transport *http.Transport

	mu sync.Mutex
	at map[string]tidemarkv1connect.LikersServiceClient // by address
}

// Bounds of what an owner may answer, and of the clients that are kept.
const (
	maxAnswer  = 4 << 20 // bytes: MaxLikersPage entries with the longest users
	maxClients = 1024
)

func newOwnerClients(encrypted *tlsfiles.Client) *ownerClients {
	c := &ownerClients{scheme: "http", at: map[string]tidemarkv1connect.LikersServiceClient{}}
	c.transport = &http.Transport{
		DialContext:     (&net.Dialer{Timeout: askTimeout, KeepAlive: 15 * time.Second}).DialContext,
		Protocols:       new(http.Protocols),
		IdleConnTimeout: 2 * time.Minute,
		// A peer that vanished without a word is noticed, and dialed anew.
		HTTP2: &http.HTTP2Config{SendPingTimeout: 2 * time.Second, PingTimeout: time.Second},
	}
	if encrypted == nil {
		c.transport.Protocols.SetUnencryptedHTTP2(true)
	} else {
		c.scheme = "https"
		c.transport.Protocols.SetHTTP2(true)
		c.transport.DialTLSContext = encrypted.WithProtocols("h2").Dial
	}
	return c
}

func (c *ownerClients) close() { c.transport.CloseIdleConnections() }

func (c *ownerClients) client(address string) tidemarkv1connect.LikersServiceClient {
	c.mu.Lock()
	defer c.mu.Unlock()
	client := c.at[address]
	if client == nil {
		if len(c.at) >= maxClients { // of processes that came and went
			clear(c.at)
		}
		transport := connecthttp.NewTransport(&http.Client{Transport: c.transport}, c.scheme+"://"+address, connecthttp.WithReadMaxBytes(maxAnswer))
		client = tidemarkv1connect.NewLikersServiceClient(connect.NewClient(transport))
		c.at[address] = client
	}
	return client
}

// ask marks with errAskAgain what another moment or another owner may answer.
func (c *ownerClients) ask(ctx context.Context, address string, req *tidemarkv1.ListLikersRequest) (*tidemarkv1.ListLikersResponse, error) {
	resp, err := c.client(address).ListLikers(ctx, req)
	if err == nil {
		return resp, nil
	}
	switch connect.CodeOf(err) {
	case connect.CodeInvalidArgument, connect.CodeInternal, connect.CodeResourceExhausted:
		return nil, err // asking again changes nothing
	default:
		// Not served there, no process or another one at the address, silent,
		// or of another generation while a deployment changes over.
		return nil, fmt.Errorf("%w: %w", errAskAgain, err)
	}
}
