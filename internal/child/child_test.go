package child

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// parentVariable makes this test binary a parent that starts `sleep`, prints
// its process id and waits to be killed.
const parentVariable = "TIDEMARK_TEST_CHILD_PARENT"

func TestMain(m *testing.M) {
	if os.Getenv(parentVariable) != "" {
		sleep := exec.Command("sleep", "60")
		if _, err := Start(sleep, syscall.SIGKILL); err != nil {
			panic(err)
		}
		fmt.Println(sleep.Process.Pid)
		select {}
	}
	goleak.VerifyTestMain(m)
}

func TestStartReportsTheEnd(t *testing.T) {
	var out bytes.Buffer
	cmd := exec.Command("sh", "-c", "echo said; exit 3")
	cmd.Stdout = &out
	done, err := Start(cmd, syscall.SIGTERM)
	if err != nil {
		t.Fatal(err)
	}
	<-done
	if code := cmd.ProcessState.ExitCode(); code != 3 || out.String() != "said\n" {
		t.Errorf("exit code %d, output %q", code, out.String())
	}
	if _, err := Start(exec.Command("/no/such/program"), syscall.SIGTERM); err == nil {
		t.Error("a program that does not exist was started")
	}
}

func TestChildDiesWithItsParent(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("no parent-death signal on this system")
	}
	parent := exec.Command(os.Args[0])
	parent.Env = append(os.Environ(), parentVariable+"=1")
	read, write := io.Pipe()
	parent.Stdout = write
	done, err := Start(parent, syscall.SIGKILL)
	if err != nil {
		t.Fatal(err)
	}
	line := make([]byte, 32)
	n, err := read.Read(line)
	if err != nil {
		t.Fatal(err)
	}
	_ = read.Close()
	pid, err := strconv.Atoi(strings.TrimSpace(string(line[:n])))
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-done
	for end := time.Now().Add(10 * time.Second); running(pid); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("process %d outlives its parent", pid)
		}
	}
}

// running tells whether the process lives; one that nobody has reaped yet
// does not.
func running(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, state, _ := strings.Cut(string(b), ") ")
	return !strings.HasPrefix(state, "Z")
}
