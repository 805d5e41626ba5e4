package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidemark/tidemark/emitters/load"
)

const (
	queryTargets = 50
	querySeconds = 10
	queryClients = 16
)

// benchQueries asks a system for the states and counts of 50 targets at once,
// from clients on the same cores.
func benchQueries(ctx context.Context) error {
	s, err := startSystem()
	if err != nil {
		return err
	}
	defer s.stop()
	c := load.Default()
	c.BaseURL, c.Token = s.endpoints.API, s.token
	c.Rate, c.Commands, c.Users, c.Targets = 0, 10_000, 2000, 5000
	l, err := load.New(c)
	if err != nil {
		return err
	}
	if _, err := l.Run(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, querySeconds*time.Second)
	defer cancel()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: queryClients}}
	var answered, failed atomic.Int64
	before, err := ticks(s.cmd.Process.Pid)
	if err != nil {
		return err
	}
	ourCPU, start := coreSeconds(), time.Now()
	var wg sync.WaitGroup
	for n := range queryClients {
		wg.Go(func() {
			ask, err := s.query(n)
			for err == nil && ctx.Err() == nil {
				if err = ask(ctx, client); err == nil {
					answered.Add(1)
				}
			}
			if ctx.Err() == nil {
				failed.Add(1)
			}
		})
	}
	wg.Wait()
	wall := time.Since(start).Seconds()
	after, err := ticks(s.cmd.Process.Pid)
	if err != nil {
		return err
	}
	serverCPU := float64(after-before) / 100
	fmt.Printf("  %d targets a query, %d clients on the same cores, %d failed\n", queryTargets, queryClients, failed.Load())
	fmt.Printf("  batch queries         %8.0f requests/s, %.0f per core-second of the server\n", float64(answered.Load())/wall, float64(answered.Load())/serverCPU)
	fmt.Printf("  cores busy            server %.2f, clients %.2f (PostgreSQL takes the rest)\n", serverCPU/wall, (coreSeconds()-ourCPU)/wall)
	return nil
}

// query prepares one client's request.
func (s *system) query(n int) (func(context.Context, *http.Client) error, error) {
	token, err := s.token(fmt.Sprintf("reader-%d", n))
	if err != nil {
		return nil, err
	}
	ids := make([]string, queryTargets)
	for i := range ids {
		ids[i] = fmt.Sprintf("v%d", n*queryTargets+i)
	}
	body, err := json.Marshal(map[string]any{"videoIds": ids})
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, client *http.Client) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.endpoints.API+"/v1/like-relations/batch-query", bytes.NewReader(body))
		if err != nil {
			return err
		}
		req.Header.Set("Authorization", "Bearer "+token)
		req.Header.Set("Content-Type", "application/json")
		res, err := client.Do(req)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		_, err = io.Copy(io.Discard, res.Body)
		if err == nil && res.StatusCode != http.StatusOK {
			err = fmt.Errorf("status %d", res.StatusCode)
		}
		return err
	}, nil
}
