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
	givenPorts.Lock()
	defer givenPorts.Unlock()
	if givenPorts.all == nil {
		givenPorts.all = map[int]bool{}
	}
	for range 1000 {
		port := firstPort + rand.IntN(lastPort-firstPort+1)
		if !givenPorts.all[port] && portFree(port) {
			givenPorts.all[port] = true
			return port, nil
		}
	}
	return 0, fmt.Errorf("looking for a free port from %d to %d of 127.0.0.1: 1000 were taken", firstPort, lastPort)
}

func portFree(port int) bool {
	l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(port))
	if err != nil {
		return false
	}
	return l.Close() == nil
}
