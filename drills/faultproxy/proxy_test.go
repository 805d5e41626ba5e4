package faultproxy

import (
	"bufio"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// greeter answers each line with its own name and the line.
func greeter(t *testing.T, name string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				lines := bufio.NewScanner(conn)
				for lines.Scan() {
					_, _ = conn.Write([]byte(name + " " + lines.Text() + "\n"))
				}
				_ = conn.Close()
			}()
		}
	}()
	return l.Addr().String()
}

type asker struct {
	net.Conn
	answers *bufio.Reader
}

func connect(t *testing.T, p *Proxy) asker {
	t.Helper()
	conn, err := net.Dial("tcp", p.Address())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return asker{conn, bufio.NewReader(conn)}
}

func (a asker) ask(line string) (string, error) {
	_ = a.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := a.Write([]byte(line + "\n")); err != nil {
		return "", err
	}
	answer, err := a.answers.ReadString('\n')
	return strings.TrimSpace(answer), err
}

func start(t *testing.T, to string) *Proxy {
	t.Helper()
	p, err := Start(to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func TestLeadsAndLeadsElsewhere(t *testing.T) {
	p := start(t, greeter(t, "one"))
	a := connect(t, p)
	if got, err := a.ask("hello"); err != nil || got != "one hello" {
		t.Fatalf("%q, %v", got, err)
	}
	p.LeadTo(greeter(t, "two"))
	if got, err := a.ask("hello"); err == nil {
		t.Errorf("the old connection answers %q", got)
	}
	if got, err := connect(t, p).ask("hello"); err != nil || got != "two hello" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestSlowAnswersAreLateAndWhole(t *testing.T) {
	p := start(t, greeter(t, "one"))
	a := connect(t, p)
	const late = 150 * time.Millisecond
	p.Slow(late)
	for range 2 {
		begun := time.Now()
		if got, err := a.ask("hello"); err != nil || got != "one hello" {
			t.Fatalf("%q, %v", got, err)
		}
		if took := time.Since(begun); took < late {
			t.Errorf("an answer came after %v", took)
		}
	}
	p.Slow(0)
	if got, err := a.ask("hello"); err != nil || got != "one hello" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestCutsAfterSomeBytes(t *testing.T) {
	p := start(t, greeter(t, "one"))
	p.CutAfter(64)
	a, err := connect(t, p), error(nil)
	for n := 0; err == nil; n++ {
		if n > 64 {
			t.Fatal("it was never cut")
		}
		_, err = a.ask("hello")
	}
	var refused net.Error
	if !errors.Is(err, io.EOF) && !errors.As(err, &refused) || p.Cuts() != 1 {
		t.Errorf("%v, %d cuts", err, p.Cuts())
	}
	p.CutAfter(0)
	a = connect(t, p)
	for range 100 {
		if got, err := a.ask("hello"); err != nil || got != "one hello" {
			t.Fatalf("%q, %v", got, err)
		}
	}
}
