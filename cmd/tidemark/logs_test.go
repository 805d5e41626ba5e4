package main

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tidemark/tidemark/api"
	"github.com/tidemark/tidemark/topology"
)

// What must stand in no log (J4), each told from everything else by its value.
const (
	markDevice    = "MARKdevice4711"
	markOperation = "MARKoperation4712"
	markAddress   = "203.0.113.77"
	markUser      = "MARKuser4713"
	markTarget    = "MARKtarget4714"
	markPurpose   = "MARKpurpose4715"
	markBadToken  = "MARKbadtoken4716"
	markPayload   = "MARKpayload4717"
	markPage      = "MARKpage4718"
	markHeader    = "MARKheader4719"
)

// TestJ4LogsHaveNoPersonalData runs a whole system at debug level through what
// makes it talk: commands, queries, lists, exports, requests and records that
// are wrong in every way, and a database and a cache that fail under traffic.
// Then none of its logs, PostgreSQL's among them, has a token, a device, an
// address, an operation id, or anything of what was sent.
func TestJ4LogsHaveNoPersonalData(t *testing.T) {
	e := newEncrypted(t)
	e.cfg.Limits.TrustedProxies = []string{"127.0.0.0/8"}
	file := e.write(t, nil)
	must(t, exitOK, "schema", "migrate", "--config", file)
	must(t, exitOK, "topology", "create", "--config", file)
	r := run(t, append([]string{"run", "--config", file}, roleNames...)...)
	r.await(t, readyLine)
	s := &sender{t: t, client: e.https(t, false), api: strings.Fields(r.await(t, "API"))[1]}
	mint := func(args ...string) string {
		return strings.TrimSpace(must(t, exitOK, append([]string{"token", "--config", file, "--user", markUser}, args...)...).out)
	}
	s.tokens = []string{mint(), mint("--role", api.AnalystRole), mint("--ttl", "1ms"), markBadToken, ""}

	s.everything()
	e.poison(t)
	var said strings.Builder // by commands
	eventually(t, func() error {
		list := call(t, "quarantine", "list", "--config", file)
		said.WriteString(list.errOut)
		if !strings.Contains(list.out, "malformed_envelope") {
			return fmt.Errorf("nothing is in quarantine: %v", list)
		}
		return nil
	})
	s.underTraffic(func() {
		if err := e.database.Stop(); err != nil {
			t.Error(err)
		}
		eventually(t, func() error { return has(r.errOut.String(), "transactions have to wait") })
		e.startAgain()
	})
	s.underTraffic(func() {
		e.cache.SetError("ERR broken on purpose")
		eventually(t, func() error { return has(r.errOut.String(), "broken on purpose") })
		e.cache.SetError("")
	})
	eventually(t, func() error {
		status, answer, err := fetch(t, s.client, http.MethodPut, s.api+"/v1/videos/V2/like-relation", s.tokens[0], map[string]string{"desiredState": "LIKED"})
		if status != http.StatusOK {
			err = fmt.Errorf("%d %s, %w", status, answer, err)
		}
		return err
	})
	for _, args := range [][]string{{"doctor"}, {"cdc", "status"}, {"cache", "status"}, {"gaps", "list"}, {"verify"}} {
		said.WriteString(call(t, append(args, "--config", file)...).errOut)
	}
	r.stop(t)

	database, err := os.ReadFile(e.databaseLog)
	if err != nil {
		t.Fatal(err)
	}
	secrets := []string{markDevice, markOperation, markAddress, markUser, markTarget, markPurpose, markBadToken, markPayload, markPage, markHeader,
		kafkaSecret, redisSecret, e.database.URL("")[len("postgres://tidemark:"):][:20]}
	for _, token := range s.tokens[:3] {
		parts := strings.Split(token, ".")
		secrets = append(secrets, parts[1], parts[2]) // the first is the same in every token
	}
	leaks := 0
	for name, log := range map[string]string{"the process": r.errOut.String(), "commands": said.String(), "PostgreSQL": string(database)} {
		for line := range strings.Lines(log) {
			for _, secret := range secrets {
				if !strings.Contains(line, secret) {
					continue
				}
				if leaks++; leaks <= 10 {
					t.Errorf("the log of %s has %s: %s", name, secret, clip(line))
				}
			}
		}
	}
	for _, talk := range []string{"level=DEBUG", "quarantined a record", "component=http"} {
		if err := has(r.errOut.String(), talk); err != nil {
			t.Errorf("the run did not make it talk: %v", err)
		}
	}
}

func has(log, text string) error {
	if !strings.Contains(log, text) {
		return fmt.Errorf("the log does not have %q", text)
	}
	return nil
}

// sender sends requests that are full of marks.
type sender struct {
	t      *testing.T
	client *http.Client
	api    string
	tokens []string // good, analyst's, expired, no token, none
}

