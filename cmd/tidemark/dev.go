package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/tidemark/tidemark/api"
	"github.com/tidemark/tidemark/internal/config"
	"github.com/tidemark/tidemark/internal/control"
)

// devFlags are what `tidemark dev` may be told.
type devFlags struct {
	dataDir                      string
	listen, opsListen            string
	shards, partitions           int
	shardsGiven, partitionsGiven bool
	given                        func(flag string) bool
	roles                        string
	traffic                      float64
	postgresURLs                 []string
	controlURL                   string
	brokers                      []string
	redisURL                     string
	logLevel                     string
}

func newDev() *cobra.Command {
	f := new(devFlags)
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run everything on this machine",
		Long: "Run everything on this machine: PostgreSQL (relation shards and control database), a Kafka broker,\n" +
			"Redis, topics, schema, every role, and the API. Data stays in the data directory; a stop or a kill\n" +
			"loses nothing, and the next start goes on. Each URL flag replaces the embedded part. Settings come from\n" +
			"the environment (TIDEMARK_SEAL_INTERVAL=200ms), but for those that are the flags' or the data directory's.\n\n" +
			"When ready it prints the addresses and what to try, and writes them to endpoints.json in the data\n" +
			"directory; tidemark.yaml beside it lets any role run apart (tidemark run).",
		Example: "  tidemark dev\n" +
			"  tidemark dev --traffic 50\n" +
			"  tidemark dev --data-dir /tmp/t --listen 127.0.0.1:0 --ops-listen 127.0.0.1:0\n" +
			"  tidemark dev --roles none    # infrastructure only, for roles that run apart",
		Args: noArgs,
	}
	f.add(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		f.shardsGiven, f.partitionsGiven = f.given("shards"), f.given("partitions")
		roles, err := f.check()
		if err != nil {
			return err
		}
		return dev(cmd.Context(), f, roles, cmd.OutOrStdout(), newScreen(cmd.ErrOrStderr()))
	}
	return cmd
}

func (f *devFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.dataDir, "data-dir", config.DefaultDataDir, "folder `DIR` where all data stays")
	flags.StringVar(&f.listen, "listen", "127.0.0.1:8080", "API `ADDRESS`; port 0: any")
	flags.StringVar(&f.opsListen, "ops-listen", "127.0.0.1:8081", "`ADDRESS` for operators (readiness, metrics); port 0: any")
	flags.IntVar(&f.shards, "shards", 4, "`NUMBER` of relation shards; frozen at the first start")
	flags.IntVar(&f.partitions, "partitions", 8, "`NUMBER` of count partitions; frozen at the first start")
	flags.StringVar(&f.roles, "roles", "all", "`ROLES` to run, with commas; none: infrastructure only")
	flags.Float64Var(&f.traffic, "traffic", 0, "realistic commands a second against itself, `RATE`")
	flags.StringArrayVar(&f.postgresURLs, "postgres-url", nil, "PostgreSQL `URL` of a shard, once per shard")
	flags.StringVar(&f.controlURL, "control-url", "", "PostgreSQL `URL` of the control database")
	flags.StringSliceVar(&f.brokers, "kafka-brokers", nil, "Kafka brokers, `HOST:PORT` with commas")
	flags.StringVar(&f.redisURL, "redis-url", "", "Redis `URL`")
	flags.StringVar(&f.logLevel, "log-level", "warn", "`LEVEL`: debug, info, warn or error")
	f.given = flags.Changed
}

// check finds what is wrong with the flags before anything is started.
func (f *devFlags) check() (roles []string, err error) {
	if (len(f.postgresURLs) > 0) != (f.controlURL != "") {
		return nil, usagef("--postgres-url and --control-url go together: give both or neither")
	}
	if n := len(f.postgresURLs); n > 0 {
		if f.shardsGiven && f.shards != n {
			return nil, usagef("--shards is %d, but there are %d --postgres-url: give one per shard", f.shards, n)
		}
		f.shards, f.shardsGiven = n, true
	}
	switch f.roles {
	case "all":
		roles = roleNames
	case "none":
	default:
		roles = strings.Split(f.roles, ",")
	}
	if err := checkRoles(roles); err != nil {
		return nil, err
	}
	if f.traffic < 0 || f.traffic > 1e6 {
		return nil, usagef("--traffic %v is not in 0..1000000", f.traffic)
	}
	if f.traffic > 0 && !(contains(roles, "commands") && contains(roles, "queries")) {
		return nil, usagef("--traffic needs the roles commands and queries here: add them to --roles")
	}
	cfg, err := f.config()
	if err == nil {
		err = cfg.Validate()
	}
	if err != nil {
		return nil, usageError{err}
	}
	f.listen, f.opsListen = cfg.API.Listen, cfg.Ops.Listen
	return roles, nil
}

