package debezium

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	template "github.com/tidemark/tidemark/docker/debezium"
)

// Class is the connector that a worker must know.
const Class = "io.debezium.connector.postgresql.PostgresConnector"

// Config says what a shard's connector reads and writes.
type Config struct {
	// Prefix is the deployment's; records name it as their source.name.
	Prefix string
	// Shard is counted from 0; Shards is the number of the topic's partitions.
	Shard, Shards int
	// PostgresURL is the shard's, as the worker reaches it.
	PostgresURL string
	// Topic is what is written to. Default PREFIX.cdc. It must be there.
	Topic string
	// Slot is the replication slot. Default the built-in emitter's,
	// PREFIX_shard_N.
	Slot string
	// Template is the connector's JSON with places to fill in. Default
	// docker/debezium/connector.json, as it was when this was built.
	Template string
}

// Connector is a Connect connector as the REST interface knows it.
type Connector struct {
	Name   string            `json:"name"`
	Config map[string]string `json:"config"`
}

var placeholder = regexp.MustCompile(`@[A-Z_]+@`)

// Connector fills the template in.
func (c Config) Connector() (Connector, error) {
	var out Connector
	values, err := c.values()
	if err != nil {
		return out, err
	}
	var unknown []string
	text := placeholder.ReplaceAllStringFunc(cmp.Or(c.Template, template.Template), func(name string) string {
		value, ok := values[strings.Trim(name, "@")]
		if !ok {
			unknown = append(unknown, name)
		}
		quoted, _ := json.Marshal(value) // a string has JSON
		return strings.Trim(string(quoted), `"`)
	})
	if len(unknown) > 0 {
		return out, fmt.Errorf("the connector's template has unknown placeholders: %s", strings.Join(unknown, ", "))
	}
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		return out, fmt.Errorf("reading the connector's template: %w", err)
	}
	return out, nil
}

// values are what the placeholders stand for.
func (c Config) values() (map[string]string, error) {
	if c.Shards < 1 || c.Shard < 0 || c.Shard >= c.Shards {
		return nil, fmt.Errorf("shard %d is not one of %d", c.Shard, c.Shards)
	}
	db, err := pgx.ParseConfig(c.PostgresURL)
	if err != nil {
		return nil, errors.New("the PostgreSQL URL is not valid: give postgres://user:password@host:port/database")
	}
	sslmode := "disable"
	if db.TLSConfig != nil {
		sslmode = "require"
	}
	return map[string]string{
		"PREFIX": c.Prefix, "PREFIX_PATTERN": strings.ReplaceAll(c.Prefix, ".", `\.`),
		"SHARD": strconv.Itoa(c.Shard), "SHARDS": strconv.Itoa(c.Shards),
		"TOPIC": cmp.Or(c.Topic, c.Prefix+".cdc"),
		"SLOT":  cmp.Or(c.Slot, fmt.Sprintf("%s_shard_%d", strings.ReplaceAll(c.Prefix, ".", "_"), c.Shard)),
		"HOST":  db.Host, "PORT": strconv.Itoa(int(db.Port)), "SSLMODE": sslmode,
		"USER": db.User, "PASSWORD": db.Password, "DATABASE": db.Database,
	}, nil
}
