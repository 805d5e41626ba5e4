package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
)

// batchChecked is one in how many answers is read; of the others only their status
// and length are.
const batchChecked = 256

var errBatchRefused = errors.New("refused")

// batchClient is one connection on which a request waits for the answer to the one
// before. It reads of HTTP what this API answers with, which costs a fraction of
// what net/http's client does, and so leaves the cores to what is measured.
type batchClient struct {
	conn net.Conn
	in   *bufio.Reader
	body []byte
}

func dialBatch(ctx context.Context, base string) (*batchClient, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", strings.TrimPrefix(base, "http://"))
	if err != nil {
		return nil, err
	}
	return &batchClient{conn: conn, in: bufio.NewReaderSize(conn, 16<<10)}, nil
}

func (c *batchClient) close() { _ = c.conn.Close() }

const batchPatience = 10 * time.Second // for one answer

// ask sends a request and reads its answer whole; checked, it must tell that
// so many targets are liked, that the others never were, and that all have a count.
func (c *batchClient) ask(request []byte, related int, checked bool) error {
	if checked { // now and then is enough, and costs a timer
		if err := c.conn.SetDeadline(time.Now().Add(batchPatience)); err != nil {
			return err
		}
	}
	if _, err := c.conn.Write(request); err != nil {
		return err
	}
	length, status, err := c.head()
	if err != nil {
		return err
	}
	ok := status == http.StatusOK
	if ok && !checked {
		_, err := c.in.Discard(length)
		return err
	}
	c.body = append(c.body[:0], make([]byte, length)...)
	if _, err := io.ReadFull(c.in, c.body); err != nil {
		return err
	}
	if !ok {
		return fmt.Errorf("%w: %.300s", errBatchRefused, c.body)
	}
	return checkBatch(c.body, related)
}

// answer sends a request and passes over its answer.
func (c *batchClient) answer(request []byte, deadline time.Time) (status int, err error) {
	if err := c.conn.SetDeadline(deadline); err != nil {
		return 0, err
	}
	if _, err := c.conn.Write(request); err != nil {
		return 0, err
	}
	length, status, err := c.head()
	if err != nil {
		return 0, err
	}
	_, err = c.in.Discard(length)
	return status, err
}

var contentLength = []byte("Content-Length: ")

// head reads an answer's head.
func (c *batchClient) head() (length, status int, err error) {
	length = -1
	for first := true; ; first = false {
		line, err := c.in.ReadSlice('\n')
		if err != nil {
			return 0, 0, err
		}
		line = bytes.TrimRight(line, "\r\n")
		switch {
		case first:
			if status, err = httpStatus(line); err != nil {
				return 0, 0, err
			}
		case len(line) == 0:
			if length < 0 {
				return 0, 0, errors.New("an answer without a length")
			}
			return length, status, nil
		default:
			if digits, found := bytes.CutPrefix(line, contentLength); found {
				if length, err = strconv.Atoi(string(digits)); err != nil {
					return 0, 0, err
				}
			}
		}
	}
}

func httpStatus(line []byte) (int, error) {
	digits, found := bytes.CutPrefix(line, []byte("HTTP/1.1 "))
	if !found || len(digits) < 3 {
		return 0, fmt.Errorf("an answer that begins %.40q", line)
	}
	return strconv.Atoi(string(digits[:3]))
}

func checkBatch(body []byte, related int) error {
	var answer struct {
		Items []struct {
			MyState         string
			RelationVersion uint64
			DisplayCount    int64
		}
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return err
	}
	if len(answer.Items) != batchTargets {
		return fmt.Errorf("%d items, want %d: %.300s", len(answer.Items), batchTargets, body)
	}
	for i, item := range answer.Items {
		state, version := "LIKED", uint64(1)
		if i >= related {
			state, version = "UNLIKED", 0
		}
		if item.MyState != state || item.RelationVersion != version || item.DisplayCount < 1 {
			return fmt.Errorf("want %s, version %d and a count: %+v", state, version, item)
		}
	}
	return nil
}

// batchRequests are requests of every user, each for other targets than the next
// one's, so many of them related to, whole, as they go over the wire.
func (l *lossBench) batchRequests(related int) [][]byte {
	requests := make([][]byte, l.users)
	for n := range requests {
		var body bytes.Buffer
		for i := range batchTargets {
			target := (n + i) % lossUserRelations
			if i >= related {
				target += lossUserRelations
			}
			fmt.Fprintf(&body, `,"%s"`, lossTarget(target))
		}
		text := `{"videoIds":[` + body.String()[1:] + `]}`
		requests[n] = fmt.Appendf(nil, "POST /v1/like-relations/batch-query HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
			l.clients[n].Token, len(text), text)
	}
	return requests
}

// profile writes a profile of the API's CPU during the measurement, if one is
// wanted.
func (b *batchBench) profile(ctx context.Context) <-chan error {
	done := make(chan error, 1)
	path := os.Getenv("TIDEMARK_BENCH_PROFILE")
	if path == "" {
		done <- nil
		return done
	}
	b.profiles++
	go func() { done <- fetchProfile(ctx, b.ops, path+strconv.Itoa(b.profiles)) }()
	return done
}

func fetchProfile(ctx context.Context, ops, path string) error {
	url := fmt.Sprintf("%s/debug/pprof/profile?seconds=%d", ops, int(batchMeasure.Seconds()))
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("a profile is answered with %s", resp.Status)
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, resp.Body)
	return errors.Join(err, f.Close())
}
