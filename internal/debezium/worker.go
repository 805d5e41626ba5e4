package debezium

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/tidemark/tidemark/internal/pause"
)

// Worker is a Kafka Connect worker, by the URL of its REST interface.
type Worker struct{ URL string }

// poll is how often a worker is asked for what it has not reached yet.
const poll = 50 * time.Millisecond

// Ready is nil when the worker has joined its group and knows Debezium.
func (w Worker) Ready(ctx context.Context) error {
	var plugins []struct {
		Class string `json:"class"`
	}
	if err := w.call(ctx, http.MethodGet, "/connector-plugins", nil, &plugins); err != nil {
		return err
	}
	for _, p := range plugins {
		if p.Class == Class {
			// Answered by the herder, which is there after the group is.
			return w.call(ctx, http.MethodGet, "/connectors", nil, new([]string))
		}
	}
	return errors.New("the Connect worker does not know " + Class + ": put Debezium's jars where it finds its plugins")
}

// Apply makes or changes a connector and waits until its task runs.
func (w Worker) Apply(ctx context.Context, c Connector) error {
	if err := w.call(ctx, http.MethodPut, at(c.Name)+"/config", c.Config, nil); err != nil {
		return fmt.Errorf("applying connector %s: %w", c.Name, err)
	}
	for {
		running, err := w.taskRuns(ctx, c.Name)
		if err != nil {
			return fmt.Errorf("starting connector %s: %w", c.Name, err)
		}
		if running {
			return nil
		}
		if !pause.For(ctx, poll) {
			return fmt.Errorf("waiting for connector %s: %w", c.Name, ctx.Err())
		}
	}
}

// taskRuns tells whether the connector's one task runs; one that failed is an
// error.
func (w Worker) taskRuns(ctx context.Context, name string) (bool, error) {
	type unit struct {
		State string `json:"state"`
		Trace string `json:"trace"`
	}
	var status struct {
		Connector unit   `json:"connector"`
		Tasks     []unit `json:"tasks"`
	}
	err := w.call(ctx, http.MethodGet, at(name)+"/status", nil, &status)
	if refusedWith(err, http.StatusNotFound) { // not known yet
		return false, nil
	}
	if err != nil {
		return false, err
	}
	for _, u := range append(status.Tasks, status.Connector) {
		if u.State == "FAILED" {
			return false, fmt.Errorf("it has failed: %s", firstLines(u.Trace, 3))
		}
		if u.State != "RUNNING" {
			return false, nil
		}
	}
	return len(status.Tasks) > 0, nil
}

func firstLines(s string, n int) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[:min(len(lines), n)], " / ")
}

// Restart stops and starts a connector's task in order.
func (w Worker) Restart(ctx context.Context, name string) error {
	if err := w.call(ctx, http.MethodPost, at(name)+"/restart?includeTasks=true", nil, nil); err != nil {
		return fmt.Errorf("restarting connector %s: %w", name, err)
	}
	return nil
}

// Remove stops a connector and deletes it with the offsets that the worker
// keeps for it: the slot alone says where the next feed goes on, and one that
// comes back later must not start from where it was. The slot stays. A
// connector that is not there is no error.
func (w Worker) Remove(ctx context.Context, name string) error {
	err := w.call(ctx, http.MethodPut, at(name)+"/stop", nil, nil)
	if refusedWith(err, http.StatusNotFound) {
		return nil
	}
	if err == nil {
		err = w.deleteOffsets(ctx, name)
	}
	if err == nil {
		err = w.call(ctx, http.MethodDelete, at(name), nil, nil)
	}
	if err != nil {
		return fmt.Errorf("removing connector %s: %w", name, err)
	}
	return nil
}

// deleteOffsets waits until the connector's task has stopped; the worker
// refuses before.
func (w Worker) deleteOffsets(ctx context.Context, name string) error {
	for {
		err := w.call(ctx, http.MethodDelete, at(name)+"/offsets", nil, nil)
		if !refusedWith(err, http.StatusBadRequest, http.StatusConflict) {
			return err
		}
		if !pause.For(ctx, poll) {
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		}
	}
}

func at(name string) string { return "/connectors/" + url.PathEscape(name) }

// refusal is an answer of the worker's that is not good.
type refusal struct {
	status  int
	message string
}

func (e *refusal) Error() string {
	return fmt.Sprintf("the Connect worker answers %d: %s", e.status, e.message)
}

func refusedWith(err error, statuses ...int) bool {
	var no *refusal
	return errors.As(err, &no) && slices.Contains(statuses, no.status)
}

// client keeps no connection: calls are rare.
var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// call sends body, if any, as JSON, and reads the answer into v, if any.
func (w Worker) call(ctx context.Context, method, path string, body, v any) error {
	var text strings.Builder
	if body != nil {
		if err := json.NewEncoder(&text).Encode(body); err != nil {
			return fmt.Errorf("encoding a request for the Connect worker: %w", err)
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, strings.TrimRight(w.URL, "/")+path, strings.NewReader(text.String()))
	if err != nil {
		return fmt.Errorf("calling the Connect worker: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("calling the Connect worker: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode >= 300 {
		var said struct {
			Message string `json:"message"`
		}
		_ = json.NewDecoder(resp.Body).Decode(&said) // an empty message will do
		return &refusal{resp.StatusCode, said.Message}
	}
	if v == nil {
		return nil
	}
	if err := json.NewDecoder(resp.Body).Decode(v); err != nil {
		return fmt.Errorf("reading the Connect worker's answer: %w", err)
	}
	return nil
}
