package main

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark/tidemark/api"
	"github.com/tidemark/tidemark/internal/config"
	"github.com/tidemark/tidemark/internal/gokakit"
	"github.com/tidemark/tidemark/internal/overload"
	"github.com/tidemark/tidemark/internal/signature"
	"github.com/tidemark/tidemark/processors/display"
	"github.com/tidemark/tidemark/processors/intake"
	"github.com/tidemark/tidemark/processors/likers"
	"github.com/tidemark/tidemark/processors/projection"
	"github.com/tidemark/tidemark/relations"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/views"
)

// roleNames lists the roles in the order of the picture in main.go.
var roleNames = []string{"commands", "cdc", "intake", "projection", "likers", "display", "cachefloor", "privacy", "queries"}

func checkRoles(roles []string) error {
	for i, r := range roles {
		if !contains(roleNames, r) {
			return usagef("role %q is not one of %s", r, strings.Join(roleNames, ", "))
		}
		if contains(roles[:i], r) {
			return usagef("role %s is named twice", r)
		}
	}
	return nil
}

func contains(roles []string, role string) bool { return slices.Contains(roles, role) }

// builder gathers the actors of a process's roles.
type builder struct {
	*process
	client  gokakit.Client
	levels  *levels                  // nil until a role asks for it
	signals []func() overload.Signal // that press this process, besides what it serves
	actors  []actor
	close   []func()
}

// build makes the actors of the roles; closeAll ends what they share.
func (p *process) build(ctx context.Context, roles []string) (actors []actor, closeAll func(), err error) {
	b := &builder{process: p}
	closeAll = func() {
		for _, f := range slices.Backward(b.close) {
			f()
		}
	}
	if b.client, err = gokaClient(p.cfg, p.cfg.Instance); err != nil {
		return nil, closeAll, err
	}
	has := func(role string) bool { return contains(roles, role) }
	steps := []struct {
		wanted bool
		build  func(context.Context) error
	}{
		{has("commands"), b.sealers},
		{has("commands"), b.retention},
		{has("cdc"), b.cdc},
		{has("intake"), b.intake},
		{has("projection"), b.projection},
		{has("likers"), b.likers},
		{has("display"), b.display},
		{has("cachefloor"), b.cachefloor},
		{has("privacy"), b.privacy},
		{has("commands") || has("queries"), func(ctx context.Context) error { return b.api(ctx, has("commands"), has("queries")) }},
	}
	for _, s := range steps {
		if !s.wanted {
			continue
		}
		if err := s.build(ctx); err != nil {
			return nil, closeAll, err
		}
	}
	return b.actors, closeAll, nil
}

func (b *builder) add(name string, run func(context.Context) error, ready func() error) {
	b.actors = append(b.actors, actor{name: name, run: run, ready: ready})
}

// addKafka adds an actor that uses Kafka.
func (b *builder) addKafka(name string, run func(context.Context) error, ready func() error) {
	b.addDetailed(name, run, ready, nil)
}

// addDetailed adds one that also says how it is while it is ready.
func (b *builder) addDetailed(name string, run func(context.Context) error, ready func() error, detail func() string) {
	b.actors = append(b.actors, b.afterTopics(actor{name, run, ready, detail}))
}

func always() error { return nil }

// stateDir is where a role of this instance keeps its stores.
func (b *builder) stateDir(role string) string {
	return filepath.Join(b.cfg.StateDir, b.cfg.Instance, role)
}

func (b *builder) sealers(context.Context) error {
	for shard, url := range b.cfg.Postgres {
		s, err := relations.NewSealer(relations.SealerConfig{
			Shard: shard, URL: url, Interval: b.cfg.SealInterval, Logger: b.log, Registerer: b.metrics,
		})
		if err != nil {
			return err
		}
		b.add(fmt.Sprintf("sealer.%d", shard), s.Run, always)
	}
	return nil
}

