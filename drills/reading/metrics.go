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

// CacheReads are the relations that a process's queries have asked for since it
// started, and how many of them Redis had, by the metrics at its operators'
// address ops, such as http://127.0.0.1:8081.
func CacheReads(ctx context.Context, ops string) (hits, asked int64, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, ops+"/metrics", nil)
	if err != nil {
		return 0, 0, err
	}
	resp, err := metricsClient.Do(req)
	if err != nil {
		return 0, 0, err
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), " ")
		if !strings.HasPrefix(name, "tidemark_cache_reads_total{") {
			continue
		}
		n, _ := strconv.ParseFloat(value, 64)
		asked += int64(n)
		if strings.Contains(name, `"hit"`) {
			hits += int64(n)
		}
	}
	return hits, asked, lines.Err()
}
