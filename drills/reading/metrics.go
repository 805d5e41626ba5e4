package reading

import (
	"bufio"
	"context"
	"net/http"
	"strconv"
	"strings"
	"time"
)

var metricsClient = &http.Client{Timeout: 2 * time.Second}

// Metrics are those at a process's operators' address ops, such as
// http://127.0.0.1:8081, by name and labels as they stand there.
func Metrics(ctx context.Context, ops string) (map[string]float64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, ops+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	resp, err := metricsClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	all := map[string]float64{}
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		if name, value, ok := strings.Cut(lines.Text(), " "); ok && name != "#" {
			all[name], _ = strconv.ParseFloat(value, 64) // labels with blanks are nobody's here
		}
	}
	return all, lines.Err()
}

// CacheReads are the relations that a process's queries have asked for since it
// started, and how many of them Redis had, by the metrics at its operators'
// address ops, such as http://127.0.0.1:8081.
func CacheReads(ctx context.Context, ops string) (hits, asked int64, err error) {
	all, err := Metrics(ctx, ops)
	for name, n := range all {
		if !strings.HasPrefix(name, "tidemark_cache_reads_total{") {
			continue
		}
		asked += int64(n)
		if strings.Contains(name, `"hit"`) {
			hits += int64(n)
		}
	}
	return hits, asked, err
}
