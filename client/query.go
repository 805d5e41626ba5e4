package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// MaxTargets is the most targets of one Query.
const MaxTargets = 200

// An Item is a target as it is shown: the user's relation to it and its count.
type Item struct {
	View
	DisplayCount int64
	// CountSnapshotAt is the time of the count; nil when nobody has ever
	// related to the target.
	CountSnapshotAt *time.Time
}

// Query asks for the user's relations of one kind to targets and for their
// counts, in the order of targets, and observes the answer: the Views are not
// older than what the client knew, and have the user's pending wishes. It goes
// on trying until ctx ends.
func (c *Client) Query(ctx context.Context, kind Kind, targets ...string) ([]Item, error) {
	ids, path := "videoIds", "/v1/"+string(kind)+"-relations/batch-query"
	if kind == KindFollow {
		ids = "userIds"
	}
	if len(targets) == 0 || len(targets) > MaxTargets {
		return nil, fmt.Errorf("%w: %d targets are not 1 to %d", ErrInvalid, len(targets), MaxTargets)
	}
	least := map[string]uint64{}
	for _, target := range targets {
		r := Relation{kind, target}
		if err := r.check(); err != nil {
			return nil, err
		}
		if v := c.View(r); v.Confirmed.Version > 0 {
			least[target] = v.Confirmed.Version
		}
	}
	body := map[string]any{ids: targets, "minRelationVersions": least}
	told, err := backoff.Retry(ctx, func() ([]toldItem, error) { return c.ask(ctx, path, body, len(targets)) },
		backoff.WithBackOff(c.retry()), backoff.WithMaxElapsedTime(0))
	if err != nil {
		return nil, fmt.Errorf("querying relations: %w", err)
	}
	items := make([]Item, len(targets))
	for i, t := range told {
		r := Relation{kind, targets[i]}
		if err := c.Observe(r, Confirmed{State: t.MyState, Version: t.RelationVersion}); err != nil {
			return nil, err
		}
		items[i] = Item{View: c.View(r), DisplayCount: t.DisplayCount, CountSnapshotAt: t.CountSnapshotAt}
	}
	return items, nil
}

type toldItem struct {
	MyState         State      `json:"myState"`
	RelationVersion uint64     `json:"relationVersion"`
	DisplayCount    int64      `json:"displayCount"`
	CountSnapshotAt *time.Time `json:"countSnapshotAt"`
}

// ask sends a query once; its error says whether to send it again.
func (c *Client) ask(ctx context.Context, path string, body any, count int) ([]toldItem, error) {
	res, err := c.do(ctx, http.MethodPost, path, "", body)
	if err != nil {
		return nil, err
	}
	if res.status != http.StatusOK {
		p := res.problem()
		switch {
		case final(p):
			return nil, backoff.Permanent(p)
		case p.RetryAfter > 0:
			return nil, &backoff.RetryAfterError{Duration: p.RetryAfter}
		}
		return nil, p
	}
	var v struct {
		Items []toldItem `json:"items"`
	}
	if err := json.Unmarshal(res.text, &v); err != nil || len(v.Items) != count {
		return nil, errors.New("the answer is not one to this query")
	}
	return v.Items, nil
}
