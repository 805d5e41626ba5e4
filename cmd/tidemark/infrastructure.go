package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/tidemark/tidemark/internal/embedded"
)

// infrastructure is what the roles run upon: given by URL, or embedded.
type infrastructure struct {
	postgres []string // by shard
	control  string
	brokers  []string
	redis    string

	log    *slog.Logger
	dir    string             // of the embedded PostgreSQL
	server *embedded.Postgres // nil when given by URL
	stops  []func() error
}

// startInfrastructure starts each part that is not given.
func startInfrastructure(ctx context.Context, f *devFlags, log *slog.Logger, at func(step string)) (infra *infrastructure, err error) {
	infra = &infrastructure{
		postgres: f.postgresURLs, control: f.controlURL, brokers: f.brokers, redis: f.redisURL,
		log: log, dir: filepath.Join(f.dataDir, "postgres"),
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, infra.stop())
		}
	}()
	if f.controlURL == "" {
		at("PostgreSQL")
		if err := infra.startPostgres(ctx, f.shards); err != nil {
			return infra, err
		}
	}
	if len(f.brokers) == 0 {
		at("Kafka broker")
		k, err := embedded.StartKafka(embedded.KafkaConfig{DataDir: filepath.Join(f.dataDir, "kafka")})
		if err != nil {
			return infra, err
		}
		infra.stops = append(infra.stops, k.Stop)
		infra.brokers = k.Brokers()
	}
	if f.redisURL == "" {
		at("Redis")
		r, err := embedded.StartRedis(embedded.RedisConfig{DataDir: filepath.Join(f.dataDir, "redis")})
		if err != nil {
			return infra, err
		}
		infra.stops = append(infra.stops, r.Stop)
		infra.redis = "redis://" + r.Addr
	}
	return infra, nil
}

func (i *infrastructure) startPostgres(ctx context.Context, shards int) (err error) {
	i.server, err = embedded.StartPostgres(ctx, embedded.PostgresConfig{DataDir: i.dir, Logger: i.log})
	if err != nil {
		return err
	}
	i.stops = append(i.stops, func() error { return i.server.Stop() })
	const controlDB = "tidemark_control"
	if err := i.server.CreateDatabase(ctx, controlDB); err != nil {
		return err
	}
	i.control = i.server.URL(controlDB)
	for shard := range shards {
		name := fmt.Sprintf("tidemark_shard_%d", shard)
		if err := i.server.CreateDatabase(ctx, name); err != nil {
			return err
		}
		i.postgres = append(i.postgres, i.server.URL(name))
	}
	return nil
}

// watch starts the embedded PostgreSQL again when it ends by itself, until ctx
// ends.
func (i *infrastructure) watch(ctx context.Context) error {
	for i.server != nil {
		select {
		case <-ctx.Done():
			return nil
		case <-i.server.Done():
		}
		if ctx.Err() != nil {
			return nil
		}
		i.log.Warn("the embedded PostgreSQL ended by itself; starting it again", "its_log", filepath.Join(i.dir, "server.log"))
		i.restartPostgres(ctx)
	}
	<-ctx.Done()
	return nil
}

// restartPostgres starts it on the port that everything knows, and tries again
// until it is up or ctx ends.
func (i *infrastructure) restartPostgres(ctx context.Context) {
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = 100*time.Millisecond, 5*time.Second
	port := i.server.Port()
	err := i.server.Stop() // gives its folder free
	for ctx.Err() == nil {
		var server *embedded.Postgres
		if err == nil {
			if server, err = embedded.StartPostgres(ctx, embedded.PostgresConfig{DataDir: i.dir, Port: port, Logger: i.log}); err == nil {
				i.server = server
				return
			}
		}
		if ctx.Err() != nil {
			return
		}
		wait := pause.NextBackOff()
		i.log.Error("the embedded PostgreSQL does not start", "error", err, "pause", wait)
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
		err = nil
	}
}

// stop ends what was started, last first.
func (i *infrastructure) stop() error {
	var errs []error
	for _, stop := range slices.Backward(i.stops) {
		errs = append(errs, stop())
	}
	i.stops = nil
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("stopping the infrastructure: %w", err)
	}
	return nil
}
