package privacy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tidemark/tidemark/internal/pause"
	"github.com/tidemark/tidemark/internal/tlsfiles"
)

const (
	channel    = "tidemark_privacy"
	beatEvery  = time.Second
	beatLimit  = 3 * time.Second // a beat that takes longer has lost its listener
	listenWait = 500 * time.Millisecond
)

// Run hears of changes until ctx ends; it returns nil then. While it does not
// hear, every question goes to the database.
func (s *Snapshot) Run(ctx context.Context) error {
	for {
		err := s.listen(ctx)
		s.memory.deaf()
		if ctx.Err() != nil {
			return nil
		}
		s.mu.Lock()
		s.why = err
		s.mu.Unlock()
		s.log.Warn("changes of accounts, videos and blocks are not heard of: every command asks the database until they are", "error", err)
		if !pause.For(ctx, listenWait) {
			return nil
		}
	}
}

// Ready is always nil: without a listener answers are as right, and slower.
func (s *Snapshot) Ready() error { return nil }

// Detail says in readiness why changes are not heard of.
func (s *Snapshot) Detail() string {
	if time.Now().UnixNano() < s.memory.provenUntil.Load() {
		return ""
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.why == nil {
		return "begins to listen for changes"
	}
	return "does not hear of changes, so every question goes to the database: " + s.why.Error()
}

// listen hears of changes until the connection fails or a beat is lost, as behind
// a pooler that hands sessions around.
func (s *Snapshot) listen(ctx context.Context) error {
	config := s.store.pool.Config().ConnConfig
	if err := tlsfiles.RenewPostgres(ctx, config); err != nil {
		return err
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return fmt.Errorf("connecting: %w", err)
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(closing)
	}()
	if _, err := conn.Exec(ctx, "LISTEN "+channel); err != nil {
		return fmt.Errorf("listening: %w", err)
	}
	none, err := emptySorts(ctx, conn)
	if err != nil {
		return err
	}
	s.memory.listen(none)
	id := uuid.NewString()
	for ctx.Err() == nil {
		sent := time.Now()
		limited, cancel := context.WithTimeout(ctx, beatLimit)
		// The beat comes from another connection: only then its way back is that of
		// the changes.
		_, err := s.store.pool.Exec(limited, "SELECT pg_notify($1, json_build_array('beat', $2::text)::text)", channel, id)
		if err == nil {
			err = s.hear(limited, conn, func(c change) bool { return c.beat == id })
		}
		cancel()
		if err != nil {
			return fmt.Errorf("waiting for its own notification: %w", err)
		}
		s.memory.proven(sent)
		limited, cancel = context.WithDeadline(ctx, sent.Add(beatEvery))
		err = s.hear(limited, conn, func(change) bool { return false })
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
	}
	return ctx.Err()
}

// hear forgets what changes until one that is awaited.
func (s *Snapshot) hear(ctx context.Context, conn *pgx.Conn, awaited func(change) bool) error {
	for {
		n, err := conn.WaitForNotification(ctx)
		if err != nil {
			return err
		}
		c, err := parseChange(n.Payload)
		if err != nil {
			return err // what changed is not known: all that is remembered may be old
		}
		if c.beat == "" {
			s.memory.forget(c.key)
		}
		if awaited(c) {
			return nil
		}
	}
}

// change is what a notification tells: a key, or a beat.
type change struct {
	key  subjectKey
	beat string
}

// parseChange reads a payload: ["account",id], ["video",id], ["block",id,id] or
// ["beat",listener].
func parseChange(payload string) (change, error) {
	var parts []string
	if err := json.Unmarshal([]byte(payload), &parts); err != nil {
		return change{}, fmt.Errorf("reading a notification: %w", err)
	}
	if len(parts) > 0 {
		switch name, ids := parts[0], parts[1:]; {
		case name == "account" && len(ids) == 1:
			return change{key: accountKey(ids[0])}, nil
		case name == "video" && len(ids) == 1:
			return change{key: videoKey(ids[0])}, nil
		case name == "block" && len(ids) == 2:
			return change{key: pairKey(ids[0], ids[1])}, nil
		case name == "beat" && len(ids) == 1 && ids[0] != "":
			return change{beat: ids[0]}, nil
		}
	}
	return change{}, errors.New("reading a notification: it is none of account, video, block, beat: it comes from a newer version")
}

// emptySorts tells of which sorts no event spoke at all.
func emptySorts(ctx context.Context, conn *pgx.Conn) (none [sorts]bool, err error) {
	err = conn.QueryRow(ctx, `
		SELECT NOT EXISTS (SELECT FROM privacy_account), NOT EXISTS (SELECT FROM privacy_video), NOT EXISTS (SELECT FROM privacy_block)`).
		Scan(&none[ofAccount], &none[ofVideo], &none[ofPair])
	if err != nil {
		return none, fmt.Errorf("asking whether there are any events: %w", err)
	}
	return none, nil
}
