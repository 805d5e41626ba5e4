package main

import (
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/tidemark/tidemark/internal/config"
	"github.com/tidemark/tidemark/internal/embedded"
	"github.com/tidemark/tidemark/internal/testenv"
	"github.com/tidemark/tidemark/internal/verify"
)

// outside is infrastructure that comes and goes below processes that only
// know its addresses.
type outside struct {
	t                         *testing.T
	postgresDir, kafkaDir     string
	postgresPort, kafkaPort   int
	postgres                  *embedded.Postgres
	kafka                     *embedded.Kafka
	controlURL                string
	shardURLs                 []string
	broker, unreachable, home string
}

// newOutside makes everything once, and stops it.
func newOutside(t *testing.T) *outside {
	t.Helper()
	o := &outside{
		t: t, postgresDir: testenv.ServerDir(t), kafkaDir: t.TempDir(), home: t.TempDir(),
		postgresPort: freePort(t), kafkaPort: freePort(t), unreachable: "redis://127.0.0.1:1",
	}
	o.broker = "127.0.0.1:" + strconv.Itoa(o.kafkaPort)
	o.startPostgres()
	for _, name := range []string{"control", "shard0", "shard1"} {
		if err := o.postgres.CreateDatabase(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	o.controlURL = o.postgres.URL("control")
	o.shardURLs = []string{o.postgres.URL("shard0"), o.postgres.URL("shard1")}
	o.stopPostgres()
	t.Cleanup(func() { o.stopPostgres(); o.stopKafka() })
	return o
}

func freePort(t *testing.T) int {
	t.Helper()
	port, err := embedded.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return port
}

func (o *outside) startPostgres() {
	o.t.Helper()
	var err error
	o.postgres, err = embedded.StartPostgres(o.t.Context(), embedded.PostgresConfig{
		DataDir: o.postgresDir, Port: o.postgresPort, Settings: map[string]string{"fsync": "off"},
	})
	if err != nil {
		o.t.Fatal(err)
	}
}

func (o *outside) stopPostgres() {
	if o.postgres != nil {
		if err := o.postgres.Stop(); err != nil {
			o.t.Error(err)
		}
	}
}

func (o *outside) startKafka() {
	o.t.Helper()
	var err error
	if o.kafka, err = embedded.StartKafka(embedded.KafkaConfig{DataDir: o.kafkaDir, Port: o.kafkaPort}); err != nil {
		o.t.Fatal(err)
	}
}

func (o *outside) stopKafka() {
	if o.kafka != nil {
		if err := o.kafka.Stop(); err != nil {
			o.t.Error(err)
		}
	}
}

// role is a process of `tidemark run`.
type role struct {
	*running
	name, readyz string
}

// runRole starts roles apart under a name and waits until operators are served.
func (o *outside) runRole(name string, roles ...string) *role {
	o.t.Helper()
	args := append([]string{"run", "--config", filepath.Join(o.home, config.FileName), "--instance", name, "--listen", "127.0.0.1:0"}, roles...)
	r := &role{running: run(o.t, args...), name: name}
	line := r.await(o.t, "operators")
	r.readyz = strings.Fields(line)[1]
	return r
}

// says checks what readiness says: ready, or not and each of the texts.
func (r *role) says(t *testing.T, ready bool, texts ...string) error {
	t.Helper()
	status, body, err := get(t, r.readyz)
	if err != nil {
		return err
	}
	if (status == 200) != ready {
		return fmt.Errorf("%s: status %d: %s", r.name, status, clip(body))
	}
	for _, text := range texts {
		if !strings.Contains(body, text) {
			return fmt.Errorf("%s does not say %q: %s", r.name, text, clip(body))
		}
	}
	return nil
}

// TestRolesApart runs every role in a process of its own, through dependencies
// that are absent at the start and go away under traffic: what waits says for
// what, everything goes on by itself, and the counts are equal. Redis is never
// there.
func TestRolesApart(t *testing.T) {
	o := newOutside(t)
	o.devAwaits()
	o.stopKafka()
	o.stopPostgres()

	web := o.runRole("web", "commands", "queries")
	feed := o.runRole("feed", "cdc")
	in := o.runRole("in", "intake")
	count := o.runRole("count", "projection")
	show := o.runRole("show", "display", "likers")
	all := []*role{web, feed, in, count, show}
	for _, r := range all {
		eventually(t, func() error { return r.says(t, false, "[-] control: ", "connection refused") })
	}
	o.startPostgres()
	eventually(t, func() error {
		return errors.Join(
			web.says(t, false, "[+] relations.0: ready", "[-] topics: ", o.broker, "[-] view: waiting"),
			feed.says(t, false, "[-] topics: ", o.broker, "[-] cdc.0: waiting"), in.says(t, false, "[-] topics: ", o.broker, "[-] intake: waiting"),
			count.says(t, false, "[-] topics: ", o.broker, "[-] projection: waiting"), show.says(t, false, "[-] topics: ", o.broker, "[-] display: waiting"))
	})
	// Commands need no Kafka.
	file := filepath.Join(o.home, config.FileName)
	api := strings.Fields(web.await(t, "API"))[1]
	newClient(t, api, "early", "--config", file).like("early", "early-1")
	if r := must(t, exitError, "verify", "--config", file); !strings.Contains(r.out+r.errOut, o.broker) {
		t.Error(r)
	}
	o.startKafka()
	for _, r := range all {
		r.await(t, readyLine)
	}
	if r := must(t, exitError, "run", "projection", "--config", file, "--instance", "count"); !strings.Contains(r.errOut, `role projection already runs as instance "count" (process`) {
		t.Error(r)
	}

	traffic := run(t, "load", "--config", file, "--url", api, "--commands", "0", "--rate", "200", "--users", "500", "--targets", "200")
	o.loses(all, in, o.stopKafka, o.startKafka)
	o.loses(all, feed, o.stopPostgres, o.startPostgres)
	if code := traffic.stop(t); code > exitError {
		t.Errorf("the load exits %d: %s", code, traffic.errOut.String())
	}
	if report := wantVerdict(t, exitOK, "--config", file); report.Relations < 100 {
		t.Errorf("%+v", report)
	}
	reader := newClient(t, api, "reader", "--config", file)
	eventually(t, func() error { // web finds show, which has the reverse index
		var page struct{ Items []struct{ UserID string } }
		err := reader.try(http.MethodGet, "/v1/videos/early/likers", "", nil, &page)
		if err == nil && (len(page.Items) != 1 || page.Items[0].UserID != "early") {
			err = fmt.Errorf("the likers are %v", page.Items)
		}
		return err
	})

	// With a part of the pipeline away it cannot be told.
	feed.stop(t)
	newClient(t, api, "unfed", "--config", file).like("unfed", "unfed-1")
	if report := wantVerdict(t, exitError, "--config", file, "--deadline", "2s"); report.Verdict != verify.Unknown || !strings.Contains(report.Reason, "shard") {
		t.Errorf("%+v", report)
	}
	if r := must(t, exitError, "verify", "--config", file, "--deadline", "2s"); !strings.Contains(r.errOut, "could not tell: ") || !strings.Contains(r.errOut, "`tidemark doctor` looks") {
		t.Error(r)
	}
	o.runRole("feed", "cdc").await(t, readyLine)
	wantVerdict(t, exitOK, "--config", file)
}

// devAwaits starts `tidemark dev` upon infrastructure that comes later.
func (o *outside) devAwaits() {
	t := o.t
	t.Helper()
	ops := "127.0.0.1:" + strconv.Itoa(freePort(t))
	dev := &role{name: "dev", readyz: "http://" + ops + "/readyz?verbose"}
	dev.running = run(t, "dev", "--data-dir", o.home, "--roles", "none", "--listen", "127.0.0.1:0", "--ops-listen", ops,
		"--postgres-url", o.shardURLs[0], "--postgres-url", o.shardURLs[1], "--control-url", o.controlURL,
		"--kafka-brokers", o.broker, "--redis-url", o.unreachable, "--partitions", "4")
	waits := func(port string) {
		t.Helper()
		eventually(t, func() error {
			return dev.says(t, false, "[-] schema and topics: ", port+": connect: connection refused")
		})
	}
	waits("127.0.0.1:" + strconv.Itoa(o.postgresPort))
	o.startPostgres()
	waits(o.broker)
	o.startKafka()
	dev.await(t, readyLine)
	if code := dev.stop(t); code != exitOK {
		t.Errorf("exit %d", code)
	}
	if n := strings.Count(dev.errOut.String(), "level=WARN msg=waiting"); n != 1 {
		t.Errorf("it says %d times that it waits: %s", n, dev.errOut.String())
	}
}

// loses takes something away below running processes, until one of them says
// so, and gives it back: everything becomes ready again.
func (o *outside) loses(all []*role, notices *role, stop, start func()) {
	t := o.t
	t.Helper()
	stop()
	eventually(t, func() error { return notices.says(t, false, "refused") })
	start()
	for _, r := range all {
		eventually(t, func() error { return r.says(t, true) })
	}
}
