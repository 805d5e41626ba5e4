package client

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A roundTripper answers requests from a list.
type roundTripper struct {
	bodies  []string
	answers []*http.Response
}

func (r *roundTripper) RoundTrip(req *http.Request) (*http.Response, error) {
	b, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	r.bodies = append(r.bodies, req.URL.Path+" "+string(b))
	if len(r.answers) == 0 {
		return nil, errDropped
	}
	a := r.answers[0]
	r.answers = r.answers[1:]
	return a, nil
}

func says(status int, header http.Header, text string) *http.Response {
	return &http.Response{StatusCode: status, Header: header, Body: io.NopCloser(strings.NewReader(text))}
}

func TestQuery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wire := &roundTripper{answers: []*http.Response{
			says(503, http.Header{"Retry-After": {"20"}}, `{"type":"urn:tidemark:problem:counts-unavailable"}`),
			says(200, nil, `{"items":[]}`),
			says(200, nil, `{"items":[{"userId":"u8","myState":"UNFOLLOWED","relationVersion":2,"displayCount":7,"countSnapshotAt":"2026-08-19T10:20:30Z"},
				{"userId":"u9","myState":"FOLLOWING","relationVersion":1,"displayCount":0,"countSnapshotAt":null}]}`),
			says(400, nil, `{"type":"urn:tidemark:problem:invalid-request"}`),
		}}
		config := newServer().config()
		config.HTTP = &http.Client{Transport: wire}
		c, err := Open(config)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Observe(Follow("u8"), Confirmed{State: Following, Version: 3}); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		items, err := c.Query(t.Context(), KindFollow, "u8", "u9")
		if err != nil || time.Since(start) < 20*time.Second {
			t.Fatalf("after %v: %v", time.Since(start), err)
		}
		if i := items[0]; i.State != Following || i.Confirmed.Version != 3 || i.DisplayCount != 7 || i.CountSnapshotAt == nil {
			t.Errorf("older than what was known: %+v", i)
		}
		if i := items[1]; i.State != Following || !i.Known || i.CountSnapshotAt != nil {
			t.Errorf("%+v", i)
		}
		const sent = `/v1/follow-relations/batch-query {"minRelationVersions":{"u8":3},"userIds":["u8","u9"]}`
		if wire.bodies[2] != sent {
			t.Errorf("sent %s", wire.bodies[2])
		}
		var p *Problem
		if _, err := c.Query(t.Context(), KindLike, "V1"); !errors.As(err, &p) || p.Status != 400 {
			t.Errorf("a refusal: %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := c.Query(ctx, KindLike, "V1"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("no server: %v", err)
		}
		for _, targets := range [][]string{nil, {""}, make([]string, 201)} {
			if _, err := c.Query(ctx, KindLike, targets...); !errors.Is(err, ErrInvalid) {
				t.Errorf("%d targets: %v", len(targets), err)
			}
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}
