package drills

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tidemark/tidemark/internal/control"
	"github.com/tidemark/tidemark/internal/embedded"
)

// failover has a standby that a commit waits for take over from a primary that
// crashes. Everything that a client was told of is there; the slots are not.
func failover(ctx context.Context, s *system, rnd *rand.Rand) error {
	return s.failOver(ctx, func(primary, _ *pgx.Conn) error {
		if _, err := primary.Exec(ctx, "ALTER SYSTEM SET synchronous_standby_names = '*'"); err != nil {
			return err
		}
		if _, err := primary.Exec(ctx, "SELECT pg_reload_conf()"); err != nil {
			return err
		}
		if err := holds(ctx, s.patience, primary, "SELECT count(*) = 1 FROM pg_stat_replication WHERE sync_state = 'sync'"); err != nil {
			return fmt.Errorf("making the standby synchronous: %w", err)
		}
		return sleep(ctx, between(rnd, 500*time.Millisecond, 2*time.Second))
	})
}

// failoverBehind has a standby take over that has not heard of the newest
// commits: facts that clients were told of, and that are counted, are gone.
func failoverBehind(ctx context.Context, s *system, rnd *rand.Rand) error {
	return s.failOver(ctx, func(_, standby *pgx.Conn) error {
		if _, err := standby.Exec(ctx, "ALTER SYSTEM SET primary_conninfo = ''"); err != nil {
			return err
		}
		if _, err := standby.Exec(ctx, "SELECT pg_reload_conf()"); err != nil {
			return err
		}
		if err := holds(ctx, s.patience, standby, "SELECT count(*) = 0 FROM pg_stat_wal_receiver"); err != nil {
			return fmt.Errorf("cutting the standby off: %w", err)
		}
		return sleep(ctx, between(rnd, 500*time.Millisecond, 3*time.Second))
	})
}

// holds waits until a question's answer is true.
func holds(ctx context.Context, patience time.Duration, conn *pgx.Conn, question string) error {
	return await(ctx, patience, question, func() error {
		var yes bool
		err := conn.QueryRow(ctx, question).Scan(&yes)
		if err == nil && !yes {
			err = errors.New("it is not so")
		}
		return err
	})
}

// failOver makes a standby, lets it and the primary come to where the drill
// wants them, crashes the primary, and has the standby take its place on its
// address, as a virtual address or a proxy would. All shards move, and the
// control database with them.
func (s *system) failOver(ctx context.Context, before func(primary, standby *pgx.Conn) error) error {
	var faults []*feedFault
	for shard := range systemShards {
		f, err := s.faultOf(ctx, shard, control.CauseSlotRecreated, control.CausePositionJumped, control.CauseSourceWentBack)
		if err != nil {
			return err
		}
		f.mustHit = false // a quick operator, or an idle shard, may lose nothing
		faults = append(faults, f)
	}
	if err := s.takeOver(ctx, before); err != nil {
		return err
	}
	for _, f := range faults {
		if err := f.slotAnew(ctx); err != nil {
			return err
		}
	}
	for _, f := range faults {
		if err := f.isNamed(ctx); err != nil {
			return err
		}
	}
	return s.heal(ctx)
}

func (s *system) takeOver(ctx context.Context, before func(primary, standby *pgx.Conn) error) error {
	s.mu.Lock()
	old := s.postgres
	s.mu.Unlock()
	cfg := embedded.PostgresConfig{DataDir: filepath.Join(s.dir, fmt.Sprintf("postgres-%d", time.Now().UnixNano())), Settings: postgresSettings(), Logger: s.log}
	standby, err := old.StartStandby(ctx, cfg)
	if errors.Is(err, embedded.ErrNoBackupProgram) {
		return missingError{err}
	}
	if err != nil {
		return err
	}
	if err := errors.Join(s.prepare(ctx, old, standby, before), old.Crash(), standby.Stop()); err != nil {
		return err
	}
	s.tallies.killed()
	cfg.Port, cfg.Settings["primary_conninfo"] = old.Port(), ""
	next, err := embedded.StartPostgres(ctx, cfg)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.postgres, s.data = next, cfg.DataDir
	s.mu.Unlock()
	return next.Promote(ctx)
}

func (s *system) prepare(ctx context.Context, primary, standby *embedded.Postgres, before func(primary, standby *pgx.Conn) error) error {
	p, err := pgx.Connect(ctx, primary.URL(controlDatabase))
	if err != nil {
		return err
	}
	defer func() { _ = p.Close(context.WithoutCancel(ctx)) }()
	b, err := pgx.Connect(ctx, standby.URL(controlDatabase))
	if err != nil {
		return err
	}
	defer func() { _ = b.Close(context.WithoutCancel(ctx)) }()
	return before(p, b)
}
