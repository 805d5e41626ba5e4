package reading

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/tidemark/tidemark/internal/pause"
	"github.com/tidemark/tidemark/topology"
)

// Client asks an API as one user.
type Client struct {
	BaseURL string // such as http://127.0.0.1:8080
	Token   string // the user's bearer token
}

// Told is what an answer says of a relation.
type Told struct {
	State   topology.State
	Version uint64
	Below   bool // the API says that it is below what was named
}

// Why a request has no answer that could be judged.
var (
	// ErrRefused: 503 or 429 with Retry-After.
	ErrRefused = errors.New("refused with Retry-After")
	// ErrCut: the connection ended, or there was none.
	ErrCut = errors.New("no answer")
)

const (
	// askTimeout is far more than an API may keep anybody waiting.
	askTimeout     = 10 * time.Second
	maxAnswerBytes = 4 << 20
)

var httpClient = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256, IdleConnTimeout: time.Minute}}

// batchPaths are where each kind's relations are asked for.
var batchPaths = [...]string{
	topology.Like: "/v1/like-relations/batch-query", topology.Favorite: "/v1/favorite-relations/batch-query", topology.Follow: "/v1/follow-relations/batch-query",
}

// MaxBatch is the most targets of a question.
const MaxBatch = 200

// Query asks for the user's relations of one kind to the targets, in their
// order. least names versions by target; nil: none.
func (c Client) Query(ctx context.Context, kind topology.Kind, targets []string, least map[string]uint64) ([]Told, error) {
	ids := "videoIds"
	if kind == topology.Follow {
		ids = "userIds"
	}
	query := map[string]any{ids: targets}
	if len(least) > 0 {
		query["minRelationVersions"] = least
	}
	body, err := c.do(ctx, http.MethodPost, batchPaths[kind], "", query)
	if err != nil {
		return nil, err
	}
	var answer struct {
		Items []struct {
			VideoID, UserID string
			MyState         string
			RelationVersion uint64
			BelowMinimum    bool
		}
	}
	if err := json.Unmarshal(body, &answer); err != nil || len(answer.Items) != len(targets) {
		return nil, fmt.Errorf("%d targets, answered with %.300s: %w", len(targets), body, errors.Join(err, errUnreadable))
	}
	told := make([]Told, len(targets))
	for i, item := range answer.Items {
		state, err := topology.ParseState(kind, item.MyState)
		if err != nil || item.VideoID+item.UserID != targets[i] {
			return nil, fmt.Errorf("item %d, %s, is answered with %+v: %w", i, targets[i], item, errors.Join(err, errUnreadable))
		}
		told[i] = Told{state, item.RelationVersion, item.BelowMinimum}
	}
	return told, nil
}

var errUnreadable = errors.New("not what was asked for")

// Set changes a relation to a video that is at a version, and tries until that
// is decided.
func (c Client) Set(ctx context.Context, target string, desired topology.State, base uint64) (Told, error) {
	cmd := command{key: uuid.NewString(), target: target, desired: desired, base: base, sequence: int(base) + 1, device: "setting-" + target}
	for {
		told, err := c.like(ctx, cmd)
		if !errors.Is(err, ErrRefused) && !errors.Is(err, ErrCut) {
			return told, err
		}
		if !pause.For(ctx, setAgain) {
			return told, ctx.Err()
		}
	}
}

const setAgain = 50 * time.Millisecond

// command is one change, the same at each attempt.
type command struct {
	key      string // idempotency key
	target   string
	desired  topology.State
	base     uint64
	sequence int
	device   string
}

// like sends a command about a video once.
func (c Client) like(ctx context.Context, cmd command) (Told, error) {
	body, err := c.do(ctx, http.MethodPut, "/v1/videos/"+cmd.target+"/like-relation", cmd.key, map[string]any{
		"desiredState": cmd.desired.String(), "baseVersion": cmd.base, "deviceId": cmd.device, "clientSequence": cmd.sequence,
	})
	if err != nil {
		return Told{}, err
	}
	var answer struct {
		State           string
		RelationVersion uint64
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return Told{}, fmt.Errorf("a command is answered with %.300s: %w", body, errUnreadable)
	}
	state, err := topology.ParseState(topology.Like, answer.State)
	return Told{State: state, Version: answer.RelationVersion}, err
}

// Do sends one request, which an API may refuse, and reads its answer; nil: it
// does not matter.
func (c Client) Do(ctx context.Context, method, path, key string, body, answer any) error {
	text, err := c.do(ctx, method, path, key, body)
	if err != nil || answer == nil {
		return err
	}
	if err := json.Unmarshal(text, answer); err != nil {
		return fmt.Errorf("%s %s is answered with %.300s: %w", method, path, text, errors.Join(err, errUnreadable))
	}
	return nil
}

// do sends one request. The error is ErrRefused, ErrCut, ctx's, or what no API
// may answer.
func (c Client) do(ctx context.Context, method, path, key string, body any) ([]byte, error) {
	var text []byte
	if body != nil {
		var err error
		if text, err = json.Marshal(body); err != nil {
			return nil, fmt.Errorf("encoding a request: %w", err)
		}
	}
	asking, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(asking, method, c.BaseURL+path, bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	req.GetBody = nil // with a key the transport would repeat it by itself
	req.Header.Set("Authorization", "Bearer "+c.Token)
	req.Header.Set("Content-Type", "application/json")
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	resp, err := httpClient.Do(req)
	if err != nil {
		return nil, unanswered(ctx, err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswerBytes))
	switch {
	case err != nil:
		return nil, unanswered(ctx, err)
	case slices.Contains(refusals, resp.StatusCode) && resp.Header.Get("Retry-After") != "":
		return nil, ErrRefused
	case resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusCreated && resp.StatusCode != http.StatusAccepted:
		return nil, fmt.Errorf("status %d, Retry-After %q: %.300s", resp.StatusCode, resp.Header.Get("Retry-After"), answer)
	}
	return answer, nil
}

var refusals = []int{http.StatusServiceUnavailable, http.StatusTooManyRequests}

func unanswered(ctx context.Context, err error) error {
	var slow net.Error
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.As(err, &slow) && slow.Timeout():
		return fmt.Errorf("nothing within %v: %w", askTimeout, err)
	}
	return fmt.Errorf("%w: %w", ErrCut, err)
}
