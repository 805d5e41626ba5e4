package limits

import (
	"net/http"
	"net/netip"
	"strings"
)

// Networks tell where a client comes from.
type Networks struct {
	// Gateways have many people behind each address.
	Gateways []netip.Prefix
	// Proxies are believed in what they say of the address before them.
	Proxies []netip.Prefix
}

// IsGateway tells whether many people are behind an address.
func (n Networks) IsGateway(a netip.Addr) bool { return contains(n.Gateways, a) }

// Address is where a request comes from: the connection's other end, or, where
// that is one of Proxies, the last address that such a proxy vouches for in
// X-Forwarded-For. What a client writes there itself stands further left and is
// not believed. Invalid when it cannot be told.
func (n Networks) Address(r *http.Request) netip.Addr {
	at, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{}
	}
	peer := at.Addr().Unmap().WithZone("")
	if len(n.Proxies) == 0 || !contains(n.Proxies, peer) {
		return peer
	}
	lines := r.Header.Values("X-Forwarded-For")
	for i := len(lines) - 1; i >= 0; i-- {
		for rest := lines[i]; rest != ""; {
			var last string
			if comma := strings.LastIndexByte(rest, ','); comma >= 0 {
				rest, last = rest[:comma], rest[comma+1:]
			} else {
				rest, last = "", rest
			}
			a, err := netip.ParseAddr(strings.TrimSpace(last))
			if err != nil {
				return peer // whoever sent it, the last that is known
			}
			if peer = a.Unmap().WithZone(""); !contains(n.Proxies, peer) {
				return peer
			}
		}
	}
	return peer
}

// Address is where a request comes from.
func (l *Limiter) Address(r *http.Request) netip.Addr { return l.cfg.Networks.Address(r) }

// subscriber is the part of an address that one subscriber has.
func subscriber(a netip.Addr) netip.Prefix {
	bits := 32
	if a.Is6() {
		bits = 64
	}
	p, _ := a.Prefix(bits) // fails for invalid addresses only
	return p
}

func contains(networks []netip.Prefix, a netip.Addr) bool {
	for _, n := range networks {
		if n.Contains(a) {
			return true
		}
	}
	return false
}
