package embedded

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"
)

// childEnv makes the test binary a process to kill: "postgres DIR" or
// "kafka DIR".
const childEnv = "TIDEMARK_TEST_CHILD"

func TestMain(m *testing.M) {
	if what, dir, ok := strings.Cut(os.Getenv(childEnv), " "); ok {
		if err := runChild(what, dir); err != nil {
			fmt.Println("failed:", err)
			os.Exit(1)
		}
		select {} // until killed
	}
	goleak.VerifyTestMain(m)
}

// runChild starts a server, commits something, and says on stdout where it
// listens.
func runChild(what, dir string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if what == "kafka" {
		k, err := StartKafka(KafkaConfig{DataDir: dir})
		if err != nil {
			return err
		}
		if err := produceAndCommit(ctx, k.Brokers()); err != nil {
			return err
		}
		fmt.Println("ready", k.Brokers()[0])
		return nil
	}
	p, err := StartPostgres(ctx, PostgresConfig{DataDir: dir})
	if err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, p.URL("postgres"))
	if err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, "CREATE TABLE IF NOT EXISTS starts (at timestamptz); INSERT INTO starts VALUES (now())"); err != nil {
		return err
	}
	fmt.Println("ready", p.URL("postgres"))
	return nil
}

// produceAndCommit writes one record to topic t and commits offset 1 of it
// for group g.
func produceAndCommit(ctx context.Context, brokers []string) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...))
	if err != nil {
		return err
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	topics, err := admin.ListTopics(ctx)
	if err != nil {
		return err
	}
	if !topics.Has("t") {
		if _, err := admin.CreateTopic(ctx, 1, 1, nil, "t"); err != nil {
			return err
		}
	}
	if err := client.ProduceSync(ctx, &kgo.Record{Topic: "t", Value: []byte("v")}).FirstErr(); err != nil {
		return err
	}
	offsets := kadm.Offsets{}
	offsets.AddOffset("t", 0, 1, -1)
	return admin.CommitAllOffsets(ctx, "g", offsets)
}

// startChild runs the child until it is ready and returns it with what it
// said.
func startChild(t *testing.T, what, dir string) (*exec.Cmd, string) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+what+" "+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	said, ok := strings.CutPrefix(strings.TrimSpace(line), "ready ")
	if !ok {
		kill(t, cmd)
		t.Fatalf("the child says %q, %v", line, err)
	}
	return cmd, said
}

func kill(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if err := cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait() // killed
}

// openDir is a temporary folder that PostgreSQL's user can enter, also when
// the test runs as root.
func openDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "tidemark-embedded-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "data dir") // a name with a space must do
}
