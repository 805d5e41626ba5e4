package load

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tidemark/tidemark/topology"
)

// client speaks the API's commands and queries.
type client struct {
	base    string
	http    *http.Client
	timeout time.Duration
	tokens  tokens
}

// maxAnswerBytes is what is read of an answer.
const maxAnswerBytes = 1 << 20

// problemStale is the type of the API's refusal of an old base version.
const problemStale = "urn:tidemark:problem:stale-base-version"

// answer is what came back for one request. status is 0 when nothing came.
type answer struct {
	status     int
	problem    string // the problem's type
	retryAfter time.Duration
	timedOut   bool
	// The relation's current version; known tells whether the answer has it.
	known   bool
	version uint64
}

// resources are the paths of the kinds' commands around the target's id.
var resources = [...][2]string{
	topology.Like:     {"/v1/videos/", "/like-relation"},
	topology.Favorite: {"/v1/videos/", "/favorite-relation"},
	topology.Follow:   {"/v1/users/", "/follow-relation"},
}

// put sends a command once. size is its body's, in bytes.
func (c *client) put(ctx context.Context, r topology.Relation, o operation) (a answer, size int, err error) {
	path := resources[r.Kind]
	url := c.base + path[0] + escapeID(r.Target) + path[1]
	sent := o.body(r.User)
	body, err := c.do(ctx, &a, http.MethodPut, url, r.User, o.id, sent)
	if err == nil && len(body) > 0 {
		a.read(r.Kind, body)
	}
	return a, len(sent), err
}

// query asks for a user's likes of videos, with counts.
func (c *client) query(ctx context.Context, user string, videos []string) (answer, error) {
	body, err := json.Marshal(struct {
		VideoIDs []string `json:"videoIds"`
	}{videos})
	if err != nil {
		return answer{}, fmt.Errorf("encoding a batch query: %w", err)
	}
	var a answer
	_, err = c.do(ctx, &a, http.MethodPost, c.base+"/v1/like-relations/batch-query", user, "", body)
	return a, err
}

// do sends one request. The only errors are a missing token and a request that
// cannot be made: what happens on the way is in the answer.
func (c *client) do(ctx context.Context, a *answer, method, url, user, key string, body []byte) ([]byte, error) {
	token, err := c.tokens.of(user)
	if err != nil {
		return nil, fmt.Errorf("making a token: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("making a request: %w", err)
	}
	// Without GetBody the transport does not repeat requests on its own, which
	// it would because of the Idempotency-Key: every attempt is counted here.
	request.GetBody = nil
	request.Header.Set("Authorization", "Bearer "+token)
	request.Header.Set("Content-Type", "application/json")
	if key != "" {
		request.Header.Set("Idempotency-Key", key)
	}
	response, err := c.http.Do(request)
	if err != nil {
		a.timedOut = isTimeout(err)
		return nil, nil
	}
	defer response.Body.Close()
	data, err := io.ReadAll(io.LimitReader(response.Body, maxAnswerBytes))
	if err != nil {
		a.timedOut = isTimeout(err)
		return nil, nil // the outcome is as unknown as without an answer
	}
	a.status = response.StatusCode
	a.retryAfter = retryAfter(response.Header.Get("Retry-After"), time.Now())
	if a.status == http.StatusUnauthorized {
		c.tokens.drop(user)
	}
	return data, nil
}

func isTimeout(err error) bool {
	var n net.Error
	return errors.Is(err, context.DeadlineExceeded) || (errors.As(err, &n) && n.Timeout())
}

// read takes what the body says about the relation: a command's answer has it
// at the top, a refusal in currentRelation.
func (a *answer) read(k topology.Kind, body []byte) {
	type relation struct {
		State           string  `json:"state"`
		RelationVersion *uint64 `json:"relationVersion"`
	}
	var v struct {
		relation
		Type            string    `json:"type"`
		CurrentRelation *relation `json:"currentRelation"`
	}
	if json.Unmarshal(body, &v) != nil {
		return
	}
	a.problem = v.Type
	current := v.relation
	if v.CurrentRelation != nil {
		current = *v.CurrentRelation
	}
	if _, err := topology.ParseState(k, current.State); err != nil || current.RelationVersion == nil {
		return
	}
	a.known, a.version = true, *current.RelationVersion
}

// retryAfter reads a Retry-After header: seconds or a date; 0 for none.
func retryAfter(s string, now time.Time) time.Duration {
	if s == "" {
		return 0
	}
	if n, err := strconv.ParseUint(s, 10, 31); err == nil {
		return time.Duration(n) * time.Second
	}
	if at, err := http.ParseTime(s); err == nil {
		return max(0, at.Sub(now))
	}
	return 0
}

// escapeID writes an id as one segment of a path. Dots are escaped when the
// segment would otherwise mean a folder.
func escapeID(id string) string {
	const upper = "0123456789ABCDEF"
	if strings.Trim(id, ".") == "" {
		return strings.ReplaceAll(id, ".", "%2E")
	}
	plain := func(c byte) bool {
		return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '-' || c == '_' || c == '.'
	}
	var b strings.Builder
	for i := range len(id) {
		if c := id[i]; plain(c) {
			b.WriteByte(c)
		} else {
			b.Write([]byte{'%', upper[c>>4], upper[c&15]})
		}
	}
	return b.String()
}

// tokens remembers the tokens of some users.
type tokens struct {
	mint func(user string) (string, error)
	mu   sync.Mutex
	kept map[string]string
}

const maxTokens = 100_000

func (t *tokens) of(user string) (string, error) {
	t.mu.Lock()
	token, ok := t.kept[user]
	t.mu.Unlock()
	if ok {
		return token, nil
	}
	token, err := t.mint(user)
	if err != nil {
		return "", err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.kept == nil || len(t.kept) >= maxTokens {
		t.kept = map[string]string{}
	}
	t.kept[user] = token
	return token, nil
}

func (t *tokens) drop(user string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.kept, user)
}
