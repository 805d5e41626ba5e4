package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tidemark/tidemark/internal/child"
	"github.com/tidemark/tidemark/internal/testenv"
)

// asTidemark makes the test binary the program, so that tests need nothing
// built.
const asTidemark = "TIDEMARK_TEST_AS_TIDEMARK"

func TestMain(m *testing.M) {
	if os.Getenv(asTidemark) != "" {
		os.Exit(tidemark())
	}
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); strings.HasPrefix(name, "TIDEMARK_") {
			_ = os.Unsetenv(name) // a setting of the machine must not reach the tests
		}
	}
	code := m.Run()
	if err := stopShared(); err != nil {
		fmt.Fprintln(os.Stderr, "stopping the shared system:", err)
		code = max(code, 1)
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, "goroutines are left over:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// program is a command that runs `tidemark ARGS...`.
func program(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Env = append(os.Environ(), asTidemark+"=1")
	return cmd
}

// patience is how long anything may take on a machine under load.
const patience = time.Minute

type result struct {
	code        int
	out, errOut string
}

func (r result) String() string {
	return fmt.Sprintf("exit %d\nstdout: %s\nstderr: %s", r.code, clip(r.out), clip(r.errOut))
}

func clip(s string) string {
	if len(s) > 4000 {
		return s[:4000] + "…"
	}
	return s
}

// call runs `tidemark ARGS...` to its end.
func call(t testing.TB, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := program(ctx, args...)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := cmd.Run()
	if ctx.Err() != nil {
		t.Fatalf("tidemark %s: still running after %v\nstderr: %s", strings.Join(args, " "), patience, clip(errOut.String()))
	}
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return result{cmd.ProcessState.ExitCode(), out.String(), errOut.String()}
}

// must runs a command that has to exit with a code.
func must(t testing.TB, code int, args ...string) result {
	t.Helper()
	r := call(t, args...)
	if r.code != code {
		t.Fatalf("tidemark %s: want exit %d\n%v", strings.Join(args, " "), code, r)
	}
	return r
}

// text is a buffer that several goroutines use.
type text struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (b *text) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all.Write(p)
}

func (b *text) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all.String()
}

// running is a tidemark process of the test.
type running struct {
	cmd         *exec.Cmd
	out, errOut text
	ended       <-chan struct{}
}

// start starts `tidemark ARGS...`; the process ends with this one.
func start(args ...string) (*running, error) {
	r := &running{cmd: program(context.Background(), args...)}
	r.cmd.Stdout, r.cmd.Stderr = &r.out, &r.errOut
	var err error
	r.ended, err = child.Start(r.cmd, syscall.SIGKILL)
	return r, err
}

// run starts a process that is stopped with the test.
func run(t testing.TB, args ...string) *running {
	t.Helper()
	r, err := start(args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("tidemark %s\nstdout: %s\nstderr: %s", strings.Join(args, " "), clip(r.out.String()), clip(r.errOut.String()))
		}
		r.stop(t)
	})
	return r
}

// awaitOutput waits for a line of stdout that begins so, blanks apart.
func (r *running) awaitOutput(begin string) (line string, err error) {
	for end := time.Now().Add(2 * patience); ; time.Sleep(5 * time.Millisecond) {
		all := r.out.String()
		for line := range strings.Lines(all) {
			if strings.HasPrefix(strings.TrimSpace(line), begin) && strings.HasSuffix(line, "\n") {
				return strings.TrimSpace(line), nil
			}
		}
		select {
		case <-r.ended:
			return "", fmt.Errorf("the process ended without saying %q: %v\nstderr: %s", begin, r.cmd.ProcessState, clip(r.errOut.String()))
		default:
		}
		if time.Now().After(end) {
			return "", fmt.Errorf("no line %q\nstdout: %s\nstderr: %s", begin, clip(all), clip(r.errOut.String()))
		}
	}
}

func (r *running) await(t testing.TB, begin string) string {
	t.Helper()
	line, err := r.awaitOutput(begin)
	if err != nil {
		t.Fatal(err)
	}
	return line
}

// stopLimit is the longest graceful stop that is allowed, with some room for a
// machine under load.
const stopLimit = 5 * time.Second

// stop asks the process to end and gives its exit code; a second call gives
// the same.
func (r *running) stop(t testing.TB) int {
	t.Helper()
	begun := time.Now()
	_ = r.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-r.ended:
		if took := time.Since(begun); took > stopLimit {
			t.Errorf("stopping took %v, over %v", took, stopLimit)
		}
	case <-time.After(patience):
		_ = r.cmd.Process.Kill()
		<-r.ended
		t.Errorf("still running %v after SIGTERM", patience)
	}
	return r.cmd.ProcessState.ExitCode()
}

// kill ends the process as a power cut would.
func (r *running) kill() {
	_ = r.cmd.Process.Kill()
	<-r.ended
}

// warnings are the log lines on stderr, but for those about records that tests
// broke on purpose.
func (r *running) warnings() string {
	var all strings.Builder
	for line := range strings.Lines(r.errOut.String()) {
		if strings.Contains(line, "level=") && !strings.Contains(line, "quarantined a record") {
			all.WriteString(line)
		}
	}
	return all.String()
}

func eventually(t testing.TB, check func() error) {
	t.Helper()
	testenv.Eventually(t, patience, check)
}
