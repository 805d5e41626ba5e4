package faultbroker

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"pgregory.net/rapid"

	"github.com/tidemark/tidemark/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// However a stream of requests is cut, every head is found once, in order.
func TestFrameFindsEveryHead(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type head struct {
			key    int16
			client string
		}
		var stream []byte
		var want []head
		for range rapid.IntRange(1, 8).Draw(t, "requests") {
			h := head{rapid.Int16Range(0, 90).Draw(t, "key"), rapid.StringN(0, 20, 40).Draw(t, "client")}
			body := binary.BigEndian.AppendUint16(nil, uint16(h.key))
			body = append(body, 0, 7, 0, 0, 0, 1)
			body = binary.BigEndian.AppendUint16(body, uint16(len(h.client)))
			body = append(body, h.client...)
			body = append(body, make([]byte, rapid.IntRange(0, 50).Draw(t, "rest"))...)
			stream = append(binary.BigEndian.AppendUint32(stream, uint32(len(body))), body...)
			want = append(want, h)
		}
		var f frame
		var got []head
		for len(stream) > 0 {
			// A read never spans two requests: the broker reads a request whole
			// before it asks for the next.
			n := rapid.IntRange(1, len(stream)).Draw(t, "read")
			for _, b := range stream[:n] {
				if f.feed([]byte{b}) {
					got = append(got, head{f.key, f.client})
				}
			}
			stream = stream[n:]
		}
		if len(got) != len(want) {
			t.Fatalf("found %d heads of %d", len(got), len(want))
		}
		for i := range want {
			if got[i] != want[i] {
				t.Fatalf("head %d is %v, want %v", i, got[i], want[i])
			}
		}
	})
}

func TestCheckNamesWhatIsWrong(t *testing.T) {
	for _, c := range []struct {
		fault Fault
		wrong string
	}{
		{Fault{Kind: Answer, Error: "NOT_LEADER_FOR_PARTITION"}, ""},
		{Fault{Kind: Answer, Error: "NO_SUCH"}, `"NO_SUCH"`},
		{Fault{Kind: Answer}, `""`},
		{Fault{Kind: "odd"}, `"odd"`},
		{Fault{Kind: DelayAck}, "most 0s"},
		{Fault{Kind: DelayAck, Most: time.Second, Request: "Nothing"}, `"Nothing"`},
		{Fault{Kind: LoseAck, Count: -1}, "count -1"},
		{Fault{Kind: Stall}, ""},
	} {
		err := c.fault.check()
		if (err == nil) != (c.wrong == "") || err != nil && !strings.Contains(err.Error(), c.wrong) {
			t.Errorf("%+v: %v, want %q", c.fault, err, c.wrong)
		}
	}
	retriable, final := ProduceErrors()
	for _, name := range append(retriable, final...) {
		if _, err := errorOf(name); err != nil {
			t.Error(err)
		}
	}
}

// serve runs Serve in this process.
func serve(t *testing.T, ports ...int) *Broker {
	t.Helper()
	if ports == nil {
		ports = []int{0}
	}
	ctx, cancel := context.WithCancel(context.Background())
	out, in := io.Pipe()
	done := make(chan error, 1)
	go func() {
		done <- Serve(ctx, ServeConfig{DataDir: t.TempDir(), Ports: ports, Admin: "127.0.0.1:0", Out: in})
	}()
	b := &Broker{}
	if err := json.NewDecoder(out).Decode(&b.ready); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		client.CloseIdleConnections()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return b
}

func kafka(t *testing.T, b *Broker, id string, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	cl, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(b.Address()), kgo.ClientID(id), kgo.DefaultProduceTopic("t"), kgo.ProducerLinger(0)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return cl
}

func TestFaultsHitWhomTheyAreMeantFor(t *testing.T) {
	b := serve(t)
	ctx := t.Context()
	sound, drilled := kafka(t, b, "sound"), kafka(t, b, "drilled-1")
	admin := kadm.NewClient(sound)
	if _, err := admin.CreateTopic(ctx, 1, 1, nil, "t"); err != nil {
		t.Fatal(err)
	}
	produce := func(cl *kgo.Client) error {
		ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		return cl.ProduceSync(ctx, kgo.StringRecord("x")).FirstErr()
	}
	end := func() int64 {
		ends, err := admin.ListEndOffsets(ctx, "t")
		if err != nil {
			t.Fatal(err)
		}
		o, _ := ends.Lookup("t", 0)
		return o.Offset
	}
	install := func(f Fault) int {
		i, err := b.Break(ctx, f)
		if err != nil {
			t.Fatal(err)
		}
		return i.ID
	}
	healed := func(id, want int) {
		t.Helper()
		hits, err := b.Heal(ctx, id)
		if err != nil || hits < want {
			t.Fatalf("hit %d times, want %d: %v", hits, want, err)
		}
	}
	if err := errors.Join(produce(sound), produce(drilled)); err != nil {
		t.Fatal(err)
	}

	lost := install(Fault{Kind: LoseAck, Client: "drilled", Count: 1})
	if err := errors.Join(produce(sound), produce(drilled)); err != nil {
		t.Fatal(err) // the client tries again, and the broker knows the record
	}
	healed(lost, 1)
	if n := end(); n != 4 {
		t.Fatalf("%d records after a lost answer, want 4", n)
	}

	late := install(Fault{Kind: DelayAck, Client: "drilled", Most: 50 * time.Millisecond})
	later := install(Fault{Kind: DelayWork, Client: "drilled", Most: 50 * time.Millisecond})
	if err := produce(drilled); err != nil {
		t.Fatal(err)
	}
	healed(late, 1)
	healed(later, 1)

	cut := install(Fault{Kind: Cut, Client: "drilled"})
	if err := produce(drilled); err != nil {
		t.Fatal(err)
	}
	healed(cut, 1)

	refused := install(Fault{Kind: Answer, Topic: "t", Error: kerr.InvalidRecord.Message, Count: 1})
	if err := produce(drilled); !errors.Is(err, kerr.InvalidRecord) {
		t.Fatalf("got %v", err)
	}
	healed(refused, 1)

	stalled := install(Fault{Kind: Stall, Client: "drilled"})
	done := make(chan error, 1)
	go func() { done <- produce(drilled) }()
	if err := produce(sound); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 10*time.Second, func() error {
		if hits, err := b.Hits(ctx, stalled); err != nil || hits == 0 {
			return errors.Join(err, errors.New("nothing is stalled"))
		}
		return nil
	})
	select {
	case err := <-done:
		t.Fatalf("a record came through: %v", err)
	default:
	}
	if err := b.HealAll(ctx); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestServerRefusesNonsense(t *testing.T) {
	s := &server{links: newLinks(1), faults: map[int]*installed{}}
	for _, c := range []struct{ method, path, body string }{
		{"POST", "/faults", "{"}, {"POST", "/faults", `{"kind":"odd"}`}, {"GET", "/faults/7", ""}, {"DELETE", "/faults/x", ""},
	} {
		w := httptest.NewRecorder()
		s.handler().ServeHTTP(w, httptest.NewRequest(c.method, c.path, strings.NewReader(c.body)))
		if w.Code != http.StatusBadRequest && w.Code != http.StatusNotFound {
			t.Errorf("%s %s: %d", c.method, c.path, w.Code)
		}
	}
}
