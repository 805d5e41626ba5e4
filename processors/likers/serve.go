package likers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"

	"github.com/tidemark/tidemark/internal/ops"
	"github.com/tidemark/tidemark/internal/tlsfiles"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
	"github.com/tidemark/tidemark/topology/tidemarkv1/tidemarkv1connect"
)

// ServerConfig says where Likers answers query processes.
type ServerConfig struct {
	Listener net.Listener // Run closes it
	// TLS of the service; nil: HTTP/2 without TLS, for a private network.
	TLS    *tlsfiles.Server
	Logger *slog.Logger
}

// Server answers other processes for the partitions that Likers owns, and for
// those that it keeps warm to who asks for that
// (tidemark.v1.LikersService). It has no users: whoever reaches it and, with
// TLS, shows a certificate that is believed, may read every list.
type Server struct {
	cfg    ServerConfig
	likers *Likers
	group  string
}

// NewServer makes the server of l.
func NewServer(l *Likers, cfg ServerConfig) *Server {
	return &Server{cfg: cfg, likers: l, group: l.cfg.Topology.Group(topology.LikersGroup).ID}
}

// Bounds of what a caller may ask.
const (
	maxRequest = 1 << 20 // bytes: positions of 1,024 reverse shards, with the longest users
	maxStreams = 256     // requests of one connection at once
	maxHeader  = 16 << 10
)

// Run answers until ctx ends; it returns nil then.
func (s *Server) Run(ctx context.Context) error {
	service := connect.NewServer(s.guard)
	tidemarkv1connect.RegisterLikersServiceHandler(service, s)
	mux := http.NewServeMux()
	connecthttp.Mount(mux, service, connecthttp.WithReadMaxBytes(maxRequest))
	server := &http.Server{
		Handler:           mux,
		Protocols:         new(http.Protocols),
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: maxStreams},
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          slog.NewLogLogger(s.cfg.Logger.With("component", "likers").Handler(), slog.LevelDebug),
	}
	listener := s.cfg.Listener
	if s.cfg.TLS == nil {
		server.Protocols.SetUnencryptedHTTP2(true)
	} else {
		server.Protocols.SetHTTP2(true)
		h2 := s.cfg.TLS.WithProtocols("h2")
		server.TLSConfig = h2.Config() // tells the server that it may come to HTTP/2
		listener = h2.Listener(listener)
	}
	return ops.Run(ctx, listener, server)
}

// guard turns a panic into an error and says it aloud.
func (s *Server) guard(next connect.ServerFunc) connect.ServerFunc {
	return func(ctx context.Context, spec connect.Spec, stream connect.ServerStream) (err error) {
		defer func() {
			if x := recover(); x != nil {
				s.cfg.Logger.Error("answering a list panicked", "component", "likers", "panic", x)
				err = connect.NewError(connect.CodeInternal, "answering a list panicked")
			}
		}()
		return next(ctx, spec, stream)
	}
}

// ListLikers answers a query process.
func (s *Server) ListLikers(ctx context.Context, req *tidemarkv1.ListLikersRequest) (*tidemarkv1.ListLikersResponse, error) {
	if err := ctx.Err(); err != nil {
		return nil, err // nobody waits any more
	}
	if req.Group != s.group {
		return nil, connect.NewError(connect.CodeUnavailable, fmt.Sprintf("this is a process of group %s, not %.100q", s.group, req.Group))
	}
	q, err := listQuery(req)
	if err != nil {
		return nil, coded(err)
	}
	list, err := s.likers.List(q)
	if err != nil {
		return nil, coded(err)
	}
	resp := &tidemarkv1.ListLikersResponse{More: list.More, AsOf: list.AsOf, Offset: list.Offset, Standby: list.Standby, Head: list.Head}
	for _, e := range list.Entries {
		resp.Entries = append(resp.Entries, &tidemarkv1.LikerEntry{UserId: e.User, LikedAtUs: e.LikedAtUs, Version: e.Version})
	}
	return resp, nil
}

func listQuery(req *tidemarkv1.ListLikersRequest) (ListQuery, error) {
	if req.Partition >= topology.MaxPartitions || req.Limit > MaxPage || req.Kind < 0 || req.Kind > 0xff {
		return ListQuery{}, fmt.Errorf("partition %d, limit %d or kind %d is out of range: %w", req.Partition, req.Limit, req.Kind, ErrQuery)
	}
	q := ListQuery{
		Generation: req.Generation, Kind: topology.Kind(req.Kind), Target: req.TargetId,
		Partition: int(req.Partition), Limit: int(req.Limit), Standby: req.Standby, HeadReads: req.HeadReads, After: make(map[int]Frontier, len(req.After)),
	}
	for _, a := range req.After {
		shard := int(a.GetReverseShard())
		if _, twice := q.After[shard]; twice {
			return ListQuery{}, fmt.Errorf("reverse shard %d has two positions: %w", shard, ErrQuery)
		}
		q.After[shard] = Frontier{a.GetLikedAtUs(), a.GetUserId()}
	}
	return q, nil
}

// coded gives an error the code that LikersService documents.
func coded(err error) error {
	code := connect.CodeInternal
	switch {
	case errors.Is(err, ErrNotReady):
		code = connect.CodeUnavailable
	case errors.Is(err, ErrGeneration):
		code = connect.CodeFailedPrecondition
	case errors.Is(err, ErrQuery):
		code = connect.CodeInvalidArgument
	}
	return connect.NewError(code, err.Error())
}
