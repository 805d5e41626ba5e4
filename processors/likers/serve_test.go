package likers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tidemark/tidemark/internal/testenv"
	"github.com/tidemark/tidemark/internal/tlsfiles"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
	"github.com/tidemark/tidemark/topology/tidemarkv1/tidemarkv1connect"
)

// serve answers for l and gives its base URL and a client.
func serve(t *testing.T, l *Likers, encrypted *tlsfiles.Server) (string, tidemarkv1connect.LikersServiceClient) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	server := NewServer(l, ServerConfig{Listener: listener, TLS: encrypted, Logger: slog.New(slog.DiscardHandler)})
	go func() { done <- server.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	base := "http://" + listener.Addr().String()
	return base, clientOf(t, base, nil)
}

func clientOf(t *testing.T, base string, encrypted *tlsfiles.Client) tidemarkv1connect.LikersServiceClient {
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(encrypted == nil)
	if encrypted != nil {
		transport.Protocols.SetHTTP2(true)
		transport.DialTLSContext = encrypted.WithProtocols("h2").Dial
	}
	t.Cleanup(transport.CloseIdleConnections)
	return tidemarkv1connect.NewLikersServiceClient(connect.NewClient(connecthttp.NewTransport(&http.Client{Transport: transport}, base)))
}

// What is asked wrongly is refused by name, and what is not served is never an
// empty list.
func TestServiceRefuses(t *testing.T) {
	cfg := testConfig([]string{"localhost:1"}, testTopology("refuses"), t.TempDir(), 0)
	l, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	base, client := serve(t, l, nil)
	partition := cfg.Reverse.Partition(topology.Like, "V1", cfg.Reverse.Shard("u1"))
	shard := uint32(cfg.Reverse.Shard("u1"))
	position := func(shard uint32, at int64, user string) *tidemarkv1.ReverseShardPosition {
		return &tidemarkv1.ReverseShardPosition{ReverseShard: shard, LikedAtUs: at, UserId: user}
	}
	for name, test := range map[string]struct {
		change func(*tidemarkv1.ListLikersRequest)
		want   connect.Code
	}{
		"nothing wrong but that it does not run": {func(*tidemarkv1.ListLikersRequest) {}, connect.CodeUnavailable},
		"another deployment's process":           {func(r *tidemarkv1.ListLikersRequest) { r.Group = "staging.likers" }, connect.CodeUnavailable},
		"another generation":                     {func(r *tidemarkv1.ListLikersRequest) { r.Generation = 2 }, connect.CodeFailedPrecondition},
		"limit 0":                                {func(r *tidemarkv1.ListLikersRequest) { r.Limit = 0 }, connect.CodeInvalidArgument},
		"limit too high":                         {func(r *tidemarkv1.ListLikersRequest) { r.Limit = MaxPage + 1 }, connect.CodeInvalidArgument},
		"no kind":                                {func(r *tidemarkv1.ListLikersRequest) { r.Kind = 0 }, connect.CodeInvalidArgument},
		"kind 257, which is 1 in a byte":         {func(r *tidemarkv1.ListLikersRequest) { r.Kind = 257 }, connect.CodeInvalidArgument},
		"no target":                              {func(r *tidemarkv1.ListLikersRequest) { r.TargetId = "" }, connect.CodeInvalidArgument},
		"no such partition":                      {func(r *tidemarkv1.ListLikersRequest) { r.Partition = 1 << 31 }, connect.CodeInvalidArgument},
		"a position of another partition":        {func(r *tidemarkv1.ListLikersRequest) { r.After[0].ReverseShard++ }, connect.CodeInvalidArgument},
		"a position twice":                       {func(r *tidemarkv1.ListLikersRequest) { r.After = append(r.After, r.After[0]) }, connect.CodeInvalidArgument},
		"a position without a time":              {func(r *tidemarkv1.ListLikersRequest) { r.After[0].LikedAtUs = 0 }, connect.CodeInvalidArgument},
		"a position without a user":              {func(r *tidemarkv1.ListLikersRequest) { r.After[0].UserId = "" }, connect.CodeInvalidArgument},
		"too many bytes":                         {func(r *tidemarkv1.ListLikersRequest) { r.TargetId = strings.Repeat("x", 2*maxRequest) }, connect.CodeResourceExhausted},
	} {
		req := &tidemarkv1.ListLikersRequest{
			Group: cfg.Topology.Group(topology.LikersGroup).ID, Partition: uint32(partition), Generation: 1,
			Kind: tidemarkv1.Kind(topology.Like), TargetId: "V1", Limit: 10, After: []*tidemarkv1.ReverseShardPosition{position(shard, 5, "u1")},
		}
		test.change(req)
		if resp, err := client.ListLikers(t.Context(), req); err == nil || connect.CodeOf(err) != test.want {
			t.Errorf("%s: %v, %v, want %v", name, resp, err, test.want)
		}
	}
	// HTTP/1.1 is not spoken: one connection bears all questions of a process.
	if resp, err := http.Post(base+tidemarkv1connect.LikersServiceListLikersProcedure, "application/proto", nil); err == nil {
		_ = resp.Body.Close()
		if resp.StatusCode == http.StatusOK {
			t.Error("HTTP/1.1 is answered")
		}
	}
}

