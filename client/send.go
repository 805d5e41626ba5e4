package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/tidemark/tidemark/internal/signature"
)

// maxAnswerBytes is what is read of an answer.
const maxAnswerBytes = 1 << 20

// An answer is what one attempt brought: one of its fields.
type answer struct {
	decided *Confirmed // 200: the relation as it is now
	stale   *Confirmed // the base version was refused
	refused error      // would be refused again
	expired bool       // too old for the server
	reused  bool       // the id is another command's: this one was not decided
	again   error      // unknown: send it again
	wait    time.Duration
}

// A body is what a command says.
type body struct {
	DesiredState State   `json:"desiredState"`
	BaseVersion  *uint64 `json:"baseVersion,omitempty"`
	DeviceID     string  `json:"deviceId,omitempty"`
}

// attempt sends an operation once.
func (c *Client) attempt(ctx context.Context, r Relation, op *operation) answer {
	res, err := c.do(ctx, http.MethodPut, r.path(), op.ID, body{op.Desired, op.Base, c.config.DeviceID})
	if err != nil {
		return answer{again: err}
	}
	return read(res, op)
}

// A response is what came back for a request, whole.
type response struct {
	status int
	wait   time.Duration // Retry-After; 0: none
	text   []byte
}

// do sends one request when it is its turn; key is the Idempotency-Key of one
// that has one.
func (c *Client) do(ctx context.Context, method, path, key string, body any) (response, error) {
	select {
	case c.slots <- struct{}{}:
		defer func() { <-c.slots }()
	case <-ctx.Done():
		return response{}, ctx.Err()
	}
	ctx, cancel := context.WithTimeout(ctx, c.config.AttemptTimeout)
	defer cancel()
	req, err := c.request(ctx, method, path, key, body)
	if err != nil {
		return response{}, err
	}
	res, err := c.config.HTTP.Do(req)
	if err != nil {
		return response{}, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, maxAnswerBytes))
	if err != nil {
		return response{}, fmt.Errorf("reading the answer: %w", err)
	}
	return response{res.StatusCode, retryAfter(res.Header.Get("Retry-After"), time.Now()), text}, nil
}

func (c *Client) request(ctx context.Context, method, path, key string, body any) (*http.Request, error) {
	token, err := c.config.Token(ctx)
	if err != nil {
		return nil, fmt.Errorf("getting a token: %w", err)
	}
	text, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, method, c.config.URL+path, bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Content-Type", "application/json")
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	return req, c.sign(ctx, req, text)
}

// sign signs a whole request with the key of now, if there are keys.
func (c *Client) sign(ctx context.Context, req *http.Request, body []byte) error {
	if c.config.SigningKey == nil {
		return nil
	}
	key, err := c.config.SigningKey(ctx)
	if err != nil {
		return fmt.Errorf("getting a signing key: %w", err)
	}
	return signature.Sign(req, body, key, time.Now())
}

// read judges an answer. What is not certainly the API's word on this
// operation leaves its outcome unknown.
func read(res response, op *operation) answer {
	if res.status == http.StatusOK {
		var v struct {
			Confirmed
			OperationID string `json:"operationId"`
		}
		if json.Unmarshal(res.text, &v) != nil || v.OperationID != op.ID || v.State == "" {
			return answer{again: errors.New("the answer is not one to this operation"), wait: res.wait}
		}
		return answer{decided: &v.Confirmed}
	}
	p := res.problem()
	switch {
	case p.Type == problemStale && p.Current != nil:
		return answer{stale: p.Current}
	case p.Type == problemExpired:
		return answer{expired: true, refused: p}
	case p.Type == problemReused:
		return answer{reused: true}
	case final(p):
		return answer{refused: p}
	}
	return answer{again: p, wait: res.wait}
}

// problem reads an answer that is not a success; of what is none of the API's
// only the status is taken.
func (res response) problem() *Problem {
	var v struct {
		Type    string     `json:"type"`
		Title   string     `json:"title"`
		Detail  string     `json:"detail"`
		Current *Confirmed `json:"currentRelation"`
	}
	p := &Problem{Status: res.status, RetryAfter: res.wait}
	if json.Unmarshal(res.text, &v) != nil || !strings.HasPrefix(v.Type, problemPrefix) {
		return p
	}
	p.Type, p.Title, p.Detail = v.Type, v.Title, v.Detail
	if v.Current != nil && v.Current.State != "" {
		p.Current = v.Current
	}
	return p
}

// final tells whether the API would refuse the same command again. A 4xx that
// is none of the API's is of something on the way, a login page or a gateway.
func final(p *Problem) bool {
	if p.Type == "" {
		return false
	}
	switch p.Status {
	case http.StatusUnauthorized, http.StatusRequestTimeout, http.StatusTooManyRequests:
		return false
	}
	return p.Status >= 400 && p.Status < 500
}

// maxRetryAfter bounds how long a server may keep a client away.
const maxRetryAfter = time.Hour

// retryAfter reads a Retry-After header: seconds or a date; 0 for none.
func retryAfter(s string, now time.Time) time.Duration {
	if n, err := strconv.ParseUint(s, 10, 31); err == nil {
		return min(time.Duration(n)*time.Second, maxRetryAfter)
	}
	if at, err := http.ParseTime(s); err == nil {
		return min(max(0, at.Sub(now)), maxRetryAfter)
	}
	return 0
}
