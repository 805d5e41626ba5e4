package control

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/tidemark/tidemark/topology"
)

// A probe is a set of ids and the slot that they had when the contract was
// stored. Code that computes another slot would move relations (I15).
type probe struct {
	IDs  []string `json:"ids"`
	Slot int      `json:"slot"`
}

// The probe ids cover empty-looking, long, non-ASCII and
// ambiguous ids: ("ab","c") and ("a","bc") differ only by their length prefix.
var (
	shardProbeIDs         = [][]string{{"0"}, {"u7"}, {"用户-7"}, {"a:b|c%d"}, {long('x', 127)}, {long('y', 128)}, {long('z', 256)}}
	reverseTargetProbeIDs = [][]string{{"like", "V9001"}, {"follow", "u7"}, {"favorite", "视频"}, {"like", long('x', 128)}, {"like", "a:b|c%d"}}
	bucketProbeIDs        = [][]string{{"V9001", "u7"}, {"ab", "c"}, {"a", "bc"}, {"视频", "用户"}, {long('x', 128), "u"}, {"v", long('y', 256)}}
)

func long(c byte, n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = c
	}
	return string(b)
}

func probesOf(c topology.HashContract, ids [][]string) []probe {
	out := make([]probe, len(ids))
	for i, id := range ids {
		out[i] = probe{IDs: id, Slot: c.Slot(id...)}
	}
	return out
}

// storedContract is a contract as the database has it.
type storedContract struct {
	Algorithm, Seed, Encoding string
	Modulus                   int
	Probes                    []byte // JSON array of probe
}

func storeContract(c topology.HashContract, ids [][]string) (storedContract, error) {
	probes, err := json.Marshal(probesOf(c, ids))
	if err != nil {
		return storedContract{}, err
	}
	return storedContract{c.Algorithm, hex64(c.Seed), c.Encoding, c.Modulus, probes}, nil
}

// contract reads s and refuses it when this code does not follow it exactly.
func (s storedContract) contract() (topology.HashContract, error) {
	seed, err := strconv.ParseUint(s.Seed, 16, 64)
	if err != nil {
		return topology.HashContract{}, fmt.Errorf("seed %q is not 16 hex digits", s.Seed)
	}
	c := topology.HashContract{Algorithm: s.Algorithm, Seed: seed, Encoding: s.Encoding, Modulus: s.Modulus}
	if err := c.Check(); err != nil {
		return c, err
	}
	var probes []probe
	if err := json.Unmarshal(s.Probes, &probes); err != nil {
		return c, fmt.Errorf("reading the probes: %w", err)
	}
	if len(probes) == 0 {
		return c, errors.New("there are no probes to check this code with")
	}
	for _, p := range probes {
		if got := c.Slot(p.IDs...); got != p.Slot {
			return c, fmt.Errorf("this code puts probe %.40q into slot %d, but the contract was stored with slot %d: use the version of tidemark that stored it", p.IDs, got, p.Slot)
		}
	}
	return c, nil
}

func hex64(n uint64) string { return fmt.Sprintf("%016x", n) }