func (b *builder) intake(ctx context.Context) error {
	named, err := b.gaps(ctx)
	if err != nil {
		return err
	}
	in, err := intake.New(intake.Config{
		Client: b.client, Topology: b.topo, Manifest: b.manifest, Reverse: b.reverse, Instance: b.cfg.Instance,
		StateDir: b.stateDir("intake"), Gaps: named, Logger: b.log, Registerer: b.metrics,
	})
	if err != nil {
		return err
	}
	b.addKafka("intake", in.Run, in.Ready)
	return nil
}

func (b *builder) projection(ctx context.Context) error {
	shared, err := b.overloadLevels(ctx)
	if err != nil {
		return err
	}
	p, err := projection.New(projection.Config{
		Client: b.client, Topology: b.topo, Manifest: b.manifest, Instance: b.cfg.Instance,
		StateDir: b.stateDir("projection"), RefreshInterval: b.cfg.RefreshInterval, HotStandby: b.cfg.HotStandby,
		Slow:   func() bool { return shared.atLeast(overload.SlowDisplay) },
		Logger: b.log, Registerer: b.metrics, Weakness: b.weak,
	})
	if err != nil {
		return err
	}
	b.addKafka("projection", p.Run, p.Ready)
	return nil
}

// likers listens before it joins its group, since members tell their address
// there.
func (b *builder) likers(ctx context.Context) error {
	tls, err := b.cfg.Likers.ServerTLS(b.log)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", b.cfg.Likers.Listen)
	if err != nil {
		return fmt.Errorf("listening for query processes: %w: choose another address with likers.listen in the configuration", err)
	}
	b.close = append(b.close, func() { _ = listener.Close() }) // when it is never served
	heads, err := b.keptHeads(ctx)
	if err != nil {
		return err
	}
	l, err := likers.New(likers.Config{
		Client: b.client, Topology: b.topo, Reverse: b.reverse, Instance: b.cfg.Instance,
		StateDir: b.stateDir("likers"), ShowInterval: b.cfg.RefreshInterval, HotStandby: b.cfg.HotStandby,
		Advertise: b.cfg.Likers.Address(listener.Addr()), Heads: heads, Logger: b.log, Registerer: b.metrics, Weakness: b.weak,
	})
	if err != nil {
		return err
	}
	b.add("likers.pages", likers.NewServer(l, likers.ServerConfig{Listener: listener, TLS: tls, Logger: b.log}).Run, always)
	b.addKafka("likers", l.Run, l.Ready)
	return nil
}

// likersView asks the owners of the reverse index.
func (b *builder) likersView(ctx context.Context) (*views.Likers, error) {
	tls, err := b.cfg.Likers.ClientTLS()
	if err != nil {
		return nil, err
	}
	heads, err := b.readHeads(ctx)
	if err != nil {
		return nil, err
	}
	v, err := views.NewLikers(views.LikersConfig{
		Client: b.client, Topology: b.topo, Reverse: b.reverse, TLS: tls, MaxStandbyStaleness: b.cfg.Likers.MaxStandbyStaleness, Heads: heads, Registerer: b.metrics, Weakness: b.weak,
	})
	if err == nil {
		b.close = append(b.close, v.Close)
	}
	return v, err
}

func (b *builder) display(ctx context.Context) error {
	counts, err := b.cachedCounts(ctx)
	if err != nil {
		return err
	}
	d, err := display.New(display.Config{
		Client: b.client, Topology: b.topo, Instance: b.cfg.Instance,
		StateDir: b.stateDir("display"), HotStandby: b.cfg.HotStandby, Counts: counts,
		Logger: b.log, Registerer: b.metrics,
	})
	if err != nil {
		return err
	}
	b.addKafka("display", d.Run, d.Ready)
	return nil
}

