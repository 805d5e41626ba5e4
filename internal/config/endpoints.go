package config

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// EndpointsFile is the name of the endpoints file in a data directory.
const EndpointsFile = "endpoints.json"

// Endpoints are the addresses of a running `tidemark dev`, for programs that
// want to reach its parts. They have passwords: the file has mode 0600.
type Endpoints struct {
	API      string   `json:"api"`      // http://host:port
	Kafka    string   `json:"kafka"`    // host:port, several with commas
	Postgres []string `json:"postgres"` // URL by shard
	Control  string   `json:"control"`  // URL
	Redis    string   `json:"redis"`    // redis://host:port
	Metrics  string   `json:"metrics"`  // http://host:port/metrics
}

// Write replaces dataDir's endpoints file whole.
func (e Endpoints) Write(dataDir string) error {
	b, err := json.MarshalIndent(e, "", "  ")
	if err != nil {
		return fmt.Errorf("writing endpoints: %w", err)
	}
	return writeFile(filepath.Join(dataDir, EndpointsFile), append(b, '\n'))
}

// ReadEndpoints reads dataDir's endpoints file.
func ReadEndpoints(dataDir string) (Endpoints, error) {
	var e Endpoints
	b, err := os.ReadFile(filepath.Join(dataDir, EndpointsFile))
	if err != nil {
		return e, fmt.Errorf("reading endpoints: %w: is `tidemark dev` running?", err)
	}
	if err := json.Unmarshal(b, &e); err != nil {
		return e, fmt.Errorf("reading endpoints from %s: %w", filepath.Join(dataDir, EndpointsFile), err)
	}
	return e, nil
}
