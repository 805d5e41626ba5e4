package drills

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tidemark/tidemark/drills/oracle"
	"github.com/tidemark/tidemark/internal/gokakit"
)

// Classes of findings about operations.
const (
	DecidedTwice oracle.Class = "decided-twice" // one intention, more than one operation that took effect
	AnsweredTwo  oracle.Class = "answered-two"  // one operation, two results
	Forgotten    oracle.Class = "forgotten"     // an operation was answered as decided that no shard has
)

// lossyAPI is a proxy in front of the API that loses requests and answers, and
// sends requests twice, as networks and gateways do. It remembers what each
// operation was answered, also when the client never heard it.
type lossyAPI struct {
	address string
	api     string // base URL
	server  *http.Server
	forward *http.Transport

	mu      sync.Mutex
	rnd     *rand.Rand
	odds    float64               // of harm to a command; 0: none
	sent    map[string]*operation // by id
	refused []string              // what contradicts itself
	lost    map[string]int        // by what was done
}

// operation is what came by of one operation id.
type operation struct {
	intention uint64 // the load's number of the command
	answer    string // the result that was told first; "": none yet
	decided   bool
}

// harms are what can be done to a command that passes.
var harms = []string{
	"request-lost",   // the API never sees it
	"sent-then-cut",  // the API has it, and nobody listens
	"answer-lost",    // decided, and the client hears nothing
	"answer-cut",     // decided, and the client hears half of it
	"request-double", // the API gets it twice at once
}

func newLossyAPI(api string, seed uint64) (*lossyAPI, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listening before the API: %w", err)
	}
	p := &lossyAPI{
		address: l.Addr().String(), api: api, forward: &http.Transport{MaxIdleConnsPerHost: 64},
		rnd: source(seed, "lossy API"), sent: map[string]*operation{}, lost: map[string]int{},
	}
	p.server = &http.Server{Handler: p, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = p.server.Serve(l) }() // ends with close
	return p, nil
}

func (p *lossyAPI) close() {
	_ = p.server.Close()
	p.forward.CloseIdleConnections()
}

// lose sets how much of what passes is harmed.
func (p *lossyAPI) lose(odds float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.odds = odds
}

// draw says what happens to a command, "" for nothing, and counts it.
func (p *lossyAPI) draw() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.rnd.Float64() >= p.odds {
		return ""
	}
	harm := harms[p.rnd.IntN(len(harms))]
	p.lost[harm]++
	return harm
}

// ServeHTTP passes a command on, or harms it. Cutting the client's connection is
// a panic with http.ErrAbortHandler.
func (p *lossyAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	id := r.Header.Get("Idempotency-Key")
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	harm := ""
	if id != "" {
		p.note(id, body)
		harm = p.draw()
	}
	switch harm {
	case "request-lost":
		panic(http.ErrAbortHandler)
	case "sent-then-cut":
		p.sendAndLeave(r, body)
		panic(http.ErrAbortHandler)
	case "request-double":
		var twin sync.WaitGroup
		twin.Go(func() { _, _, _ = p.send(r.Context(), r, body, id) })
		defer twin.Wait()
	}
	res, answer, err := p.send(r.Context(), r, body, id)
	if err != nil || harm == "answer-lost" {
		panic(http.ErrAbortHandler)
	}
	for _, name := range []string{"Content-Type", "Retry-After"} {
		if v := res.Header.Get(name); v != "" {
			w.Header().Set(name, v)
		}
	}
	w.Header().Set("Content-Length", fmt.Sprint(len(answer)))
	w.WriteHeader(res.StatusCode)
	if harm == "answer-cut" {
		answer = answer[:len(answer)/2]
	}
	_, _ = w.Write(answer)
	if harm == "answer-cut" {
		panic(http.ErrAbortHandler)
	}
}

// send asks the API and notes what it answers.
func (p *lossyAPI) send(ctx context.Context, r *http.Request, body []byte, id string) (*http.Response, []byte, error) {
	req, err := p.request(ctx, r, body)
	if err != nil {
		return nil, nil, err
	}
	res, err := p.forward.RoundTrip(req)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = res.Body.Close() }()
	answer, err := io.ReadAll(res.Body)
	if err == nil && id != "" {
		p.noteAnswer(id, res.StatusCode, answer)
	}
	return res, answer, err
}

func (p *lossyAPI) request(ctx context.Context, r *http.Request, body []byte) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, r.Method, p.api+r.URL.RequestURI(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.GetBody = nil // the transport repeats nothing by itself
	req.Header = r.Header.Clone()
	return req, nil
}

