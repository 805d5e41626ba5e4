package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func testHome(t *testing.T) *home {
	t.Helper()
	h, err := openHome(filepath.Join(t.TempDir(), "real"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	h.say = t.Logf
	return h
}

func expect(t *testing.T, err error, want string) {
	t.Helper()
	if (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want %q", err, want)
	}
}

func TestServerProperties(t *testing.T) {
	h := testHome(t)
	h.state = state{ClusterID: "id", BrokerPorts: []int{1, 2, 3}, ControllerPorts: []int{11, 12, 13}}
	got := h.serverProperties(2)
	for _, line := range []string{
		"node.id=2", "controller.quorum.voters=1@127.0.0.1:11,2@127.0.0.1:12,3@127.0.0.1:13",
		"listeners=PLAINTEXT://127.0.0.1:2,CONTROLLER://127.0.0.1:12", "auto.create.topics.enable=false",
		"group.initial.rebalance.delay.ms=0", "group.min.session.timeout.ms=500",
		"offsets.topic.replication.factor=3", "transaction.state.log.min.isr=2", "share.coordinator.state.topic.min.isr=2",
	} {
		if !strings.Contains("\n"+got, "\n"+line+"\n") {
			t.Errorf("no line %s in\n%s", line, got)
		}
	}
	h.state = state{ClusterID: "id", BrokerPorts: []int{1}, ControllerPorts: []int{11}}
	if got := h.serverProperties(1); !strings.Contains(got, "transaction.state.log.min.isr=1\n") || !strings.Contains(got, "offsets.topic.replication.factor=1\n") {
		t.Errorf("one broker:\n%s", got)
	}
}

// The number of brokers is that of the data; ports that are taken are
// replaced, all by different ones.
func TestPlan(t *testing.T) {
	h := testHome(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	port := taken.Addr().(*net.TCPAddr).Port
	expect(t, h.plan(upConfig{brokers: 2}), "brokers is 2")
	h.state = state{ClusterID: "id", BrokerPorts: []int{port, port, port}, ControllerPorts: []int{port, port, port}}
	expect(t, h.plan(upConfig{brokers: 1}), "is of 3 broker(s), not 1")
	if err := h.plan(upConfig{debezium: true}); err != nil {
		t.Fatal(err)
	}
	seen := map[int]bool{port: true}
	for _, p := range append(append(h.state.BrokerPorts, h.state.ControllerPorts...), h.state.ConnectPort) {
		if p == 0 || seen[p] {
			t.Errorf("port %d is taken or chosen twice: %+v", p, h.state)
		}
		seen[p] = true
	}
	if err := h.plan(upConfig{}); err != nil || h.state.ConnectPort != 0 {
		t.Errorf("a worker is planned that nobody wants: %+v, %v", h.state, err)
	}
}

func TestStateIsKept(t *testing.T) {
	h := testHome(t)
	h.state = state{ClusterID: newClusterID(), BrokerPorts: []int{1}, ControllerPorts: []int{2}}
	if err := h.writeState(); err != nil {
		t.Fatal(err)
	}
	h.Close()
	again, err := openHome(h.dir)
	if err != nil || fmt.Sprint(again.state) != fmt.Sprint(h.state) {
		t.Fatalf("state %+v, %v, want %+v", again.state, err, h.state)
	}
	if err := again.write("state.json", "{}"); err != nil {
		t.Fatal(err)
	}
	again.Close()
	_, err = openHome(h.dir)
	expect(t, err, "damaged")
}

// A jar that is missing or cut short, or another pom, means fetching again.
func TestJarsAreComplete(t *testing.T) {
	dir := t.TempDir()
	if complete(dir, "pom") {
		t.Error("an empty folder is complete")
	}
	if _, err := takeInventory(dir, "pom"); err == nil {
		t.Error("no jars are an inventory")
	}
	for _, name := range []string{"a.jar", "b.jar"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("jar"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := takeInventory(dir, "pom"); n != 2 || err != nil {
		t.Fatalf("%d jars, %v", n, err)
	}
	if !complete(dir, "pom") || complete(dir, "other pom") {
		t.Error("complete does not go by the pom")
	}
	if err := os.Truncate(filepath.Join(dir, "b.jar"), 1); err != nil {
		t.Fatal(err)
	}
	if complete(dir, "pom") {
		t.Error("a jar that is cut short is complete")
	}
}

func TestCheckJava(t *testing.T) {
	for _, c := range []struct{ printed, wrong string }{
		{"openjdk version \"17.0.15\" 2025-04-15\nOpenJDK Runtime", ""},
		{`openjdk version "25" 2025-09-16`, ""},
		{`java version "21-ea"`, ""},
		{`openjdk version "11.0.2" 2019-01-15`, "needs 17"},
		{`java version "1.8.0_392"`, "needs 17"},
		{"Segmentation fault", "Segmentation fault"},
	} {
		expect(t, checkJava("java", c.printed), c.wrong)
	}
}

func TestMissingProgramsSayWhatToDo(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	t.Setenv("JAVA_HOME", "")
	_, err := findJava(t.Context())
	expect(t, err, "apt-get install openjdk-17-jre-headless")
	expect(t, testHome(t).fetch(t.Context(), kafkaJars, kafkaPOM), "apt-get install maven")
}

// sleeper is a process that stands in for a JVM: it ignores the JVM's options
// and sleeps.
func sleeper(t *testing.T, script string) jvm {
	t.Helper()
	if _, err := exec.LookPath("sh"); err != nil {
		t.Skip("no sh")
	}
	path := filepath.Join(t.TempDir(), "java")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return jvm{name: "sleeper", java: path, heap: "1m", class: "Sleep", path: "x"}
}

func TestProcessesStartAndStop(t *testing.T) {
	h := testHome(t)
	if err := h.start(sleeper(t, `while :; do sleep 0.05; done`)); err != nil {
		t.Fatal(err)
	}
	if names := h.running(); h.pid("sleeper") == 0 || len(names) != 1 || names[0] != "sleeper" {
		t.Fatalf("pid %d, running %v", h.pid("sleeper"), names)
	}
	if err := h.stop("sleeper", "nobody"); err != nil {
		t.Fatal(err)
	}
	if names := h.running(); len(names) != 0 {
		t.Errorf("running %v", names)
	}
	if _, err := os.Stat(h.path("pids", "sleeper")); err == nil {
		t.Error("the pid file is still there")
	}
	if err := h.down(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(h.dir); err != nil || len(entries) != 1 {
		t.Errorf("after a wipe there are %v, %v", entries, err)
	}
}

// A pid file that names a process of someone else ends nothing.
func TestForeignProcessIsLeftAlone(t *testing.T) {
	h := testHome(t)
	if err := h.write("pids/kafka-1", fmt.Sprint(os.Getpid())); err != nil {
		t.Fatal(err)
	}
	if pid := h.pid("kafka-1"); pid != 0 {
		t.Errorf("pid %d is taken for ours", pid)
	}
	if err := h.stop("kafka-1"); err != nil { // or this test ends here
		t.Error(err)
	}
}

func TestAProcessThatEndsIsNotAwaited(t *testing.T) {
	h := testHome(t)
	if err := h.start(sleeper(t, `echo "port is taken"; exit 3`)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err := h.awaitAnswer(ctx, []string{"sleeper"}, func(context.Context) error { return fmt.Errorf("no answer") })
	expect(t, err, "port is taken")
}
