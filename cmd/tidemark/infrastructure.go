package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"

	"github.com/tidemark/tidemark/internal/embedded"
)

// infrastructure is what the roles run upon: given by URL, or embedded.
type infrastructure struct {
	postgres []string // by shard
	control  string
	brokers  []string
	redis    string

	server *embedded.Postgres // nil when given by URL
	stops  []func() error
}

// startInfrastructure starts each part that is not given.
func startInfrastructure(ctx context.Context, f *devFlags, log *slog.Logger, say func(string, ...any)) (infra *infrastructure, err error) {
	infra = &infrastructure{postgres: f.postgresURLs, control: f.controlURL, brokers: f.brokers, redis: f.redisURL}
	defer func() {
		if err != nil {
			err = errors.Join(err, infra.stop())
		}
	}()
	if f.controlURL == "" {
		say("PostgreSQL")
		if err := infra.startPostgres(ctx, f, log); err != nil {
			return infra, err
		}
	}
	if len(f.brokers) == 0 {
		say("Kafka broker")
		k, err := embedded.StartKafka(embedded.KafkaConfig{DataDir: filepath.Join(f.dataDir, "kafka")})
		if err != nil {
			return infra, err
		}
		infra.stops = append(infra.stops, k.Stop)
		infra.brokers = k.Brokers()
	}
	if f.redisURL == "" {
		say("Redis")
		r, err := embedded.StartRedis(embedded.RedisConfig{DataDir: filepath.Join(f.dataDir, "redis")})
		if err != nil {
			return infra, err
		}
		infra.stops = append(infra.stops, r.Stop)
		infra.redis = "redis://" + r.Addr
	}
	return infra, nil
}

func (i *infrastructure) startPostgres(ctx context.Context, f *devFlags, log *slog.Logger) (err error) {
	i.server, err = embedded.StartPostgres(ctx, embedded.PostgresConfig{DataDir: filepath.Join(f.dataDir, "postgres"), Logger: log})
	if err != nil {
		return err
	}
	i.stops = append(i.stops, i.server.Stop)
	const controlDB = "tidemark_control"
	if err := i.server.CreateDatabase(ctx, controlDB); err != nil {
		return err
	}
	i.control = i.server.URL(controlDB)
	for shard := range f.shards {
		name := fmt.Sprintf("tidemark_shard_%d", shard)
		if err := i.server.CreateDatabase(ctx, name); err != nil {
			return err
		}
		i.postgres = append(i.postgres, i.server.URL(name))
	}
	return nil
}

// watch fails when the embedded PostgreSQL ends by itself.
func (i *infrastructure) watch(ctx context.Context) error {
	if i.server == nil {
		<-ctx.Done()
		return nil
	}
	select {
	case <-ctx.Done():
		return nil
	case <-i.server.Done():
		return errors.New("the embedded PostgreSQL ended by itself: its log is in the data directory, below postgres")
	}
}

// stop ends what was started, last first.
func (i *infrastructure) stop() error {
	var errs []error
	for _, stop := range slices.Backward(i.stops) {
		errs = append(errs, stop())
	}
	i.stops = nil
	return errors.Join(errs...)
}
