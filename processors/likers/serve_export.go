package likers

import (
	"context"
	"errors"
	"fmt"

	"connectrpc.com/connect/v2"

	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// OpenExport answers an exporter.
func (s *Server) OpenExport(_ context.Context, req *tidemarkv1.OpenExportRequest) (*tidemarkv1.OpenExportResponse, error) {
	q, err := s.exportQuery(req.Export)
	if err == nil {
		err = exportCoded(s.likers.OpenExport(q))
	}
	if err != nil {
		return nil, err
	}
	return &tidemarkv1.OpenExportResponse{}, nil
}

// ReadExport answers an exporter.
func (s *Server) ReadExport(ctx context.Context, req *tidemarkv1.ReadExportRequest) (*tidemarkv1.ReadExportResponse, error) {
	if err := ctx.Err(); err != nil {
		return nil, err // nobody waits any more
	}
	q, err := s.exportQuery(req.Export)
	if err != nil {
		return nil, err
	}
	if req.ReverseShard >= topology.MaxPartitions || req.Limit > MaxPage {
		return nil, coded(fmt.Errorf("reverse shard %d or limit %d is out of range: %w", req.ReverseShard, req.Limit, ErrQuery))
	}
	after := Frontier{req.After.GetLikedAtUs(), req.After.GetUserId()}
	page, err := s.likers.ReadExport(q, int(req.ReverseShard), after, int(req.Limit))
	if err != nil {
		return nil, exportCoded(err)
	}
	resp := &tidemarkv1.ReadExportResponse{}
	for _, e := range page.Entries {
		resp.Entries = append(resp.Entries, &tidemarkv1.LikerEntry{UserId: e.User, LikedAtUs: e.LikedAtUs, Version: e.Version})
	}
	if page.More {
		resp.Next = &tidemarkv1.ReverseShardPosition{ReverseShard: req.ReverseShard, LikedAtUs: page.Next.LikedAtUs, UserId: page.Next.User}
	}
	return resp, nil
}

// CloseExport answers an exporter.
func (s *Server) CloseExport(_ context.Context, req *tidemarkv1.CloseExportRequest) (*tidemarkv1.CloseExportResponse, error) {
	q, err := s.exportQuery(req.Export)
	if err != nil {
		return nil, err
	}
	s.likers.CloseExport(q)
	return &tidemarkv1.CloseExportResponse{}, nil
}

func (s *Server) exportQuery(e *tidemarkv1.ExportOf) (ExportQuery, error) {
	if e.GetGroup() != s.group {
		return ExportQuery{}, connect.NewError(connect.CodeUnavailable, fmt.Sprintf("this is a process of group %s, not %.100q", s.group, e.GetGroup()))
	}
	if e.Partition >= topology.MaxPartitions || e.Kind < 0 || e.Kind > 0xff {
		return ExportQuery{}, coded(fmt.Errorf("partition %d or kind %d is out of range: %w", e.Partition, e.Kind, ErrQuery))
	}
	return ExportQuery{
		Barrier: e.BarrierId, Generation: e.Generation, Kind: topology.Kind(e.Kind), Target: e.TargetId, Partition: int(e.Partition),
	}, nil
}

// exportCoded gives an error the code that LikersService documents.
func exportCoded(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ErrBarrierAhead):
		return connect.NewError(connect.CodeAborted, err.Error())
	case errors.Is(err, ErrExportGone):
		return connect.NewError(connect.CodeNotFound, err.Error())
	case errors.Is(err, errTooManyExports):
		return connect.NewError(connect.CodeResourceExhausted, err.Error())
	}
	return coded(err)
}
