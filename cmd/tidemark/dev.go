package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/tidemark/tidemark/api"
	"github.com/tidemark/tidemark/internal/config"
	"github.com/tidemark/tidemark/internal/kafkaadmin"
)

// devFlags are what `tidemark dev` may be told.
type devFlags struct {
	dataDir           string
	listen, opsListen string
	shards            int
	partitions        int
	roles             string
	traffic           float64
	postgresURLs      []string
	controlURL        string
	brokers           []string
	redisURL          string
	logLevel          string
}

func newDev() *cobra.Command {
	f := new(devFlags)
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run everything on this machine",
		Long: "Run everything on this machine: PostgreSQL (relation shards and control database), a Kafka broker,\n" +
			"Redis, topics, schema, every role, and the API. Data stays in the data directory; a stop or a kill\n" +
			"loses nothing, and the next start goes on. Each URL flag replaces the embedded part.",
		Args: args(cobra.NoArgs),
	}
	flags := cmd.Flags()
	flags.StringVar(&f.dataDir, "data-dir", config.DefaultDataDir, "where all data stays")
	flags.StringVar(&f.listen, "listen", "127.0.0.1:8080", "API address")
	flags.StringVar(&f.opsListen, "ops-listen", "127.0.0.1:8081", "address for operators: readiness, metrics")
	flags.IntVar(&f.shards, "shards", 4, "relation shards; frozen in the data directory")
	flags.IntVar(&f.partitions, "partitions", 8, "count partitions; frozen in the data directory")
	flags.StringVar(&f.roles, "roles", "all", "roles to run, with commas; none: infrastructure only")
	flags.Float64Var(&f.traffic, "traffic", 0, "realistic commands a second against itself")
	flags.StringArrayVar(&f.postgresURLs, "postgres-url", nil, "PostgreSQL of a shard, once per shard")
	flags.StringVar(&f.controlURL, "control-url", "", "PostgreSQL of the control database")
	flags.StringSliceVar(&f.brokers, "kafka-brokers", nil, "Kafka brokers")
	flags.StringVar(&f.redisURL, "redis-url", "", "Redis")
	flags.StringVar(&f.logLevel, "log-level", "warn", "debug, info, warn or error")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		roles, err := f.check()
		if err != nil {
			return err
		}
		return dev(cmd.Context(), f, roles, cmd.OutOrStdout(), cmd.ErrOrStderr())
	}
	return cmd
}

func (f *devFlags) check() ([]string, error) {
	if n := len(f.postgresURLs); n > 0 {
		f.shards = n
	}
	if (len(f.postgresURLs) > 0) != (f.controlURL != "") {
		return nil, usagef("--postgres-url and --control-url go together: give both or neither")
	}
	switch f.roles {
	case "all":
		return roleNames, nil
	case "none":
		return nil, nil
	}
	roles := strings.Split(f.roles, ",")
	return roles, checkRoles(roles)
}

// dev starts the infrastructure, then the roles upon it, and stops in reverse.
func dev(ctx context.Context, f *devFlags, roles []string, out, progress io.Writer) error {
	if err := os.MkdirAll(f.dataDir, 0o755); err != nil {
		return fmt.Errorf("making the data directory: %w", err)
	}
	log := config.Log{Level: f.logLevel, Format: "text"}.New(progress)
	say := func(format string, a ...any) { fmt.Fprintf(progress, format+"\n", a...) }
	infra, err := startInfrastructure(ctx, f, log, say)
	if err != nil {
		return err
	}
	defer func() {
		say("stopping")
		if err := infra.stop(); err != nil {
			log.Error("stopping the infrastructure", "error", err)
		}
	}()
	cfg, err := devConfig(f, infra)
	if err != nil {
		return err
	}
	if err := writeFiles(f, cfg, infra, "", ""); err != nil {
		return err
	}
	if err := prepare(ctx, cfg, say); err != nil {
		return err
	}
	return devRun(ctx, f, cfg, infra, roles, log, out)
}

// prepare brings the schema and the topics to what this code needs.
func prepare(ctx context.Context, cfg config.Config, say func(string, ...any)) error {
	if err := migrate(ctx, cfg, func(step string) { say("schema: %s", step) }); err != nil {
		return err
	}
	say("topics")
	topo, err := cfg.Topology()
	if err != nil {
		return err
	}
	client, err := kafkaClient(cfg)
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, adminLimit)
	defer cancel()
	return kafkaadmin.Create(ctx, client, topo)
}

