package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// treeCPU is the CPU time that this process has used, and the running processes
// below it: the servers that it started. Of those the main threads count, which
// is all of a PostgreSQL backend, and all of Redis that matters.
func treeCPU() (time.Duration, error) {
	pids, err := tree()
	if err != nil {
		return 0, err
	}
	total := time.Duration(coreSeconds() * float64(time.Second))
	for _, pid := range pids {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", pid))
		if err != nil {
			continue
		}
		var ns int64
		if _, err := fmt.Sscan(string(b), &ns); err != nil {
			return 0, fmt.Errorf("reading the CPU time of process %d: %w", pid, err)
		}
		total += time.Duration(ns)
	}
	return total, nil
}

// tree are the running processes below this one.
func tree() (pids []int, err error) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, err
	}
	parent := map[int]int{}
	for _, path := range stats {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		var pid, of int
		var state string
		_, rest, _ := strings.Cut(string(b), ") ")
		if _, err := fmt.Sscan(string(b), &pid); err != nil {
			return nil, fmt.Errorf("reading %s: %w", path, err)
		}
		if _, err := fmt.Sscan(rest, &state, &of); err != nil {
			return nil, fmt.Errorf("reading %s: %w", path, err)
		}
		parent[pid] = of
	}
	for pid := range parent {
		if pid != os.Getpid() && below(parent, pid) {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// below tells whether pid descends from this process.
func below(parent map[int]int, pid int) bool {
	for pid > 1 {
		if pid == os.Getpid() {
			return true
		}
		pid = parent[pid]
	}
	return false
}
