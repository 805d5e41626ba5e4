package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tidemark/tidemark/emitters/load"
)

// openTerminal makes a pseudo terminal: what programs write to the one end is
// read at the other.
func openTerminal(t *testing.T) (user, programs *os.File) {
	t.Helper()
	user, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skip("no pseudo terminals here:", err)
	}
	t.Cleanup(func() { _ = user.Close() })
	number, err := unix.IoctlGetInt(int(user.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(user.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(int(user.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 40, Col: 120})
	}
	if err != nil {
		t.Skip("no pseudo terminals here:", err)
	}
	programs, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("no pseudo terminals here:", err)
	}
	t.Cleanup(func() { _ = programs.Close() })
	return user, programs
}

// onTerminal runs a command whose stderr is a terminal and gives what that
// showed.
func onTerminal(t *testing.T, args ...string) (out, shown string) {
	t.Helper()
	user, programs := openTerminal(t)
	cmd := program(t.Context(), args...)
	var stdout bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, programs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = programs.Close() // the command has its own
	var all bytes.Buffer
	_, _ = io.Copy(&all, user) // ends with an error when the command has ended
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v: %s", err, all.String())
	}
	return stdout.String(), all.String()
}

// On a terminal a bar moves, and stdout is as ever.
func TestBarOnTerminal(t *testing.T) {
	s := theSystem(t)
	var report load.Report
	out, shown := onTerminal(t, s.at("load", "--commands", "900", "--rate", "300", "--users", "50", "--targets", "50", "--output", "json")...)
	mustJSON(t, out, &report)
	for _, want := range []string{"load ", "[=", "%", "decided", "\x1b["} {
		if !strings.Contains(shown, want) {
			t.Errorf("the terminal did not show %q: %q", want, clip(shown))
		}
	}
	if strings.Count(shown, "\n") > 60 || strings.Contains(shown, "load: 1s") {
		t.Errorf("lines beside the bar: %q", clip(shown))
	}
	if _, shown := onTerminal(t, s.at("verify")...); !strings.Contains(shown, "waiting until what is committed is displayed") {
		t.Errorf("the terminal showed %q", clip(shown))
	}
}

// A terminal that no bar fits into gets lines.
func TestNarrowTerminal(t *testing.T) {
	user, programs := openTerminal(t)
	if err := unix.IoctlSetWinsize(int(user.Fd()), unix.TIOCSWINSZ, &unix.Winsize{}); err != nil {
		t.Fatal(err)
	}
	if newScreen(programs).terminal {
		t.Error("a bar on a terminal without columns")
	}
}

// Lines come whole, above the bar.
func TestLinesAboveTheBar(t *testing.T) {
	user, programs := openTerminal(t)
	s := newScreen(programs)
	if !s.terminal {
		t.Fatal("a terminal is not known as one")
	}
	m := s.meter("load", 10)
	m.set(3, "three")
	s.say("a line while the bar moves")
	m.end()
	m = s.meter("verify", 0)
	m.set(3, "reading")
	m.end()
	s.say("a line after it")
	_ = programs.Close()
	var all bytes.Buffer
	_, _ = io.Copy(&all, user)
	for _, want := range []string{"a line while the bar moves\r\n", "a line after it\r\n"} {
		if !strings.Contains(all.String(), want) {
			t.Errorf("no %q in %q", want, all.String())
		}
	}
}
