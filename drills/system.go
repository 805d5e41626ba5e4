package drills

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/tidemark/tidemark/api"
	"github.com/tidemark/tidemark/drills/faultbroker"
	"github.com/tidemark/tidemark/drills/oracle"
	"github.com/tidemark/tidemark/drills/paging"
	"github.com/tidemark/tidemark/drills/reading"
	"github.com/tidemark/tidemark/emitters/load"
	"github.com/tidemark/tidemark/internal/config"
	"github.com/tidemark/tidemark/internal/control"
	"github.com/tidemark/tidemark/internal/embedded"
	"github.com/tidemark/tidemark/internal/verify"
	"github.com/tidemark/tidemark/topology"
)

// Verifier compares a whole running system, as `tidemark verify` does.
type Verifier func(ctx context.Context, cfg config.Config) (verify.Report, error)

// system is the bench on which everything runs: PostgreSQL, the broker, each
// role in a process of its own, and commands over HTTP.
type system struct {
	environment
	cell    Cell
	cfg     config.Config
	topo    *topology.Topology
	broker  *faultbroker.Broker // nil: a real one
	watcher *oracle.Watcher
	auth    api.AuthConfig
	readers *paging.Readers // nil: none
	lossy   *lossyAPI       // before the API; nil: none
	redis   *redisServers   // nil: none
	control *control.DB     // nil: there is no Redis
	askers  *reading.Users  // nil: none
	joined  int             // processes that likersJoin has started
	// endOperator ends who hides and shows; nil: nobody does. hidings are his.
	endOperator func()
	hidings     int

	mu       sync.Mutex
	roles    []*role
	gone     []*role // that were taken away for good
	postgres *embedded.Postgres
	data     string // of PostgreSQL
	stopLoad context.CancelFunc
	loaded   chan struct{}
	report   load.Report
	loadErr  error
	verified verify.Report
	compares int // lists that were compared with their facts

	cacheChecked CacheChecked
}

const (
	systemShards     = 2
	controlDatabase  = "tidemark_control"
	shardDatabase    = "tidemark_shard_%d"
	systemPartitions = 4
)

func newSystem(ctx context.Context, env environment, cell Cell) (s *system, err error) {
	s = &system{environment: env, cell: cell.withDefaults(), data: filepath.Join(env.dir, "postgres")}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if err := s.startPostgres(ctx); err != nil {
		return s, err
	}
	if s.kafka == "" {
		if s.broker, err = faultbroker.Start(s.dir); err != nil {
			return s, err
		}
	}
	if s.cell.Redis != NoRedis {
		if s.redis, err = startRedis(ctx, filepath.Join(s.dir, "redis"), s.cell.Redis); err != nil {
			s.redis = nil // it has closed itself
			return s, err
		}
	}
	if err := s.configure(); err != nil {
		return s, err
	}
	file := s.file()
	for _, args := range [][]string{{"schema", "migrate", "--config", file}, {"topology", "create", "--config", file}} {
		if err := command(ctx, filepath.Join(s.dir, "setup.log"), args...); err != nil {
			return s, err
		}
	}
	s.watcher, err = oracle.Watch(oracle.Config{Brokers: s.cfg.Kafka.Brokers, Topology: s.topo, System: true, Findings: s.findings, Logger: s.log})
	if err != nil {
		return s, err
	}
	if err := s.startRoles(ctx); err != nil {
		return s, err
	}
	if err := s.startReaders(ctx); err != nil {
		return s, err
	}
	if s.cell.LossyAPI {
		if s.lossy, err = newLossyAPI("http://"+s.cfg.API.Listen, s.seed); err != nil {
			return s, err
		}
	}
	if err := s.startAskers(ctx); err != nil {
		return s, err
	}
	if err := s.startOperator(ctx); err != nil {
		return s, err
	}
	return s, s.startLoad()
}