// sendAndLeave writes the request on a connection of its own and closes it: the
// API may not have begun, be deciding, or have decided.
func (p *lossyAPI) sendAndLeave(r *http.Request, body []byte) {
	req, err := p.request(r.Context(), r, body)
	if err != nil {
		return
	}
	conn, err := net.DialTimeout("tcp", req.URL.Host, time.Second)
	if err != nil {
		return
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	_ = req.Write(conn)
	p.mu.Lock()
	linger := between(p.rnd, 0, 5*time.Millisecond)
	p.mu.Unlock()
	_ = sleep(r.Context(), linger)
}

func (p *lossyAPI) note(id string, body []byte) {
	var sent struct{ ClientSequence uint64 }
	err := json.Unmarshal(body, &sent)
	p.mu.Lock()
	defer p.mu.Unlock()
	switch known := p.sent[id]; {
	case err != nil:
		p.refused = append(p.refused, "a command that is not JSON")
	case known == nil:
		p.sent[id] = &operation{intention: sent.ClientSequence}
	case known.intention != sent.ClientSequence:
		p.refused = append(p.refused, fmt.Sprintf("operation %s stands for commands %d and %d", id, known.intention, sent.ClientSequence))
	}
}

// noteAnswer compares what an operation is answered with what it was answered
// before. Only its result counts: the current relation moves on.
func (p *lossyAPI) noteAnswer(id string, status int, answer []byte) {
	if status != http.StatusOK && status != http.StatusConflict {
		return
	}
	var told struct{ OperationResult json.RawMessage }
	if json.Unmarshal(answer, &told) != nil || told.OperationResult == nil {
		return
	}
	result := string(told.OperationResult)
	p.mu.Lock()
	defer p.mu.Unlock()
	o := p.sent[id]
	switch {
	case o.answer == "":
		o.answer, o.decided = result, true
	case o.answer != result:
		p.refused = append(p.refused, fmt.Sprintf("operation %s was answered %s, then %s", id, o.answer, result))
	}
}

// loseAnswers harms commands for some seconds and waits until what was decided
// is displayed.
func loseAnswers(ctx context.Context, s *system, rnd *rand.Rand) error {
	if s.lossy == nil {
		return errors.New("the drill has no proxy before the API")
	}
	s.lossy.lose(0.2 + 0.6*rnd.Float64())
	defer s.lossy.lose(0)
	if err := sleep(ctx, between(rnd, 5*time.Second, 10*time.Second)); err != nil {
		return err
	}
	s.lossy.lose(0)
	return s.flowing(ctx)
}

// judgeOperations compares what passed the proxy with what the shards hold:
// one row for each operation, no operation answered that none of them has, and
// one operation that was not rejected for each intention.
func (s *system) judgeOperations(ctx context.Context) error {
	if s.lossy == nil {
		return nil
	}
	rows := map[string]int{}
	took := map[uint64][]string{} // operations by intention
	for shard := range s.cfg.Postgres {
		conn, err := pgx.Connect(ctx, s.cfg.Postgres[shard])
		if err != nil {
			return fmt.Errorf("reading the operations of shard %d: %w", shard, err)
		}
		err = s.lossy.collect(ctx, conn, rows, took)
		_ = conn.Close(ctx) // nothing is open
		if err != nil {
			return fmt.Errorf("reading the operations of shard %d: %w", shard, err)
		}
	}
	s.lossy.judge(s.findings, rows, took)
	harmed := 0
	for harm, n := range s.lossy.lost {
		harmed += n
		s.tallies.note("%s: %d", harm, n)
	}
	s.tallies.note("operations: %d of %d commands", len(rows), len(took))
	if harmed == 0 {
		return errors.New("nothing was lost: no command passed while answers were being lost")
	}
	return nil
}

func (p *lossyAPI) collect(ctx context.Context, conn *pgx.Conn, rows map[string]int, took map[uint64][]string) error {
	found, err := conn.Query(ctx, "SELECT operation_id, outcome FROM command")
	if err != nil {
		return err
	}
	var id string
	var outcome int
	p.mu.Lock()
	defer p.mu.Unlock()
	_, err = pgx.ForEachRow(found, []any{&id, &outcome}, func() error {
		rows[id]++
		if o := p.sent[id]; o != nil && rows[id] == 1 && outcome != rejected {
			took[o.intention] = append(took[o.intention], id)
		}
		return nil
	})
	return err
}

// rejected is the outcome of a command whose base version was stale; it is asked
// again, as a new operation, of purpose.
const rejected = 3

func (p *lossyAPI) judge(findings *oracle.Findings, rows map[string]int, took map[uint64][]string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, what := range p.refused {
		findings.Add(AnsweredTwo, "%s", what)
	}
	for id, n := range rows {
		if n > 1 {
			findings.Add(DecidedTwice, "operation %s stands %d times in its shard", id, n)
		}
	}
	for intention, ids := range took {
		if len(ids) > 1 {
			findings.Add(DecidedTwice, "command %d was decided as operations %v", intention, ids)
		}
	}
	for id, o := range p.sent {
		if o.decided && rows[id] == 0 {
			findings.Add(Forgotten, "operation %s was answered %s, and no shard has it", id, o.answer)
		}
	}
}

// freshOperations tells whether the load's client retries as it must not.
func (s *system) freshOperations() bool { return s.weak.Has(gokakit.WithoutOperation) }
