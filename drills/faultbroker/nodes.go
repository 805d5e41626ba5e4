package faultbroker

import (
	"fmt"
	"net"
	"net/http"
	"strconv"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/tidemark/tidemark/internal/embedded"
)

// nodes are the brokers of the cluster. They share one process and one log: a
// node that is down is one that nobody reaches and that leads nothing. The
// first is the controller and stays it; topics are made while it is up.
type nodes struct {
	cluster *kfake.Cluster
	links   *links
	ports   []int // by node
}

// startNodes adds nodes to the broker that runs; 0 takes any port.
func startNodes(first *embedded.Kafka, l *links, ports []int) (*nodes, error) {
	n := &nodes{cluster: first.Cluster(), links: l}
	_, port, err := net.SplitHostPort(first.Brokers()[0])
	if err != nil {
		return nil, fmt.Errorf("reading the broker's address: %w", err)
	}
	p, err := strconv.Atoi(port)
	if err != nil {
		return nil, fmt.Errorf("reading the broker's address: %w", err)
	}
	n.ports = []int{p}
	for i, port := range ports {
		if port == 0 {
			if port, err = embedded.FreePort(); err != nil {
				return nil, err
			}
		}
		_, p, err := n.cluster.AddNode(int32(i+1), port)
		if err != nil {
			return nil, fmt.Errorf("starting broker %d: %w", i+1, err)
		}
		n.ports = append(n.ports, p)
	}
	return n, nil
}

func (n *nodes) addresses() (all []string) {
	for _, port := range n.ports {
		all = append(all, net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	}
	return all
}

// Steps of a node's end and return.
const (
	killNode  = "kill"  // nobody reaches it any more; it still leads what it led
	elect     = "elect" // the others lead and coordinate
	startNode = "start" // it is back, and leads its share
)

func (s *server) node(w http.ResponseWriter, r *http.Request) {
	if err := s.nodes.do(r.PathValue("id"), r.PathValue("what")); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func (n *nodes) do(id, what string) error {
	node, err := strconv.Atoi(id)
	if err != nil || node < 0 || node >= len(n.ports) {
		return fmt.Errorf("there is no broker %q", id)
	}
	switch what {
	case killNode:
		n.links.kill(n.ports[node])
		return nil
	case elect:
		return n.cluster.RemoveNode(int32(node))
	case startNode:
		n.links.revive(n.ports[node])
		_, _, err := n.cluster.AddNode(int32(node), n.ports[node])
		return err
	}
	return fmt.Errorf("%q cannot be done to a broker", what)
}