// devConfig is the configuration of the roles; the same, written to
// tidemark.yaml, lets any role run apart.
func devConfig(f *devFlags, infra *infrastructure) (config.Config, error) {
	cfg := config.Default()
	cfg.Shards, cfg.CountPartitions = f.shards, f.partitions
	cfg.Postgres, cfg.Control = infra.postgres, infra.control
	cfg.Kafka.Brokers, cfg.Redis = infra.brokers, infra.redis
	cfg.API.Listen, cfg.Ops.Listen = f.listen, f.opsListen
	cfg.Instance = "dev"
	cfg.RefreshInterval = 20 * time.Millisecond
	cfg.Log.Level = f.logLevel
	var err error
	if cfg.StateDir, err = filepath.Abs(filepath.Join(f.dataDir, "state")); err != nil {
		return cfg, err
	}
	if cfg.Auth.HS256KeyFile, err = filepath.Abs(filepath.Join(f.dataDir, "dev.key")); err != nil {
		return cfg, err
	}
	if _, err := api.LoadOrCreateKey(cfg.Auth.HS256KeyFile); err != nil {
		return cfg, err
	}
	return cfg, cfg.Validate()
}

// writeFiles writes endpoints.json and tidemark.yaml. Processes that run apart
// take any free port for operators.
func writeFiles(f *devFlags, cfg config.Config, infra *infrastructure, apiAddr, opsAddr string) error {
	apart := cfg
	apart.Instance = "1"
	apart.Ops.Listen = "127.0.0.1:0"
	if err := apart.Write(filepath.Join(f.dataDir, config.FileName)); err != nil {
		return err
	}
	e := config.Endpoints{
		API: "http://" + cfg.API.Listen, Kafka: strings.Join(infra.brokers, ","), Postgres: infra.postgres,
		Control: infra.control, Redis: infra.redis, Metrics: "http://" + cfg.Ops.Listen + "/metrics",
	}
	if apiAddr != "" {
		e.API = "http://" + apiAddr
	}
	if opsAddr != "" {
		e.Metrics = "http://" + opsAddr + "/metrics"
	}
	return e.Write(f.dataDir)
}

func devRun(ctx context.Context, f *devFlags, cfg config.Config, infra *infrastructure, roles []string, log *slog.Logger, out io.Writer) error {
	p, err := newProcess(cfg, log)
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		err := p.run(ctx, roles)
		if err == nil && ctx.Err() == nil {
			err = errors.New("the roles stopped by themselves")
		}
		return err
	})
	g.Go(func() error { return infra.watch(ctx) })
	g.Go(func() error {
		select {
		case <-ctx.Done():
			return nil
		case <-p.ready:
		}
		if err := writeFiles(f, cfg, infra, p.apiAddr, p.opsAddr); err != nil {
			return err
		}
		if err := welcome(out, f, cfg, p); err != nil {
			return err
		}
		return selfTraffic(ctx, f, cfg, p, log)
	})
	return g.Wait()
}

// readyLine is what a program that started dev waits for on its stdout.
const readyLine = "tidemark is ready."

// welcome prints the addresses and what to try first.
func welcome(out io.Writer, f *devFlags, cfg config.Config, p *process) error {
	at := ""
	if f.dataDir != config.DefaultDataDir {
		at = " --data-dir " + f.dataDir
	}
	fmt.Fprintf(out, "\n%s\n\n", readyLine)
	if p.apiAddr != "" {
		fmt.Fprintf(out, "  API        http://%s   (OpenAPI: /openapi.json)\n", p.apiAddr)
	}
	fmt.Fprintf(out, "  operators  http://%s/readyz?verbose  /metrics\n", p.opsAddr)
	fmt.Fprintf(out, "  Kafka      %s\n", strings.Join(cfg.Kafka.Brokers, ","))
	fmt.Fprintf(out, "  all        %s\n", filepath.Join(f.dataDir, config.EndpointsFile))
	if p.apiAddr == "" {
		return nil
	}
	_, err := fmt.Fprintf(out, `
Try:

  TOKEN=$(./tidemark token%[2]s --user u7)

  curl -X PUT http://%[1]s/v1/videos/V9001/like-relation -H "Authorization: Bearer $TOKEN" -H 'Idempotency-Key: op-101' -H 'Content-Type: application/json' -d '{"desiredState":"LIKED"}'

  curl -X POST http://%[1]s/v1/like-relations/batch-query -H "Authorization: Bearer $TOKEN" -H 'Content-Type: application/json' -d '{"videoIds":["V9001","V9002"]}'

  curl http://%[1]s/v1/targets/like/V9001/count -H "Authorization: Bearer $TOKEN"

`, p.apiAddr, at)
	return err
}