// devOwns says why a setting cannot come from the environment, empty where it
// can.
func devOwns(path string) string {
	section, _, _ := strings.Cut(path, ".")
	switch section {
	case "shards":
		return "give `tidemark dev` --shards"
	case "count_partitions":
		return "give `tidemark dev` --partitions"
	case "postgres", "control":
		return "`tidemark dev` runs its own PostgreSQL: unset it, or give --postgres-url and --control-url"
	case "kafka":
		return "`tidemark dev` runs its own broker: unset it, or give --kafka-brokers"
	case "redis", "redis_tls", "redis_auth":
		return "`tidemark dev` runs its own Redis: unset it, or give --redis-url"
	case "auth", "state_dir", "instance":
		return "`tidemark dev` keeps that in its data directory: unset it, or use `tidemark run`"
	}
	switch path {
	case "api.page_token_key_files", "exports.dir":
		return "`tidemark dev` keeps that in its data directory: unset it, or use `tidemark run`"
	}
	return ""
}

// config is what dev wants, then what the environment says, then the flags that
// were given; the embedded parts' addresses are missing.
func (f *devFlags) config() (config.Config, error) {
	cfg := config.Default()
	cfg.Shards, cfg.CountPartitions = f.shards, f.partitions
	cfg.Postgres, cfg.Control = f.postgresURLs, f.controlURL
	cfg.Kafka.Brokers, cfg.Redis = f.brokers, f.redisURL
	cfg.API.Listen, cfg.Ops.Listen, cfg.Log.Level = f.listen, f.opsListen, f.logLevel
	cfg.Instance = "dev"
	cfg.RefreshInterval = 20 * time.Millisecond
	cfg.Limits.Enabled = false // all traffic of one machine is of one address
	cfg, err := cfg.WithEnvironment(devOwns)
	for flag, value := range map[string][2]*string{
		"listen": {&cfg.API.Listen, &f.listen}, "ops-listen": {&cfg.Ops.Listen, &f.opsListen}, "log-level": {&cfg.Log.Level, &f.logLevel},
	} {
		if f.given(flag) {
			*value[0] = *value[1]
		}
	}
	return cfg, err
}

// dev starts the infrastructure, then the roles upon it, and stops in reverse.
func dev(ctx context.Context, f *devFlags, roles []string, out io.Writer, scr *screen) error {
	dir, err := openDataDir(f.dataDir)
	if err != nil {
		return err
	}
	defer dir.release()
	if err := dir.settle(f); err != nil {
		return err
	}
	if err := checkPorts(f, roles); err != nil {
		return err
	}
	if err := dir.forget(); err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { scr.say("stopping") })()
	cfg, err := f.config()
	if err != nil {
		return err
	}
	log := cfg.Log.New(scr)
	d := &devRun{flags: f, dir: dir, roles: roles, out: out, log: log, steps: &steps{say: scr.say, all: dir.fresh}}
	return d.run(ctx)
}

// checkPorts finds an address in use before anything is started.
func checkPorts(f *devFlags, roles []string) error {
	try := func(flag, address, what string) error {
		l, err := net.Listen("tcp", address)
		if err != nil {
			return fmt.Errorf("listening for %s: %w: choose another address with --%s (port 0 takes any)", what, err, flag)
		}
		return l.Close()
	}
	err := try("ops-listen", f.opsListen, "operators")
	if contains(roles, "commands") || contains(roles, "queries") {
		err = errors.Join(err, try("listen", f.listen, "the API"))
	}
	return err
}

// devRun is one run of `tidemark dev`.
type devRun struct {
	flags *devFlags
	dir   *dataDir
	roles []string
	out   io.Writer
	log   *slog.Logger
	steps *steps
}

func (d *devRun) run(ctx context.Context) (err error) {
	defer d.steps.end()
	infra, err := startInfrastructure(ctx, d.flags, d.log, d.steps.at)
	if ctx.Err() != nil && err != nil {
		return nil // asked to stop before it was up
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, infra.stop()) }()
	cfg, err := d.config(infra)
	if err != nil {
		return err
	}
	p, err := newProcess(cfg, d.log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.dir.forget()) }()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return infra.watch(ctx) })
	g.Go(func() error {
		return p.run(ctx, d.roles, func(ctx context.Context) error { return d.prepare(ctx, cfg) })
	})
	g.Go(func() error {
		select {
		case <-ctx.Done():
			return nil
		case <-p.ready:
		}
		d.steps.end()
		if err := d.dir.writeEndpoints(cfg, p.apiAddr, p.opsAddr); err != nil {
			return err
		}
		if err := d.welcome(cfg, p); err != nil {
			return err
		}
		return selfTraffic(ctx, d.flags.traffic, cfg, p, d.log)
	})
	return g.Wait()
}

