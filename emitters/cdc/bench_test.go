package cdc

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tidemark/tidemark/internal/testenv"
)

// BenchmarkBacklog drains a backlog of 200,000 outbox rows, ten to a
// transaction, into a broker in another process:
//
//	go test ./emitters/cdc -run '^$' -bench Backlog -benchtime 1x
//
// rows/cpu-s is per second of this process's CPU, all of it; PostgreSQL and the
// broker have their own.
func BenchmarkBacklog(b *testing.B) {
	for _, compress := range []bool{false, true} {
		b.Run(fmt.Sprintf("lz4=%t", compress), func(b *testing.B) { benchmarkBacklog(b, compress) })
	}
}

func benchmarkBacklog(b *testing.B, compress bool) {
	const rows, perTransaction = 200_000, 10
	r := newRig(b)
	r.cfg.Brokers = []string{startBrokerChild(b)}
	r.openKafka()
	r.ensureSlot()
	r.exec(fmt.Sprintf(`DO $$BEGIN FOR i IN 1..%d LOOP
		INSERT INTO outbox (aggregatetype, aggregateid, type, payload, source_shard)
		SELECT 'relation', 'like:u' || i || ':V' || g, 'RelationChanged', '%s', 2 FROM generate_series(1, %d) g;
		COMMIT; END LOOP; END$$`, rows/perTransaction, samplePayload, perTransaction))
	for b.Loop() {
		cpu, began := cpuTime(b), time.Now()
		e := r.start(func(c *Config) {
			c.Compress, c.StopGrace = compress, -1
			c.StatusInterval = time.Hour
		})
		testenv.Eventually(b, 5*time.Minute, func() error {
			if s := e.Status(); s.Acked < rows {
				return fmt.Errorf("%d acked; last error %s", s.Acked, s.LastError)
			}
			return nil
		})
		took, spent := time.Since(began), cpuTime(b)-cpu
		e.stop()
		b.ReportMetric(rows/took.Seconds(), "rows/s")
		b.ReportMetric(rows/spent.Seconds(), "rows/cpu-s")
	}
}

func startBrokerChild(b *testing.B) string {
	b.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), brokerChild+"=1")
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = stdin.Close(); _ = cmd.Wait() })
	address, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	return strings.TrimSpace(address)
}

func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
