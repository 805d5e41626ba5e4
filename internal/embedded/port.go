package embedded

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

// Ports of servers that come back to theirs: below those that systems give to
// whoever asks for any (Linux from 32768, others from 49152). Of these, some
// process's connection has one sooner or later while its server is away.
const (
	firstPort = 10_240
	lastPort  = 32_767
)

var givenPorts struct {
	sync.Mutex
	all map[int]bool
}

// FreePort finds a port of 127.0.0.1 that a server may keep over restarts. It
// gives none twice in the life of this process.
func FreePort() (int, error) {
	for range 1000 {
		if port := firstPort + rand.IntN(lastPort-firstPort+1); takePort(port) {
			return port, nil
		}
	}
	return 0, fmt.Errorf("looking for a free port from %d to %d of 127.0.0.1: 1000 were taken", firstPort, lastPort)
}

// takePort says whether a port is free and was given to nobody; now it is given.
func takePort(port int) bool {
	givenPorts.Lock()
	defer givenPorts.Unlock()
	if givenPorts.all[port] || !portFree(port) {
		return false
	}
	if givenPorts.all == nil {
		givenPorts.all = map[int]bool{}
	}
	givenPorts.all[port] = true
	return true
}

func portFree(port int) bool {
	l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(port))
	if err != nil {
		return false
	}
	return l.Close() == nil
}
