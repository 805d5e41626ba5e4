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

// ask sends a request and reads its answer whole; checked, it must tell of every
// target that it is liked and has a count.
func (c *batchClient) ask(request []byte, checked bool) error {
	if checked { // now and then is enough, and costs a timer
		if err := c.conn.SetDeadline(time.Now().Add(batchPatience)); err != nil {
			return err
		}
	}
	if _, err := c.conn.Write(request); err != nil {
		return err
	}
	length, ok, err := c.head()
	if err != nil {
		return err
	}
	if ok && !checked {
		_, err := c.in.Discard(length)
		return err
	}
	c.body = append(c.body[:0], make([]byte, length)...)
	if _, err := io.ReadFull(c.in, c.body); err != nil {
		return err
	}
	if !ok {
		return fmt.Errorf("refused: %.300s", c.body)
	}
	return checkBatch(c.body)
}

var contentLength = []byte("Content-Length: ")

// head reads an answer's head; ok says that its status is 200.
func (c *batchClient) head() (length int, ok bool, err error) {
	length = -1
	for first := true; ; first = false {
		line, err := c.in.ReadSlice('\n')
		if err != nil {
			return 0, false, err
		}
		line = bytes.TrimRight(line, "\r\n")
		switch {
		case first:
			ok = bytes.HasPrefix(line, []byte("HTTP/1.1 200 "))
		case len(line) == 0:
			if length < 0 {
				return 0, false, errors.New("an answer without a length")
			}
			return length, ok, nil
		default:
			if digits, found := bytes.CutPrefix(line, contentLength); found {
				if length, err = strconv.Atoi(string(digits)); err != nil {
					return 0, false, err
				}
			}
		}
	}
}

func checkBatch(body []byte) error {
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
	for _, item := range answer.Items {
		if item.MyState != "LIKED" || item.RelationVersion != 1 || item.DisplayCount < 1 {
			return fmt.Errorf("want a like of version 1 and a count: %+v", item)
		}
	}
	return nil
}

// batchRequests are requests of every user, each for other targets than the next
// one's, whole, as they go over the wire.
func (l *lossBench) batchRequests() [][]byte {
	requests := make([][]byte, l.users)
	for n := range requests {
		var body bytes.Buffer
		for i := range batchTargets {
			fmt.Fprintf(&body, `,"%s"`, lossTarget((n+i)%lossUserRelations))
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
