package debezium

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func expect(t *testing.T, err error, want string) {
	t.Helper()
	if (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want %q", err, want)
	}
}

func testConfig() Config {
	return Config{Prefix: "tide.mark", Shard: 3, Shards: 4,
		PostgresURL: "postgres://us%22er:p%40ss%5C@db.example:5433/shard3?sslmode=disable"}
}

func TestRenderConnector(t *testing.T) {
	c, err := testConfig().Connector()
	if err != nil {
		t.Fatal(err)
	}
	if c.Name != "tide.mark-cdc-shard-3" {
		t.Errorf("name %s", c.Name)
	}
	for key, want := range map[string]string{
		"connector.class": Class, "topic.prefix": "tide.mark",
		"database.hostname": "db.example", "database.port": "5433", "database.user": `us"er`, "database.password": `p@ss\`,
		"database.dbname": "shard3", "database.sslmode": "disable",
		"plugin.name": "pgoutput", "slot.name": "tide_mark_shard_3", "publication.name": "tidemark_outbox",
		"publication.autocreate.mode": "disabled", "snapshot.mode": "no_data", "table.include.list": "public.outbox",
		"predicates.outbox.pattern": `tide\.mark\.public\.outbox`, "transforms.route.replacement": "tide.mark.cdc",
		"transforms.partition.partition.topic.num": "4", "extended.headers.enabled": "false", "poll.interval.ms": "5",
	} {
		if c.Config[key] != want {
			t.Errorf("%s is %q, want %q", key, c.Config[key], want)
		}
	}
	for key, value := range c.Config {
		if placeholder.MatchString(value) {
			t.Errorf("%s is still %s", key, value)
		}
	}
}

func TestRenderRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"shard":       {func(c *Config) { c.Shard = 4 }, "shard 4 is not one of 4"},
		"url":         {func(c *Config) { c.PostgresURL = "postgres://u:secret@:x/" }, "PostgreSQL URL is not valid"},
		"template":    {func(c *Config) { c.Template = "{" }, "template"},
		"placeholder": {func(c *Config) { c.Template = `{"name": "@SHRAD@"}` }, "@SHRAD@"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := testConfig()
			c.change(&cfg)
			_, err := cfg.Connector()
			expect(t, err, c.want)
			if err != nil && strings.Contains(err.Error(), "secret") {
				t.Errorf("the error shows the password: %v", err)
			}
		})
	}
}

// The worker's answers, in order, decide how long a connector is awaited.
func TestApplyConnector(t *testing.T) {
	for _, c := range []struct {
		name     string
		statuses []string
		wrong    string
	}{
		{"at once", []string{`{"connector":{"state":"RUNNING"},"tasks":[{"state":"RUNNING"}]}`}, ""},
		{"late", []string{``, `{"connector":{"state":"RUNNING"},"tasks":[]}`, `{"connector":{"state":"RUNNING"},"tasks":[{"state":"UNASSIGNED"}]}`, `{"connector":{"state":"RUNNING"},"tasks":[{"state":"RUNNING"}]}`}, ""},
		{"failed", []string{`{"connector":{"state":"RUNNING"},"tasks":[{"state":"FAILED","trace":"no slot\nat x\nat y\nat z"}]}`}, "no slot / at x / at y"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var config map[string]string
			worker := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch {
				case r.Method == http.MethodPut && r.URL.Path == "/connectors/a b/config":
					if err := json.NewDecoder(r.Body).Decode(&config); err != nil {
						t.Error(err)
					}
				case r.URL.Path != "/connectors/a b/status":
					t.Errorf("called %s %s", r.Method, r.URL.Path)
				case c.statuses[0] == "":
					http.Error(w, `{"error_code":404,"message":"no status"}`, http.StatusNotFound)
					c.statuses = c.statuses[1:]
				default:
					_, _ = w.Write([]byte(c.statuses[0]))
					if len(c.statuses) > 1 {
						c.statuses = c.statuses[1:]
					}
				}
			}))
			defer worker.Close()
			err := Worker{worker.URL}.Apply(t.Context(), Connector{Name: "a b", Config: map[string]string{"x": "y"}})
			expect(t, err, c.wrong)
			if config["x"] != "y" {
				t.Errorf("config %v", config)
			}
		})
	}
}

func TestWorkerRefusesWithItsMessage(t *testing.T) {
	worker := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, `{"error_code":400,"message":"slot.name is invalid"}`, http.StatusBadRequest)
	}))
	defer worker.Close()
	w := Worker{worker.URL}
	expect(t, w.Apply(t.Context(), Connector{Name: "a"}), "answers 400: slot.name is invalid")
	expect(t, w.Remove(t.Context(), "a"), "answers 400")
}
