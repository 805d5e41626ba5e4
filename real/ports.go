package main

import (
	"fmt"
	"net"
	"strconv"
)

// Ports that are taken when they are free.
const (
	firstBrokerPort     = 19092
	firstControllerPort = 19192
	preferredConnect    = 18083
)

// choosePorts puts ports that are free in the place of those that are not.
func choosePorts(wanted ...*int) error {
	var open []net.Listener // until all are chosen, so that they differ
	defer func() {
		for _, l := range open {
			_ = l.Close()
		}
	}()
	for _, port := range wanted {
		l, err := net.Listen("tcp", address(*port))
		if err != nil {
			l, err = net.Listen("tcp", address(0))
		}
		if err != nil {
			return fmt.Errorf("choosing a port on 127.0.0.1: %w", err)
		}
		open = append(open, l)
		*port = l.Addr().(*net.TCPAddr).Port
	}
	return nil
}

func series(first, n int) []int {
	ports := make([]int, n)
	for i := range ports {
		ports[i] = first + i
	}
	return ports
}

func address(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