// api serves commands, queries or both; queries bring the view of counts.
func (b *builder) api(ctx context.Context, commands, queries bool) error {
	db, err := b.openControl(ctx)
	if err != nil {
		return err
	}
	store, err := relations.Open(ctx, relations.Config{
		URLs: b.cfg.Postgres, Map: b.shards, LoadMap: db.ShardMap, StaleBase: relations.StaleBasePolicy(b.cfg.StaleBasePolicy),
		StaleBaseByKind: staleBaseByKind(b.cfg.StaleBase), OperationsKept: b.cfg.CommandRetention,
		Logger: b.log, Registerer: b.metrics,
	})
	if err != nil {
		return err
	}
	b.close = append(b.close, store.Close)
	for shard := range b.cfg.Postgres {
		w := newPinger(func(ctx context.Context) error { return store.Ping(ctx, shard) })
		b.add(fmt.Sprintf("relations.%d", shard), w.run, w.ready)
	}
	rules, visible, err := b.visibility(ctx, store)
	if err != nil {
		return err
	}
	verifier, err := b.verifier()
	if err != nil {
		return err
	}
	signatures, err := b.signatures()
	if err != nil {
		return err
	}
	limiter, err := b.limiter()
	if err != nil {
		return err
	}
	var judge *api.Risk
	if commands {
		if judge, err = b.risk(); err != nil {
			return err
		}
	}
	guard, err := b.guard(ctx, limiter)
	if err != nil {
		return err
	}
	a, err := api.New(api.Config{Verifier: verifier, Visibility: visible, Risk: judge, Signatures: signatures, Limiter: limiter, Guard: guard, Shard: b.shards.Shard, Logger: b.log, Registerer: b.metrics})
	if err != nil {
		return err
	}
	b.add("tokens", verifier.Run, verifier.Ready)
	if commands {
		api.RegisterCommands(a, store)
		api.RegisterPrivacyEvents(a, rules, db)
	}
	if queries {
		counts, err := b.countReader(ctx)
		if err != nil {
			return err
		}
		few := api.NewBoundedReads(guard, b.shards.Shard, b.cfg.Shards, b.cfg.Cache.FallbackReads/tightFactor)
		facts, err := b.cachedFacts(ctx, few.States(store))
		if err != nil {
			return err
		}
		b.signals = append(b.signals, poolWait(store.PoolWaits(), b.cfg.Overload.PoolWait))
		api.RegisterQueries(a, facts, counts)
		if err := b.lists(ctx, a, few.Lists(store), rules, counts); err != nil {
			return err
		}
		if err := b.exports(ctx, a); err != nil {
			return err
		}
	}
	tls, err := b.cfg.API.ServerTLS(b.log)
	if err != nil {
		return err
	}
	server := api.NewServer(api.ServerConfig{Listen: b.cfg.API.Listen, TLS: tls, Logger: b.log}, a)
	if err := server.Listen(); err != nil {
		return fmt.Errorf("%w: choose another address with --listen, or api.listen in the configuration", err)
	}
	b.apiAddr = server.Addr()
	b.log.Info("serving HTTP", "address", b.cfg.API.URL(b.apiAddr))
	b.add("api", server.Run, always)
	return nil
}

// staleBaseByKind has the policies of the kinds that have their own.
func staleBaseByKind(c config.StaleBase) map[topology.Kind]relations.StaleBasePolicy {
	own := map[topology.Kind]relations.StaleBasePolicy{}
	for kind, p := range map[topology.Kind]string{topology.Like: c.Like, topology.Favorite: c.Favorite, topology.Follow: c.Follow} {
		if p != "" {
			own[kind] = relations.StaleBasePolicy(p)
		}
	}
	return own
}

// signatures are nil if nobody looks at them.
func (b *builder) signatures() (*api.Signatures, error) {
	c := b.process.cfg.Signatures
	keys, err := c.Keys(b.log)
	if err != nil || keys == nil {
		return nil, err
	}
	return &api.Signatures{
		Required: c.Required,
		Verifier: signature.Verifier{Secret: keys.Secret, MaxAge: c.MaxAge, Now: time.Now},
	}, nil
}

func (b *builder) verifier() (*api.Verifier, error) {
	auth, err := authConfig(b.process.cfg)
	if err != nil {
		return nil, err
	}
	auth.Logger, auth.Registerer = b.log, prometheus.Registerer(b.metrics)
	return api.NewVerifier(auth)
}
