package main

import (
	"github.com/tidemark/tidemark/api"
	"github.com/tidemark/tidemark/internal/config"
	"github.com/tidemark/tidemark/risk"
)

// risk decides on commands; nil when nothing does. It is no condition of
// readiness: commands always get a verdict.
func (b *builder) risk() (*api.Risk, error) {
	c, err := riskConfig(b.cfg.Risk)
	if err != nil || c.RulesFile == "" && c.Service == nil {
		return nil, err
	}
	c.Logger, c.Registerer = b.log, b.metrics
	d, err := risk.New(c)
	if err != nil {
		return nil, err
	}
	networks, err := clientNetworks(b.cfg.Limits)
	if err != nil {
		return nil, err
	}
	b.actors = append(b.actors, actor{name: "risk", run: d.Run, ready: d.Ready, detail: d.Detail})
	b.health.SetReport("risk", d.Report)
	return &api.Risk{Decider: d, Networks: networks}, nil
}

// riskConfig is what the configuration says of risk, without a log.
func riskConfig(c config.Risk) (out risk.Config, err error) {
	out = risk.Config{RulesFile: c.RulesFile, AskAlways: c.Service.Ask == config.AskAlways}
	if out.Unavailable, err = risk.ParseAction(c.Service.Unavailable); err != nil {
		return out, err
	}
	if c.Service.URL == "" {
		return out, nil
	}
	out.Service = &risk.ServiceConfig{
		URL: c.Service.URL, Secret: c.Service.Secret, SecretFile: c.Service.SecretFile, Timeout: c.Service.Timeout, InFlight: c.Service.InFlight,
	}
	tls, err := c.Service.Client()
	if tls != nil {
		out.Service.Dial = tls.Dial
	}
	return out, err
}
