package load

import (
	"bytes"
	"os"
	"runtime"
	"strconv"
)

// Machine is where the load was made; the server is often beside it.
type Machine struct {
	OS          string  `json:"os"`
	Cores       int     `json:"cores"`
	MemoryBytes int64   `json:"memoryBytes,omitempty"` // 0: not known
	CPUBusy     float64 `json:"cpuBusy"`               // share of all cores during the run, everything on the machine; -1: not known
}

func thisMachine() Machine {
	return Machine{OS: runtime.GOOS + "/" + runtime.GOARCH, Cores: runtime.NumCPU(), MemoryBytes: memory(), CPUBusy: -1}
}

// memory is the machine's, from Linux's meminfo.
func memory() int64 {
	data, _ := os.ReadFile("/proc/meminfo")
	for line := range bytes.Lines(data) {
		if f := bytes.Fields(line); len(f) >= 2 && string(f[0]) == "MemTotal:" {
			kib, _ := strconv.ParseInt(string(f[1]), 10, 64)
			return kib << 10
		}
	}
	return 0
}

// processorTime is Linux's count of busy and all processor time since boot.
type processorTime struct{ busy, all float64 }

func readProcessorTime() (t processorTime, ok bool) {
	data, err := os.ReadFile("/proc/stat")
	if err != nil {
		return t, false
	}
	return parseProcessorTime(data)
}

func parseProcessorTime(stat []byte) (t processorTime, ok bool) {
	line, _, _ := bytes.Cut(stat, []byte("\n"))
	f := bytes.Fields(line)
	if len(f) < 6 || string(f[0]) != "cpu" {
		return t, false
	}
	for i, field := range f[1:min(len(f), 9)] { // guest time is in user time
		v, err := strconv.ParseFloat(string(field), 64)
		if err != nil {
			return t, false
		}
		t.all += v
		if i != 3 && i != 4 { // idle, waiting for a disk
			t.busy += v
		}
	}
	return t, true
}

// since is the busy share between two counts.
func (t processorTime) since(before processorTime) float64 {
	if t.all <= before.all {
		return -1
	}
	return (t.busy - before.busy) / (t.all - before.all)
}