// Who does not show a certificate that is believed, with a name that is
// expected, gets nothing.
func TestServiceOverTLS(t *testing.T) {
	l, err := New(testConfig([]string{"localhost:1"}, testTopology("tls"), t.TempDir(), 0))
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs := testenv.NewAuthority(t), testenv.NewAuthority(t)
	cfg := tlsfiles.ServerConfig{ClientNames: []string{"queries.example"}}
	cfg.CA = ours.File
	cfg.Cert, cfg.Key = ours.Issue(t, testenv.Certificate{Names: []string{"likers.example"}})
	server, err := tlsfiles.NewServer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	base, _ := serve(t, l, server)
	base = strings.Replace(base, "http:", "https:", 1)
	ask := func(by *testenv.Authority, name string) error {
		cfg := tlsfiles.ClientConfig{ServerName: "likers.example"}
		cfg.CA = ours.File
		if by != nil {
			cfg.Cert, cfg.Key = by.Issue(t, testenv.Certificate{Names: []string{name}})
		}
		c, err := tlsfiles.NewClient(cfg)
		if err != nil {
			t.Fatal(err)
		}
		_, err = clientOf(t, base, c).ListLikers(t.Context(), &tidemarkv1.ListLikersRequest{})
		return err
	}
	const answered = "this is a process of group"
	if err := ask(ours, "queries.example"); connect.CodeOf(err) != connect.CodeUnavailable || !strings.Contains(err.Error(), answered) {
		t.Errorf("with a certificate: %v", err)
	}
	for name, err := range map[string]error{
		"without a certificate": ask(nil, ""), "of another authority": ask(theirs, "queries.example"), "with another name": ask(ours, "api.example"),
	} {
		if err == nil || strings.Contains(err.Error(), answered) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The first answer of a new owner, here a hot standby, has all that the owner
// before it has shown. Until then it is not ready.
func TestFirstAnswerOfANewOwnerIsWhole(t *testing.T) {
	const users = 20_000
	brokers := testenv.Kafka(t)
	topo := testTopology(testenv.Prefix(t))
	testenv.CreateTopics(t, brokers, topo)
	cl := producer(t, brokers)
	var both [2]*Likers
	for i := range both {
		cfg := testConfig(brokers, topo, t.TempDir(), 0)
		cfg.Instance, cfg.HotStandby = fmt.Sprintf("member%d", i), true
		cfg.WriteBehind = 64 << 20 // nothing goes to disk by itself
		l, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		both[i] = l
	}
	stop := [2]func(){start(t, both[0]), start(t, both[1])}
	g := both[0].cfg.Reverse
	owner := map[int]int{} // member by partition
	testenv.Eventually(t, time.Minute, func() error {
		clear(owner)
		members := map[int]bool{}
		for partition := range g.Partitions() {
			for i, l := range both {
				if l.served(partition) != nil {
					owner[partition], members[i] = i, true
				}
			}
		}
		if len(owner) != g.Partitions() || len(members) != 2 {
			return fmt.Errorf("owners are %v", owner)
		}
		return nil
	})
	var records []*kgo.Record
	want := map[int]int{} // users by partition
	for i := range users {
		c := like(g, fmt.Sprintf("u%d", i), "V1", 1, topology.Liked, int64(1+i))
		want[int(c.Reverse.Partition)]++
		records = append(records, likerRecord(t, topo, c))
	}
	produce(t, cl, records...)
	for partition, n := range want {
		testenv.Eventually(t, time.Minute, func() error {
			l, err := both[owner[partition]].List(ListQuery{Generation: 1, Kind: topology.Like, Target: "V1", Partition: partition, Limit: 1})
			if err == nil && l.Offset < int64(n-1) {
				err = fmt.Errorf("partition %d shows offset %d of %d", partition, l.Offset, n-1)
			}
			return err
		})
	}
	var all sync.WaitGroup
	for partition, n := range want {
		if owner[partition] == 0 {
			all.Go(func() { firstAnswerIsWhole(t, both[1], partition, n) })
		}
	}
	stop[0]()
	all.Wait()
}

// A hot standby answers who asks for it, what its owner has shown, and says
// that it is one; it answers nobody else. It goes on while the owner is gone.
func TestHotStandbyAnswers(t *testing.T) {
	const users = 500
	brokers := testenv.Kafka(t)
	topo := testTopology(testenv.Prefix(t))
	testenv.CreateTopics(t, brokers, topo)
	cl := producer(t, brokers)
	var both [2]*Likers
	var stop [2]func()
	for i := range both {
		cfg := testConfig(brokers, topo, t.TempDir(), 0)
		cfg.Instance, cfg.HotStandby = fmt.Sprintf("member%d", i), true
		l, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		both[i], stop[i] = l, start(t, l)
	}
	g := both[0].cfg.Reverse
	var records []*kgo.Record
	want := map[int]int{} // users by partition
	for i := range users {
		c := like(g, fmt.Sprintf("u%d", i), "V1", 1, topology.Liked, int64(1+i))
		want[int(c.Reverse.Partition)]++
		records = append(records, likerRecord(t, topo, c))
	}
	produce(t, cl, records...)
	answer := func(l *Likers, partition int, standby bool) (List, error) {
		return l.List(ListQuery{Generation: 1, Kind: topology.Like, Target: "V1", Partition: partition, Limit: MaxPage, Standby: standby})
	}
	owner := map[int]int{}
	whole := func() error { // each partition at its owner, and at the other one
		for partition, n := range want {
			for i, l := range both {
				own, err := answer(l, partition, false)
				if err == nil && len(own.Entries) == n {
					owner[partition] = i
					continue
				}
				if !errors.Is(err, ErrNotReady) {
					return fmt.Errorf("partition %d at member %d: %d of %d users, %w", partition, i, len(own.Entries), n, err)
				}
				warm, err := answer(l, partition, true)
				if err != nil || len(warm.Entries) != n || !warm.Standby {
					return fmt.Errorf("partition %d at standby %d: %d of %d users, standby %v, %w", partition, i, len(warm.Entries), n, warm.Standby, err)
				}
			}
			if l, err := answer(both[owner[partition]], partition, true); err != nil || l.Standby {
				return fmt.Errorf("partition %d: its owner says that it is a standby: %v, %w", partition, l.Standby, err)
			}
		}
		members := map[int]bool{}
		for _, i := range owner {
			members[i] = true
		}
		if len(members) != 2 {
			return fmt.Errorf("owners are %v", owner)
		}
		return nil
	}
	testenv.Eventually(t, time.Minute, whole)
	stop[0]() // missed for a session
	for partition, n := range want {
		if owner[partition] != 0 {
			continue
		}
		l, err := answer(both[1], partition, true)
		if err == nil && (len(l.Entries) != n || l.Offset != int64(n-1)) {
			t.Errorf("partition %d: %d of %d users, offset %d", partition, len(l.Entries), n, l.Offset)
		}
		if err != nil && !errors.Is(err, ErrNotReady) { // the session was over
			t.Error(err)
		}
	}
}

// start runs l until stop.
func start(t *testing.T, l *Likers) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := l.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	t.Cleanup(stop)
	return stop
}

// firstAnswerIsWhole asks without a pause, so that it meets the moment in which
// the partition begins to be served.
func firstAnswerIsWhole(t *testing.T, l *Likers, partition, users int) {
	query := ListQuery{Generation: 1, Kind: topology.Like, Target: "V1", Partition: partition, After: map[int]Frontier{}, Limit: MaxPage}
	deadline := time.Now().Add(time.Minute)
	for {
		first, err := l.List(query)
		if err == nil {
			if len(first.Entries) != min(users, MaxPage) || first.More != (users > MaxPage) {
				t.Errorf("partition %d has %d users, its first answer %d, more: %v", partition, users, len(first.Entries), first.More)
			}
			if !slices.IsSortedFunc(first.Entries, func(a, b Entry) int {
				if a.Before(b) {
					return -1
				}
				return 1
			}) {
				t.Errorf("partition %d: out of order", partition)
			}
			return
		}
		if !errors.Is(err, ErrNotReady) || time.Now().After(deadline) {
			t.Errorf("partition %d: %v", partition, err)
			return
		}
		runtime.Gosched() // not a sleep: the moment must not be missed
	}
}
