//go:build clients

package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tidemark/tidemark/internal/testenv"
)

// The readers in other languages make of the troubled stream what the Go one
// does. They need what their README names, and are skipped without it:
//
//	PYTHON=examples/facts-python/venv/bin/python go test -tags clients ./examples/facts-go

func TestPythonReader(t *testing.T) {
	python := os.Getenv("PYTHON")
	if python == "" {
		python = "python3"
	} else if strings.Contains(python, "/") {
		python = fromRoot(t, python)
	}
	if out, err := exec.Command(python, "-c", "import confluent_kafka, google.protobuf, grpc_tools").CombinedOutput(); err != nil {
		t.Skipf("%s lacks what requirements.txt names: %v %s", python, err, out)
	}
	brokers := testenv.Kafka(t)
	topic := troubled(t, brokers)
	dir := t.TempDir()
	run(t, "", exec.Command(python, "-m", "grpc_tools.protoc", "-I", "../../topology/proto", "--python_out="+dir, "tidemark/v1/records.proto"))
	// The second run goes on from the file, and has nothing more to read.
	for range 2 {
		cmd := exec.Command(python, "-B", "../facts-python/facts.py", strings.Join(brokers, ","), topic, filepath.Join(dir, "facts.db"))
		cmd.Env = append(os.Environ(), "PYTHONPATH="+dir)
		run(t, troubledWant, cmd)
	}
}

func TestJavaReader(t *testing.T) {
	for _, program := range []string{"java", "mvn"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip(err)
		}
	}
	brokers := testenv.Kafka(t)
	topic := troubled(t, brokers)
	build := exec.Command("mvn", "-q", "-B", "package")
	build.Dir = "../facts-java"
	run(t, "", build)
	run(t, troubledWant, exec.Command("java", "-cp", "../facts-java/target/classes"+string(os.PathListSeparator)+"../facts-java/target/lib/*",
		"example.Facts", strings.Join(brokers, ","), topic))
}

func fromRoot(t *testing.T, path string) string {
	t.Helper()
	if filepath.IsAbs(path) {
		return path
	}
	full, err := filepath.Abs(filepath.Join("../..", path))
	if err != nil {
		t.Fatal(err)
	}
	return full
}

// run fails the test unless the program succeeds and, where want is given,
// prints that.
func run(t *testing.T, want string, cmd *exec.Cmd) {
	t.Helper()
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &log
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v\n%s%s", cmd, err, &out, &log)
	}
	if want != "" && out.String() != want {
		t.Errorf("%s printed\n%swant\n%s\n%s", cmd, &out, want, &log)
	}
	t.Logf("%s", &log)
}