// config is the configuration of the roles; the same, written to
// tidemark.yaml, lets any role run apart.
func (d *devRun) config(infra *infrastructure) (config.Config, error) {
	cfg, err := d.flags.config()
	if err != nil {
		return cfg, err
	}
	cfg.Postgres, cfg.Control = infra.postgres, infra.control
	cfg.Kafka.Brokers, cfg.Redis = infra.brokers, infra.redis
	if cfg.StateDir, err = filepath.Abs(d.dir.file("state")); err != nil {
		return cfg, err
	}
	if cfg.Auth.HS256KeyFile, err = filepath.Abs(d.dir.file("dev.key")); err != nil {
		return cfg, err
	}
	pageKey, err := filepath.Abs(d.dir.file("page-tokens.key"))
	if err != nil {
		return cfg, err
	}
	cfg.API.PageTokenKeyFiles = []string{pageKey}
	if cfg.Exports.Dir, err = filepath.Abs(d.dir.file("exports")); err != nil {
		return cfg, err
	}
	for _, file := range []string{cfg.Auth.HS256KeyFile, pageKey} {
		if _, err := api.LoadOrCreateKey(file); err != nil {
			return cfg, err
		}
	}
	return cfg, cfg.Validate()
}

// prepare brings the schema and the topics to what this code needs. Only then
// the configuration is written: what was refused must not stand in it.
func (d *devRun) prepare(ctx context.Context, cfg config.Config) error {
	if err := migrate(ctx, cfg, func(step string) { d.steps.at("schema: " + step) }); err != nil {
		return err
	}
	if d.flags.redisURL == "" {
		if err := endCaches(ctx, cfg); err != nil {
			return err
		}
	}
	d.steps.at("topics")
	if err := createTopics(ctx, cfg); err != nil {
		return err
	}
	if len(d.roles) > 0 {
		d.steps.at("roles: " + strings.Join(d.roles, ", "))
	}
	return d.dir.writeConfig(cfg)
}

// endCaches ends the cache generations of a Redis that has just started empty:
// a loss that each start brings is not worth a warning.
func endCaches(ctx context.Context, cfg config.Config) error {
	db, err := control.Open(ctx, cfg.Control)
	if err != nil {
		return err
	}
	defer db.Close()
	for _, family := range cachedFamilies {
		all, e := db.CacheGenerations(ctx, family, 0)
		err = errors.Join(err, e)
		for _, g := range all {
			_, e := db.FailCache(ctx, g.Generation, "tidemark dev", "the embedded Redis starts empty")
			err = errors.Join(err, e)
		}
	}
	return err
}

// readyLine is what a program that started this one waits for on its stdout.
const readyLine = "tidemark is ready."

// welcome prints the addresses and what to try first.
func (d *devRun) welcome(cfg config.Config, p *process) error {
	at := ""
	if d.dir.path != config.DefaultDataDir {
		at = " --data-dir " + d.dir.path
	}
	fmt.Fprintf(d.out, "\n%s\n\n", readyLine)
	p.addresses(d.out)
	fmt.Fprintf(d.out, "  Kafka      %s\n", strings.Join(cfg.Kafka.Brokers, ","))
	fmt.Fprintf(d.out, "  all        %s\n", d.dir.file(config.EndpointsFile))
	if p.apiAddr == "" {
		return nil
	}
	_, err := fmt.Fprintf(d.out, `
Try:

  TOKEN=$(./tidemark token%[2]s --user u7)

  curl -X PUT http://%[1]s/v1/videos/V9001/like-relation -H "Authorization: Bearer $TOKEN" -H 'Idempotency-Key: op-101' -H 'Content-Type: application/json' -d '{"desiredState":"LIKED"}'

  curl -X POST http://%[1]s/v1/like-relations/batch-query -H "Authorization: Bearer $TOKEN" -H 'Content-Type: application/json' -d '{"videoIds":["V9001","V9002"]}'

  curl http://%[1]s/v1/targets/like/V9001/count -H "Authorization: Bearer $TOKEN"

  curl http://%[1]s/v1/videos/V9001/likers -H "Authorization: Bearer $TOKEN"

`, p.apiAddr, at)
	return err
}