// request is sent whatever becomes of it.
func (s *sender) request(method, path, token, body string) {
	req, err := http.NewRequestWithContext(s.t.Context(), method, s.api+path, strings.NewReader(body))
	if err != nil {
		s.t.Error(err)
		return
	}
	for name, value := range map[string]string{
		"Authorization": "Bearer " + token, "Content-Type": "application/json", "Idempotency-Key": markOperation,
		"X-Forwarded-For": markAddress, "X-Real-Ip": markAddress, "X-Device-Id": markDevice, "User-Agent": markHeader, "Traceparent": markHeader,
	} {
		req.Header.Set(name, value)
	}
	res, err := s.client.Do(req)
	if err == nil {
		_ = res.Body.Close()
	}
}

func (s *sender) everything() {
	good := fmt.Sprintf(`{"desiredState":"LIKED","deviceId":%q}`, markDevice)
	export := fmt.Sprintf(`{"kind":"like","targetId":%q,"format":"csv","purpose":%q}`, markTarget, markPurpose)
	bodies := []string{
		good, export, `{"desiredState":"UNLIKED"}`, fmt.Sprintf(`{"desiredState":%q}`, markPayload), markPayload, `{"` + markPayload + `":1}`,
		fmt.Sprintf(`{"desiredState":"LIKED","deviceId":%q}`, strings.Repeat(markDevice, 20)), `{"videoIds":["` + markTarget + `"]}`,
		`{"items":[{"kind":"like","targetId":"` + markTarget + `"}]}`, strings.Repeat(markPayload, 10_000),
	}
	paths := []string{
		"/v1/videos/" + markTarget + "/like-relation", "/v1/users/" + markTarget + "/follow-relation", "/v1/targets/like/" + markTarget + "/count",
		"/v1/videos/" + markTarget + "/likers", "/v1/videos/" + markTarget + "/likers?pageToken=" + markPage, "/v1/me/likes?pageToken=" + markPage,
		"/v1/me/relations:batchGet", "/v1/exports", "/v1/exports/" + markTarget, "/v1/exports/" + markTarget + "/files/" + markTarget,
		"/v1/" + markTarget, "/" + markTarget, "/v1/videos/" + strings.Repeat(markTarget, 50) + "/like-relation", "/v1/videos/%00" + markTarget + "/like-relation",
	}
	for _, token := range s.tokens {
		for _, path := range paths {
			s.request(http.MethodGet, path, token, "")
			for _, body := range bodies {
				s.request(http.MethodPut, path, token, body)
				if strings.Contains(path, "export") || strings.Contains(path, "batch") {
					s.request(http.MethodPost, path, token, body)
				}
			}
		}
	}
	// Neither TLS nor HTTP, and HTTP that is none behind TLS.
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, strings.Replace(s.api, "https:", "http:", 1)+"/"+markPayload, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	if res, err := oneShot.Do(req); err == nil {
		_ = res.Body.Close()
	}
	conn, err := s.client.Transport.(*http.Transport).DialTLSContext(s.t.Context(), "tcp", strings.TrimPrefix(s.api, "https://"))
	if err != nil {
		s.t.Fatal(err)
	}
	_, _ = fmt.Fprintf(conn, "GET /%s HTTP/9.9\r\nAuthorization: %s\r\n\r\n", markPayload, markBadToken)
	_ = conn.Close()
}

// underTraffic does something while commands and queries are on their way.
func (s *sender) underTraffic(do func()) {
	done := make(chan struct{})
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				s.request(http.MethodPut, "/v1/videos/"+markTarget+"/like-relation", s.tokens[0], fmt.Sprintf(`{"desiredState":"LIKED","deviceId":%q}`, markDevice))
				s.request(http.MethodGet, "/v1/me/likes", s.tokens[0], "")
				s.request(http.MethodPost, "/v1/exports", s.tokens[1], fmt.Sprintf(`{"kind":"like","targetId":%q,"format":"csv","purpose":%q}`, markTarget, markPurpose))
				time.Sleep(time.Millisecond)
			}
		})
	}
	do()
	close(done)
	all.Wait()
}

// poison sends records that no processor understands.
func (e *encrypted) poison(t *testing.T) {
	t.Helper()
	client, err := kafkaClient(e.cfg, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	topo, err := e.cfg.Topology()
	if err != nil {
		t.Fatal(err)
	}
	for _, stream := range []string{topology.CDC, topology.BucketChanges} {
		for _, value := range []string{markPayload, `{"payload":"` + markPayload + `"}`} {
			r := &kgo.Record{Topic: topo.Topic(stream), Key: []byte("like:" + markUser + ":" + markTarget), Value: []byte(value)}
			if err := client.ProduceSync(t.Context(), r).FirstErr(); err != nil {
				t.Fatal(err)
			}
		}
	}
}
