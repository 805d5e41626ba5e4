package api

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// startServer runs a Server until the test ends or stop is called.
func startServer(t *testing.T, c ServerConfig, h http.Handler) (s *Server, stop func() error) {
	t.Helper()
	c.Listen = "127.0.0.1:0"
	s = NewServer(c, h)
	if err := s.Listen(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	stop = func() error { cancel(); return <-done }
	return s, stop
}

// raw sends bytes over a connection of its own and reads the answer.
func raw(t *testing.T, addr, text string) *http.Response {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func TestServerLimits(t *testing.T) {
	ta := newTestAPI(t, &fakeStore{})
	s, stop := startServer(t, ServerConfig{}, ta.api)
	head := "PUT " + likePath + " HTTP/1.1\r\nHost: x\r\nIdempotency-Key: op-1\r\nAuthorization: Bearer " + mint(t, "u7") + "\r\n"
	for _, c := range []struct {
		name, request string
		status        int
	}{
		{"good", head + "Content-Length: 24\r\n\r\n" + `{"desiredState":"LIKED"}`, 200},
		{"huge header", head + "X: " + strings.Repeat("x", 24<<10) + "\r\n\r\n", 431},
		{"declared too large", head + "Content-Length: 999999999\r\n\r\n{", 413},
		{"broken chunk", head + "Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400},
		{"id not UTF-8", "PUT /v1/videos/\xff\xfe/like-relation HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + mint(t, "u7") + "\r\n\r\n", 400},
		{"id with a NUL", "PUT /v1/videos/%00/like-relation HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + mint(t, "u7") + "\r\n\r\n", 400},
		{"broken percent", "PUT /v1/videos/%zz/like-relation HTTP/1.1\r\nHost: x\r\n\r\n", 400},
		{"star", "OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", 200}, // net/http's own answer
		{"absolute form", "PUT http://x" + likePath + " HTTP/1.1" + strings.TrimPrefix(head, "PUT "+likePath+" HTTP/1.1") + "Content-Length: 24\r\n\r\n" + `{"desiredState":"LIKED"}`, 200},
		{"connect", "CONNECT x:1 HTTP/1.1\r\nHost: x:1\r\n\r\n", 404},
		{"not HTTP", "hello\r\n\r\n", 400},
	} {
		t.Run(c.name, func(t *testing.T) {
			if res := raw(t, s.Addr(), c.request); res.StatusCode != c.status {
				b, _ := io.ReadAll(io.LimitReader(res.Body, 300))
				t.Errorf("status %d, want %d: %s", res.StatusCode, c.status, b)
			}
		})
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

func TestServerSlowBody(t *testing.T) {
	ta := newTestAPI(t, &fakeStore{})
	s, stop := startServer(t, ServerConfig{ReadTimeout: 200 * time.Millisecond}, ta.api)
	res := raw(t, s.Addr(), "PUT "+likePath+" HTTP/1.1\r\nHost: x\r\nIdempotency-Key: op-1\r\nAuthorization: Bearer "+mint(t, "u7")+"\r\nContent-Length: 24\r\n\r\n{")
	if res.StatusCode != 408 {
		t.Errorf("status %d, want 408", res.StatusCode)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// A stop lets the request under way finish, and takes no new one.
func TestServerStopsGracefully(t *testing.T) {
	started, finish := make(chan struct{}), make(chan struct{})
	s, stop := startServer(t, ServerConfig{}, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		close(started)
		<-finish
		_, _ = io.WriteString(w, "done")
	}))
	answer := make(chan string, 1)
	go func() {
		res, err := http.Get("http://" + s.Addr())
		if err != nil {
			answer <- err.Error()
			return
		}
		b, _ := io.ReadAll(res.Body)
		answer <- string(b)
	}()
	<-started
	stopped := make(chan error, 1)
	go func() { stopped <- stop() }()
	for deadline := time.Now().Add(10 * time.Second); ; { // the listener closes first
		conn, err := net.Dial("tcp", s.Addr())
		if err != nil {
			break
		}
		_ = conn.Close()
		if time.Now().After(deadline) {
			t.Fatal("a stopping server takes connections")
		}
	}
	close(finish)
	if got := <-answer; got != "done" {
		t.Errorf("the request under way got %q", got)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

func TestServerCutsOff(t *testing.T) {
	started, finish := make(chan struct{}), make(chan struct{})
	s, stop := startServer(t, ServerConfig{ShutdownTimeout: time.Millisecond}, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		close(started)
		<-finish
	}))
	conn, err := net.Dial("tcp", s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	<-started
	if err := stop(); err == nil || !strings.Contains(err.Error(), "cut off") {
		t.Errorf("stopping with a request under way: %v", err)
	}
	close(finish)
}

func TestServerAddressTaken(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	s := NewServer(ServerConfig{Listen: l.Addr().String()}, http.NotFoundHandler())
	if err := s.Run(context.Background()); err == nil || !strings.Contains(err.Error(), l.Addr().String()) {
		t.Errorf("%v, want an error with the address", err)
	}
}
