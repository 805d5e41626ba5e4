package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/tidemark/tidemark/internal/config"
	"github.com/tidemark/tidemark/internal/embedded"
	"github.com/tidemark/tidemark/internal/kafkaadmin"
)

// finding is one thing that the doctor looked at.
type finding struct {
	Check string `json:"check"`
	State string `json:"state"` // ok, warning or bad
	Found string `json:"found"`
	Do    string `json:"do,omitempty"` // what helps
}

func newDoctor() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Look for what keeps tidemark from working; exit 3 when something does",
		Args:  args(cobra.NoArgs),
	}
	at := whereFlags(cmd)
	out := outputFlag(cmd, "table", "json")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := out.check(); err != nil {
			return err
		}
		found := examine(cmd.Context(), at)
		err := out.print(cmd.OutOrStdout(), found, func(w io.Writer) error { return writeFindings(w, found) })
		for _, f := range found {
			if f.State == "bad" && err == nil {
				err = errDifferent
			}
		}
		return err
	}
	return cmd
}

func writeFindings(w io.Writer, all []finding) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, f := range all {
		fmt.Fprintf(tw, "%s\t%s\t%s\n", f.State, f.Check, f.Found)
		if f.Do != "" {
			fmt.Fprintf(tw, "\t\tdo: %s\n", f.Do)
		}
	}
	return tw.Flush()
}

func ok(check, format string, a ...any) finding {
	return finding{Check: check, State: "ok", Found: fmt.Sprintf(format, a...)}
}

func bad(check string, err error, do string) finding {
	return finding{Check: check, State: "bad", Found: err.Error(), Do: do}
}

const doctorTimeout = 5 * time.Second

// examine looks at the machine and, if there is a configuration, at what it
// names.
func examine(ctx context.Context, at *where) []finding {
	found := []finding{examinePostgresPrograms(ctx)}
	cfg, err := at.load()
	if err != nil {
		return append(found, examinePort("port 8080 (API)", "127.0.0.1:8080"), examinePort("port 8081 (operators)", "127.0.0.1:8081"),
			finding{Check: "configuration", State: "warning", Found: err.Error(), Do: "start `tidemark dev`, or name a file with --config"})
	}
	found = append(found, ok("configuration", "instance %s, %d shards, %d count partitions", cfg.Instance, cfg.Shards, cfg.CountPartitions))
	found = append(found, examineDatabases(ctx, cfg)...)
	found = append(found, examineKafka(ctx, cfg)...)
	return append(found, examineRedis(ctx, cfg), examineAPI(ctx, apiURL(at, cfg, "")))
}

func examinePostgresPrograms(ctx context.Context) finding {
	installed := embedded.InstalledPostgres(ctx)
	if len(installed) == 0 {
		return finding{Check: "PostgreSQL programs", State: "warning", Found: "none on this machine",
			Do: "`tidemark dev` will download some; or install your distribution's postgresql"}
	}
	return ok("PostgreSQL programs", "PostgreSQL %d in %s", installed[0].Major, installed[0].Dir)
}

func examinePort(check, address string) finding {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return finding{Check: check, State: "warning", Found: "in use", Do: "choose another with --listen or --ops-listen"}
	}
	_ = l.Close()
	return ok(check, "free")
}

func examineDatabases(ctx context.Context, cfg config.Config) []finding {
	found := []finding{examineDatabase(ctx, "control database", cfg.Control, false)}
	for shard, url := range cfg.Postgres {
		found = append(found, examineDatabase(ctx, fmt.Sprintf("relation shard %d", shard), url, true))
	}
	return found
}

func examineDatabase(ctx context.Context, check, url string, feeds bool) finding {
	ctx, cancel := context.WithTimeout(ctx, doctorTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return bad(check, fmt.Errorf("connecting to %s: no answer", config.Redact(url)), "check that PostgreSQL runs and that the URL's user may connect")
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	var version, level string
	if err := conn.QueryRow(ctx, "SELECT current_setting('server_version'), current_setting('wal_level')").Scan(&version, &level); err != nil {
		return bad(check, err, "")
	}
	if feeds && level != "logical" {
		return bad(check, fmt.Errorf("PostgreSQL %s has wal_level %s", version, level), "set wal_level = logical and restart PostgreSQL: the change feed needs it")
	}
	return ok(check, "PostgreSQL %s, wal_level %s", version, level)
}

func examineKafka(ctx context.Context, cfg config.Config) []finding {
	ctx, cancel := context.WithTimeout(ctx, 2*doctorTimeout)
	defer cancel()
	client, err := kafkaClient(cfg)
	if err != nil {
		return []finding{bad("Kafka", err, "correct the kafka section of the configuration")}
	}
	defer client.Close()
	brokers, err := kadm.NewClient(client).ListBrokers(ctx)
	if err != nil {
		return []finding{bad("Kafka", fmt.Errorf("asking %s: %w", strings.Join(cfg.Kafka.Brokers, ","), err), "check that a broker runs there")}
	}
	found := []finding{ok("Kafka", "%d brokers", len(brokers))}
	topo, err := cfg.Topology()
	if err != nil {
		return append(found, bad("topics", err, ""))
	}
	diffs, err := kafkaadmin.Check(ctx, client, topo)
	if err != nil {
		return append(found, bad("topics", err, ""))
	}
	for _, d := range diffs {
		found = append(found, bad("topics", fmt.Errorf("%s", d), "missing: `tidemark topology create`; differing: alter the topic or the configuration"))
	}
	if len(diffs) == 0 {
		found = append(found, ok("topics", "all %d as the topology says", len(topo.Streams)))
	}
	return found
}

func examineRedis(ctx context.Context, cfg config.Config) finding {
	if cfg.Redis == "" {
		return finding{Check: "Redis", State: "warning", Found: "not configured", Do: "set redis to have the cache"}
	}
	opts, err := redis.ParseURL(cfg.Redis)
	if err != nil {
		return bad("Redis", fmt.Errorf("the URL %s is malformed", config.Redact(cfg.Redis)), "correct redis in the configuration")
	}
	opts.MaxRetries = -1
	client := redis.NewClient(opts)
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, doctorTimeout)
	defer cancel()
	if err := client.Ping(ctx).Err(); err != nil {
		return bad("Redis", err, "counts stay right without it; check that it runs")
	}
	return ok("Redis", "answers")
}

func examineAPI(ctx context.Context, url string) finding {
	ctx, cancel := context.WithTimeout(ctx, doctorTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/openapi.json", nil)
	if err != nil {
		return bad("API", err, "")
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return finding{Check: "API", State: "warning", Found: "no answer at " + url, Do: "start `tidemark dev`, or `tidemark run commands queries`"}
	}
	_ = res.Body.Close()
	return ok("API", "answers at %s", url)
}
