package embedded

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"

	"github.com/alicebob/miniredis/v2"
)

// RedisConfig says how to start a Redis server.
type RedisConfig struct {
	// DataDir remembers the port between starts; empty: not remembered. No
	// data is kept: Redis is a cache, and its loss must never matter (I8).
	DataDir string
	// Port to listen on; 0 takes the last start's, or any free one.
	Port int
}

// Redis is a Redis server inside this process. Keys expire by the clock.
type Redis struct {
	// Addr is host:port.
	Addr string

	dir     *dataDir // nil: nothing remembered
	server  *miniredis.Miniredis
	stop    sync.Once
	stopErr error
}

// StartRedis starts an empty server.
func StartRedis(cfg RedisConfig) (*Redis, error) {
	r := &Redis{server: miniredis.NewMiniRedis()}
	port := cfg.Port
	if cfg.DataDir != "" {
		dir, err := openDataDir(cfg.DataDir)
		if err != nil {
			return nil, fmt.Errorf("starting Redis: %w", err)
		}
		r.dir = dir
		if port, err = dir.port(cfg.Port); err != nil {
			return nil, errors.Join(fmt.Errorf("starting Redis: %w", err), dir.Close())
		}
	}
	if err := r.start(port); err != nil {
		return nil, errors.Join(fmt.Errorf("starting Redis: %w", err), r.Stop())
	}
	return r, nil
}

func (r *Redis) start(port int) error {
	if err := r.server.StartAddr(net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err != nil {
		return err
	}
	r.server.ClockTTL(true)
	r.Addr = r.server.Addr()
	if r.dir == nil {
		return nil
	}
	return r.dir.keepPort(port)
}

// Stop ends the server; a second call returns the first one's result.
func (r *Redis) Stop() error {
	r.stop.Do(func() {
		r.server.Close()
		if r.dir != nil {
			r.stopErr = r.dir.Close()
		}
	})
	return r.stopErr
}
