package embedded

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

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

// Redis is a Redis server inside this process. Keys expire by the clock, up to
// expireInterval late.
type Redis struct {
	// Addr is host:port.
	Addr string

	dir     *dataDir // nil: nothing remembered
	server  *miniredis.Miniredis
	clock   chan struct{} // closed to end the clock
	clocks  sync.WaitGroup
	stop    sync.Once
	stopErr error
}

// StartRedis starts an empty server.
func StartRedis(cfg RedisConfig) (*Redis, error) {
	r := &Redis{server: miniredis.NewMiniRedis(), clock: make(chan struct{})}
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
	r.clocks.Go(r.expire)
	r.Addr = r.server.Addr()
	if r.dir == nil {
		return nil
	}
	return r.dir.keepPort(port)
}

// expireInterval is the time between two looks at what has expired. ClockTTL would
// look at every key of the server at every command of every script.
const expireInterval = time.Second

// expire has keys expire until the server stops.
func (r *Redis) expire() {
	tick := time.NewTicker(expireInterval)
	defer tick.Stop()
	for last := time.Now(); ; {
		select {
		case <-r.clock:
			return
		case now := <-tick.C:
			r.server.FastForward(now.Sub(last))
			last = now
		}
	}
}

// Stop ends the server; a second call returns the first one's result.
func (r *Redis) Stop() error {
	r.stop.Do(func() {
		close(r.clock)
		r.clocks.Wait()
		r.server.Close()
		if r.dir != nil {
			r.stopErr = r.dir.Close()
		}
	})
	return r.stopErr
}
