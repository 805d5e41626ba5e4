package config

import (
	"fmt"
	"net/netip"
)

// Limits bound what one client may ask for: token buckets, kept in Redis for all
// processes together where there is one, else by each process.
type Limits struct {
	Enabled bool `koanf:"enabled"`
	// Commands have these limits together: a request takes a token of each, or
	// is refused.
	Commands CommandLimits `koanf:"commands"`
	// Queries are everything else.
	Queries QueryLimits `koanf:"queries"`
	// Transitions are the effective ones of each relation: what is beyond is
	// answered with the relation as it is.
	Transitions Limit `koanf:"transitions"`
	// Gateways are networks with many people behind each address, in CIDR.
	Gateways []string `koanf:"gateways"`
	// GatewayFactor is how many times wider their address limits are, 0..10000;
	// 0: they have none.
	GatewayFactor int `koanf:"gateway_factor"`
	// TrustedProxies are networks, in CIDR, whose X-Forwarded-For is believed.
	TrustedProxies []string `koanf:"trusted_proxies"`
	// LocalEntries are the buckets that a process remembers without Redis, 16
	// bytes each, 1024..16777216.
	LocalEntries int `koanf:"local_entries"`
}

// CommandLimits are by who sends a command.
type CommandLimits struct {
	Account Limit `koanf:"account"`
	Device  Limit `koanf:"device"`
	Address Limit `koanf:"address"`
}

// QueryLimits are by who asks; queries name no device.
type QueryLimits struct {
	Account Limit `koanf:"account"`
	Address Limit `koanf:"address"`
}

// Limit is a token bucket.
type Limit struct {
	// PerMinute are the tokens that come back, up to a million; 0: no limit.
	PerMinute int `koanf:"per_minute"`
	// Burst is how many there are at most, 1..1000000.
	Burst int `koanf:"burst"`
}

// defaultLimits leave room for a person with several devices, and stop a script.
func defaultLimits() Limits {
	return Limits{
		Enabled:     true,
		Commands:    CommandLimits{Account: Limit{300, 100}, Device: Limit{300, 100}, Address: Limit{6000, 1000}},
		Queries:     QueryLimits{Account: Limit{1800, 300}, Address: Limit{36_000, 3000}},
		Transitions: Limit{20, 20},
		Gateways:    []string{}, GatewayFactor: 50, TrustedProxies: []string{}, LocalEntries: 1 << 16,
	}
}

func (l Limits) validate(p *problems) {
	const million = 1_000_000
	for path, limit := range map[string]Limit{
		"commands.account": l.Commands.Account, "commands.device": l.Commands.Device, "commands.address": l.Commands.Address,
		"queries.account": l.Queries.Account, "queries.address": l.Queries.Address, "transitions": l.Transitions,
	} {
		if limit.PerMinute < 0 || limit.PerMinute > million {
			p.add("limits."+path+".per_minute", "is %d, not in 0..%d", limit.PerMinute, million)
		}
		if limit.PerMinute > 0 && (limit.Burst < 1 || limit.Burst > million) {
			p.add("limits."+path+".burst", "is %d, not in 1..%d", limit.Burst, million)
		}
	}
	if l.GatewayFactor < 0 || l.GatewayFactor > 10_000 {
		p.add("limits.gateway_factor", "is %d, not in 0..10000", l.GatewayFactor)
	}
	if l.LocalEntries < 1<<10 || l.LocalEntries > 1<<24 {
		p.add("limits.local_entries", "is %d, not in 1024..16777216", l.LocalEntries)
	}
	for path, networks := range map[string][]string{"limits.gateways": l.Gateways, "limits.trusted_proxies": l.TrustedProxies} {
		if _, err := Networks(networks); err != nil {
			p.add(path, "%v", err)
		}
	}
}

// Networks reads networks in CIDR.
func Networks(of []string) ([]netip.Prefix, error) {
	networks := make([]netip.Prefix, len(of))
	for i, text := range of {
		n, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("%q is no network such as 192.0.2.0/24", text)
		}
		networks[i] = n.Masked()
	}
	return networks, nil
}
