package embedded

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
)

// KafkaConfig says how to start a broker.
type KafkaConfig struct {
	// DataDir holds topics, offsets and group state; empty keeps them in
	// memory.
	DataDir string
	// Port to listen on; 0 takes the last start's, or any free one.
	Port int
	// Listen makes the broker's listener; nil is net.Listen. Drills put theirs
	// here, which breaks connections on demand.
	Listen func(network, address string) (net.Listener, error)
	// Logger; nil discards.
	Logger *slog.Logger
}

// Kafka is a broker inside this process. It creates topics only when asked.
type Kafka struct {
	dir     *dataDir // nil: in memory
	cluster *kfake.Cluster
	port    int
	stop    sync.Once
	stopErr error
}

// StartKafka starts a broker with the topics that cfg.DataDir holds.
//
// Writes go to the operating system's page cache: they survive a kill of
// this process, not a power cut.
func StartKafka(cfg KafkaConfig) (*Kafka, error) {
	k := &Kafka{port: cfg.Port}
	opts := []kfake.Opt{
		kfake.ClusterID("tidemark-embedded"),
		kfake.GroupMinSessionTimeout(500 * time.Millisecond),
		kfake.BrokerConfigs(map[string]string{"default.replication.factor": "1"}),
	}
	if cfg.Listen != nil {
		opts = append(opts, kfake.ListenFn(cfg.Listen))
	}
	if cfg.Logger != nil {
		opts = append(opts, kfake.WithLogger(kafkaLog{cfg.Logger}))
	}
	if cfg.DataDir != "" {
		dir, err := openDataDir(cfg.DataDir)
		if err != nil {
			return nil, fmt.Errorf("starting Kafka: %w", err)
		}
		if k.port, err = dir.port(cfg.Port); err != nil {
			return nil, errors.Join(fmt.Errorf("starting Kafka: %w", err), dir.Close())
		}
		k.dir = dir
		if err := forgetMembers(dir.file("data")); err != nil {
			return nil, errors.Join(fmt.Errorf("starting Kafka: %w", err), dir.Close())
		}
		opts = append(opts, kfake.DataDir(dir.file("data")))
	}
	if err := k.start(opts); err != nil {
		if k.dir != nil {
			err = errors.Join(err, k.dir.Close())
		}
		return nil, fmt.Errorf("starting Kafka: %w", err)
	}
	return k, nil
}

// forgetMembers forgets who was in which consumer group when the broker was
// stopped: it would have them back, but without what they told of themselves
// (their subscription, and where they answer). So they join anew, as after a
// kill of the broker. Offsets stay.
func forgetMembers(data string) error {
	err := os.Remove(filepath.Join(data, "session_state.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func (k *Kafka) start(opts []kfake.Opt) (err error) {
	if k.port == 0 {
		opts = append(opts, kfake.NumBrokers(1))
	} else {
		opts = append(opts, kfake.Ports(k.port))
	}
	if k.cluster, err = kfake.NewCluster(opts...); err != nil {
		return err
	}
	if k.dir == nil {
		return nil
	}
	if err := k.dir.keepPort(k.port); err != nil {
		k.cluster.Close()
		return err
	}
	return nil
}

// Brokers is the bootstrap list.
func (k *Kafka) Brokers() []string {
	if k.port != 0 {
		return []string{"127.0.0.1:" + strconv.Itoa(k.port)}
	}
	return k.cluster.ListenAddrs()
}

// Cluster is the broker itself, for tests that inject faults.
func (k *Kafka) Cluster() *kfake.Cluster { return k.cluster }

// Stop ends the broker and writes its state; a second call returns the first
// one's result.
func (k *Kafka) Stop() error {
	k.stop.Do(func() {
		k.cluster.Close()
		if k.dir != nil {
			k.stopErr = k.dir.Close()
		}
	})
	return k.stopErr
}

// kafkaLog passes the broker's warnings and errors on.
type kafkaLog struct{ log *slog.Logger }

func (l kafkaLog) Logf(level kfake.LogLevel, format string, args ...any) {
	switch level {
	case kfake.LogLevelError:
		l.log.Error(fmt.Sprintf(format, args...))
	case kfake.LogLevelWarn:
		l.log.Warn(fmt.Sprintf(format, args...))
	case kfake.LogLevelDebug, kfake.LogLevelInfo, kfake.LogLevelNone:
	}
}