func (s *system) startPostgres(ctx context.Context) error {
	p, err := embedded.StartPostgres(ctx, embedded.PostgresConfig{DataDir: s.data, Settings: postgresSettings(), Logger: s.log})
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.postgres = p
	s.mu.Unlock()
	names := []string{controlDatabase}
	for shard := range systemShards {
		names = append(names, fmt.Sprintf(shardDatabase, shard))
	}
	for _, name := range names {
		if err := p.CreateDatabase(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

func postgresSettings() map[string]string { return map[string]string{"fsync": "off"} }

func (s *system) configure() (err error) {
	c := config.Default()
	c.Shards, c.CountPartitions, c.DisplayPartitions = systemShards, systemPartitions, displayPartitions
	c.Control = s.postgres.URL(controlDatabase)
	for shard := range c.Shards {
		c.Postgres = append(c.Postgres, s.postgres.URL(fmt.Sprintf(shardDatabase, shard)))
	}
	if c.Kafka.Brokers = splitList(s.kafka); s.broker != nil {
		c.Kafka.Brokers = []string{s.broker.Address()}
	} else {
		c.Prefix = sharedPrefix(s.seed)
	}
	c.StateDir, c.Auth.HS256KeyFile = filepath.Join(s.dir, "state"), filepath.Join(s.dir, "drill.key")
	c.HotStandby = s.cell.HotStandby
	c.Limits.Enabled = false // few users change few relations as fast as they can
	if s.redis != nil {
		c.Redis, c.Cache.ReadRelations = s.redis.url(), true
	}
	c.RefreshInterval, c.SealInterval = 20*time.Millisecond, 500*time.Millisecond
	if s.cell.Overload {
		overloadSettings(&c)
		c.Exports.Dir = filepath.Join(s.dir, "exports")
	}
	if c.Risk.RulesFile, err = s.writeHidingRules(); err != nil {
		return err
	}
	if c.API.Listen, err = freeAddress(); err != nil {
		return err
	}
	c.API.PageTokenKeyFiles = []string{filepath.Join(s.dir, "page-tokens.key")}
	for _, file := range append(c.API.PageTokenKeyFiles, c.Auth.HS256KeyFile) {
		if _, err := api.LoadOrCreateKey(file); err != nil {
			return err
		}
	}
	key, err := api.LoadKey(c.Auth.HS256KeyFile)
	if err != nil {
		return err
	}
	s.auth = api.AuthConfig{HS256Key: key}
	s.cfg = c
	if s.topo, err = c.Topology(); err != nil {
		return err
	}
	return c.Write(s.file())
}

func (s *system) startRoles(ctx context.Context) error {
	type process struct {
		name  string
		roles []string
	}
	all := []process{
		{"api", []string{"commands", "queries"}}, {"cdc", []string{"cdc"}}, {"intake-1", []string{"intake"}}, {"intake-2", []string{"intake"}},
		{"projection-1", []string{"projection"}}, {"projection-2", []string{"projection"}}, {"display", []string{"display"}},
	}
	for n := range s.cell.Likers {
		all = append(all, process{fmt.Sprintf("likers-%d", n+1), []string{"likers"}})
	}
	if s.redis != nil {
		all = append(all, process{"cachefloor-1", []string{"cachefloor"}}, process{"cachefloor-2", []string{"cachefloor"}}, process{"privacy", []string{"privacy"}})
	}
	for _, p := range all {
		if err := s.startRole(p.name, p.roles...); err != nil {
			return err
		}
	}
	return await(ctx, s.patience, "starting the roles", func() error { return s.allReady(ctx) })
}

func (s *system) allReady(ctx context.Context) error {
	for _, r := range s.processes() {
		if r.away.Load() {
			continue
		}
		if err := r.ready(ctx); err != nil {
			return err
		}
	}
	return nil
}

// startLoad sends commands until stopLoad is called, and tries each for as long
// as that takes: a killed API is one of the things that are injected.
func (s *system) startLoad() error {
	l, err := load.New(s.loadConfig())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.stopLoad, s.loaded = cancel, make(chan struct{})
	go func() {
		defer close(s.loaded)
		s.report, s.loadErr = l.Run(ctx)
	}()
	return nil
}

func (s *system) loadConfig() load.Config {
	c := load.Default()
	c.BaseURL = "http://" + s.cfg.API.Listen
	c.Token = func(user string) (string, error) { return s.auth.Mint(user, "", time.Hour) }
	c.Rate, c.Commands, c.Seed = float64(s.cell.Rate), 0, s.seed
	c.Users, c.Targets, c.Workers = 3000, 20_000, 32
	if s.cell.Readers > 0 || s.cell.Overload {
		c.Users, c.Targets = hotUsers, hotTargets
	}
	c.Attempts, c.MaxBackoff, c.Timeout = 10_000, 500*time.Millisecond, 5*time.Second
	c.FreshRetries = s.freshOperations()
	if s.lossy != nil {
		c.BaseURL = "http://" + s.lossy.address
	}
	return c
}

// processes are those that run, or are to.
func (s *system) processes() []*role {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.roles)
}

func (s *system) do(ctx context.Context, name string, rnd *rand.Rand) error {
	i := systemInjections[name]
	if err := s.harm(ctx, i.faults, func(ctx context.Context) error { return i.do(ctx, s, rnd) }); err != nil {
		return err
	}
	s.tallies.inject(name)
	return nil
}

// flowing waits until every process is ready and what is committed from now on
// is displayed.
func (s *system) flowing(ctx context.Context) error {
	if err := await(ctx, s.patience, "every process being ready", func() error { return s.allReady(ctx) }); err != nil {
		return err
	}
	before := s.watcher.Displayed()
	return await(ctx, s.patience, "new seals being displayed", func() error {
		for shard, seal := range s.watcher.Displayed() {
			if seal <= before[shard]+1 {
				return fmt.Errorf("shard %d is displayed up to seal %d", shard, seal)
			}
		}
		return nil
	})
}

// watch looks after the processes.
func (s *system) watch(ctx context.Context) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for _, r := range s.processes() {
			if !r.busy.TryLock() {
				continue
			}
			if err := r.now().Died(); err != nil {
				s.findings.Add(Died, "%v", err)
				if err := r.start(); err != nil {
					s.findings.Add(Died, "starting it again: %v", err)
				}
			}
			r.busy.Unlock()
		}
	}
}

