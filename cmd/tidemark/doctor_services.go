package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tidemark/tidemark/internal/config"
	"github.com/tidemark/tidemark/internal/kafkaadmin"
	"github.com/tidemark/tidemark/internal/ops"
	"github.com/tidemark/tidemark/topology"
)

func (d *doctor) kafka(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 2*doctorTimeout)
	defer cancel()
	client, err := kafkaClient(d.cfg)
	if err != nil {
		d.bad("Kafka", err.Error(), "correct the kafka section of the configuration")
		return
	}
	defer client.Close()
	brokers, err := kadm.NewClient(client).ListBrokers(ctx)
	if err != nil {
		d.bad("Kafka", fmt.Sprintf("asking %s: %v", strings.Join(d.cfg.Kafka.Brokers, ","), err), d.unlessDev("check that a broker runs there"))
		return
	}
	d.ok("Kafka", "brokers: %d", len(brokers))
	topo, err := d.cfg.Topology()
	if err != nil {
		d.bad("topics", err.Error(), "")
		return
	}
	if d.topics(ctx, client, topo) {
		d.groups(ctx, client, topo)
	}
}

func (d *doctor) topics(ctx context.Context, client *kgo.Client, topo *topology.Topology) bool {
	diffs, err := kafkaadmin.Check(ctx, client, topo)
	if err != nil {
		d.bad("topics", err.Error(), "")
		return false
	}
	for _, diff := range diffs {
		do := "change the topic with Kafka's own tools, or the configuration, until they agree"
		if diff.Field == kafkaadmin.FieldTopic {
			do = "`tidemark topology create`"
		}
		d.bad("topics", diff.String(), do)
	}
	if len(diffs) == 0 {
		d.ok("topics", "all %d as the map says", len(topo.Streams))
	}
	return len(diffs) == 0
}

// groups looks whether each processor runs somewhere and how far it is behind.
func (d *doctor) groups(ctx context.Context, client *kgo.Client, topo *topology.Topology) {
	admin := kadm.NewClient(client)
	for _, g := range topo.Groups {
		check := "group " + g.ID
		lags, err := admin.Lag(ctx, g.ID)
		group := lags[g.ID]
		if err == nil {
			err = group.Error()
		}
		switch {
		case err != nil:
			d.bad(check, err.Error(), "")
		case len(group.Members) == 0:
			d.bad(check, fmt.Sprintf("nobody runs it, %d records wait", group.Lag.Total()), "start the role: `tidemark run "+g.Name+"`")
		default:
			d.ok(check, "%s, members: %d, %d records behind", group.State, len(group.Members), group.Lag.Total())
		}
	}
}

// redis never keeps tidemark from working: counts stay right without it (I8).
func (d *doctor) redis(ctx context.Context) {
	if d.cfg.Redis == "" {
		d.warn("Redis", "not configured", "set redis in the configuration to have the cache")
		return
	}
	client, err := openRedis(d.cfg, doctorTimeout)
	if err != nil {
		d.bad("Redis", err.Error(), "correct redis and redis_tls in the configuration")
		return
	}
	defer func() { _ = client.Close() }()
	ctx, cancel := context.WithTimeout(ctx, doctorTimeout)
	defer cancel()
	if err := client.Ping(ctx); err != nil {
		d.warn("Redis", err.Error(), d.unlessDev("check that it runs; counts stay right without it"))
		return
	}
	d.ok("Redis", "answers")
}

// processes asks the process that `tidemark dev` runs what is not ready, and
// the API whether it is there.
func (d *doctor) processes(ctx context.Context) {
	if dir := d.at.dataDir(); dir != "" {
		if e, err := config.ReadEndpoints(dir); err == nil {
			d.readiness(ctx, strings.TrimSuffix(e.Metrics, "/metrics")+"/readyz?output=json")
		}
	}
	url := apiURL(d.at, d.cfg, "")
	if err := knock(ctx, url); err != nil {
		d.warn("API", err.Error(), d.unlessDev("start `tidemark run commands queries`, if its API should be at "+url))
		return
	}
	d.ok("API", "answers at %s", url)
}

const maxReadiness = 1 << 20 // bytes

func (d *doctor) readiness(ctx context.Context, url string) {
	const check = "readiness"
	ctx, cancel := context.WithTimeout(ctx, doctorTimeout)
	defer cancel()
	var answer struct {
		Ready      bool
		Components []ops.Component
	}
	err := func() error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		defer func() { _ = res.Body.Close() }()
		return json.NewDecoder(io.LimitReader(res.Body, maxReadiness)).Decode(&answer)
	}()
	if err != nil {
		d.bad(check, err.Error(), d.startDev())
		return
	}
	for _, c := range answer.Components {
		if !c.Ready {
			d.bad(check, c.Name+": "+c.Reason, "")
		}
	}
	if answer.Ready {
		d.ok(check, "all %d components of tidemark dev are ready", len(answer.Components))
	}
}
