package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/tidemark/tidemark/internal/config"
)

// dataDir is the data directory of `tidemark dev`, held by this process.
type dataDir struct {
	path    string // as given
	fresh   bool   // never started before
	release func()
}

// devLock is the file in a data directory that its `tidemark dev` has locked.
const devLock = "dev.lock"

func openDataDir(path string) (*dataDir, error) {
	if path == "" {
		return nil, usagef("--data-dir is empty: name a folder")
	}
	if err := os.MkdirAll(path, 0o755); err != nil {
		return nil, fmt.Errorf("making the data directory: %w: choose another with --data-dir", err)
	}
	release, err := lockFile(filepath.Join(path, devLock))
	if held := (heldError{}); errors.As(err, &held) {
		return nil, fmt.Errorf("data directory %s is in use by another `tidemark dev` (%s): stop that one, or choose another directory with --data-dir and other ports with --listen and --ops-listen", path, held.holder())
	}
	if err != nil {
		return nil, fmt.Errorf("data directory %s: %w: choose another with --data-dir", path, err)
	}
	d := &dataDir{path: path, release: release}
	_, err = os.Stat(d.file(config.FileName))
	d.fresh = errors.Is(err, fs.ErrNotExist)
	return d, nil
}

func (d *dataDir) file(name string) string { return filepath.Join(d.path, name) }

// settle takes the numbers that the directory was made with where no flag
// gives another, and refuses a flag that does.
func (d *dataDir) settle(f *devFlags) error {
	if d.fresh {
		return nil
	}
	stored, err := config.Load(d.file(config.FileName))
	if err != nil {
		return fmt.Errorf("reading what data directory %s was made with: %w", d.path, err)
	}
	var errs []error
	frozen := func(flag string, given bool, value *int, stored int) {
		if given && *value != stored {
			errs = append(errs, fmt.Errorf("data directory %s was made with --%s %d, not %d: leave the flag out, or choose another directory with --data-dir", d.path, flag, stored, *value))
		}
		*value = stored
	}
	frozen("shards", f.shardsGiven, &f.shards, stored.Shards)
	frozen("partitions", f.partitionsGiven, &f.partitions, stored.CountPartitions)
	return errors.Join(errs...)
}

// forget removes the addresses of an earlier run: whoever waits for the file
// must not read them.
func (d *dataDir) forget() error {
	if err := os.Remove(d.file(config.EndpointsFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing the addresses of the last run: %w", err)
	}
	return nil
}

// writeConfig writes tidemark.yaml. Processes that run apart take any free
// port for operators.
func (d *dataDir) writeConfig(cfg config.Config) error {
	cfg.Instance = "1"
	cfg.Ops.Listen = "127.0.0.1:0"
	return cfg.Write(d.file(config.FileName))
}

// writeEndpoints writes endpoints.json. Without an API of its own, api is
// where one that runs apart will listen, if the configuration says that.
func (d *dataDir) writeEndpoints(cfg config.Config, apiAddr, opsAddr string) error {
	if apiAddr == "" && !strings.HasSuffix(cfg.API.Listen, ":0") {
		apiAddr = cfg.API.Listen
	}
	e := config.Endpoints{
		Kafka: strings.Join(cfg.Kafka.Brokers, ","), Postgres: cfg.Postgres, Control: cfg.Control,
		Redis: cfg.Redis, Metrics: cfg.Ops.URL(opsAddr) + "/metrics",
	}
	if apiAddr != "" {
		e.API = cfg.API.URL(apiAddr)
	}
	return e.Write(d.path)
}