// judge heals everything, ends the commands, and compares.
func (s *system) judge(ctx context.Context) error {
	if s.broker != nil {
		if err := s.broker.HealAll(ctx); err != nil {
			return err
		}
	}
	if s.redis != nil {
		if err := s.redis.heal(ctx); err != nil {
			return err
		}
	}
	err := s.flowing(ctx)
	var not stuckError
	if errors.As(err, &not) {
		s.findings.Add(Stuck, "%v", err)
	} else if err != nil {
		return err
	}
	s.finishReaders(ctx)
	if s.askers != nil {
		s.askers.Stop()
		s.cacheChecked.Users = s.askers.Figures()
	}
	if s.endOperator != nil {
		s.endOperator()
	}
	s.stopLoad()
	<-s.loaded
	if s.loadErr != nil && !errors.Is(s.loadErr, context.Canceled) {
		return fmt.Errorf("the commands: %w", s.loadErr)
	}
	if s.verified, err = s.verify(ctx, s.cfg); err != nil {
		return err
	}
	s.log.Info("hidden relations were compared", "relations", hiddenFacts(s.verified), "hidden or shown by an operator", s.hidings)
	s.watcher.Judge(s.verified)
	if err := s.judgeOperations(ctx); err != nil {
		return err
	}
	if err := s.noGapOpen(ctx); err != nil {
		return err
	}
	if !s.verified.Quiet {
		s.findings.Add(Unquiet, "%s", s.verified.Reason)
	}
	if err := s.watcher.CatchUp(ctx); err != nil {
		return err
	}
	s.watcher.Settle()
	if err := s.compareLists(ctx); err != nil {
		return err
	}
	if err := s.judgeCache(ctx); err != nil {
		return err
	}
	for _, r := range s.processes() {
		if n := r.memory(); n > s.cell.MaxMemory {
			s.findings.Add(TooMuchMemory, "%s took %d MB, %d are allowed", r.name, n>>20, s.cell.MaxMemory>>20)
		}
		took, _ := r.now().Stop(stopPatience)
		s.tallies.stopped(took)
	}
	return nil
}

func (s *system) fill(r *Result) {
	s.tallies.fill(r)
	report := s.report
	r.Figures.Load = &report
	r.Figures.Events = report.Decided
	r.Checked.Watched = s.watcher.Watched()
	r.Checked.Relations, r.Checked.Targets, r.Checked.Lists = s.verified.Relations, s.verified.Targets, s.compares
	if s.readers != nil {
		pages := s.readers.Figures()
		r.Checked.Pages = &pages
	}
	if s.redis != nil {
		r.Checked.Cache = &s.cacheChecked
	}
	for _, role := range s.processes() {
		r.Figures.MostMemory = max(r.Figures.MostMemory, role.memory())
	}
}

func (s *system) close() {
	if s.endOperator != nil {
		s.endOperator()
	}
	if s.readers != nil {
		s.readers.Stop()
	}
	if s.askers != nil {
		s.askers.Stop()
	}
	if s.control != nil {
		s.control.Close()
	}
	if s.stopLoad != nil {
		s.stopLoad()
		<-s.loaded
	}
	if s.lossy != nil {
		s.lossy.close()
	}
	for _, r := range s.processes() {
		if p := r.now(); p != nil {
			p.Kill()
		}
	}
	if s.watcher != nil {
		s.watcher.Close()
	}
	if s.broker != nil {
		s.broker.Process().Kill()
	} else if s.topo != nil {
		removeTopics(s.cfg.Kafka.Brokers, s.topo)
	}
	if s.redis != nil {
		s.redis.close()
	}
	if s.postgres != nil {
		_ = s.postgres.Stop()
	}
}
