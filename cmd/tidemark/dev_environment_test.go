package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/tidemark/tidemark/internal/config"
)

func devConfig(t *testing.T, args ...string) (config.Config, error) {
	t.Helper()
	cmd, f := &cobra.Command{}, new(devFlags)
	f.add(cmd)
	if err := cmd.ParseFlags(args); err != nil {
		t.Fatal(err)
	}
	return f.config()
}

// Settings of the environment win over what dev wants, flags that are given win
// over them.
func TestDevTakesTheEnvironment(t *testing.T) {
	t.Setenv("TIDEMARK_REFRESH_INTERVAL", "1s")
	t.Setenv("TIDEMARK_LIMITS_ENABLED", "true")
	t.Setenv("TIDEMARK_VISIBILITY_STRONG_CHECK", "PRIVATE")
	t.Setenv("TIDEMARK_API_LISTEN", "127.0.0.1:7001")
	t.Setenv("TIDEMARK_LOG_LEVEL", "debug")
	got, err := devConfig(t, "--log-level", "error")
	if err != nil {
		t.Fatal(err)
	}
	if got.RefreshInterval != time.Second || !got.Limits.Enabled || !slices.Equal(got.Visibility.StrongCheck, []string{"PRIVATE"}) || got.API.Listen != "127.0.0.1:7001" {
		t.Errorf("%+v", got)
	}
	if got.Log.Level != "error" {
		t.Errorf("log level %s, the flag says error", got.Log.Level)
	}
	if got, err = devConfig(t, "--listen", "127.0.0.1:7002"); err != nil || got.API.Listen != "127.0.0.1:7002" || got.Log.Level != "debug" {
		t.Errorf("listening at %s, log level %s, %v", got.API.Listen, got.Log.Level, err)
	}
}

// What is dev's own cannot come from the environment: each is refused by name,
// before anything is started, with what to do.
func TestDevRefusesWhatItOwns(t *testing.T) {
	for name, want := range map[string]string{
		"TIDEMARK_SHARDS":                   "--shards",
		"TIDEMARK_COUNT_PARTITIONS":         "--partitions",
		"TIDEMARK_POSTGRES":                 "--postgres-url",
		"TIDEMARK_CONTROL":                  "--control-url",
		"TIDEMARK_KAFKA_BROKERS":            "--kafka-brokers",
		"TIDEMARK_KAFKA_TLS_ENABLED":        "--kafka-brokers",
		"TIDEMARK_REDIS":                    "--redis-url",
		"TIDEMARK_AUTH_JWKS_URL":            "data directory",
		"TIDEMARK_STATE_DIR":                "data directory",
		"TIDEMARK_EXPORTS_DIR":              "data directory",
		"TIDEMARK_API_PAGE_TOKEN_KEY_FILES": "data directory",
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(name, "1")
			dir := filepath.Join(t.TempDir(), "none")
			r := must(t, exitUsage, "dev", "--data-dir", dir)
			if !strings.Contains(r.errOut, name+" is in the environment") || !strings.Contains(r.errOut, want) {
				t.Errorf("stderr %q", r.errOut)
			}
			if _, err := os.Stat(dir); err == nil {
				t.Error("the data directory was made")
			}
		})
	}
}
