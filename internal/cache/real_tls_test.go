//go:build real

package cache

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tidemark/tidemark/internal/testenv"
	"github.com/tidemark/tidemark/internal/tlsfiles"
)

// rights are those that docs/operating.md names. None empties a server, so that
// tests have another user who does.
var rights = strings.Fields("~* +@read +@write +@scripting +@connection +info +cluster|slots -flushall -flushdb")

// accessList takes the default user all rights and gives a user of ours his.
var accessList = slices.Concat(
	[]string{"--user", "default", "off", "--user", "tidemark", "on", ">of-tidemark"}, rights,
	[]string{"--user", "root", "on", ">of-root", "~*", "&*", "+@all"},
)

// as opens a client with a certificate that ca signed.
func as(t *testing.T, ca *testenv.Authority, url string, credentials func(context.Context) (string, string, error)) *Client {
	t.Helper()
	cert, key := ca.Issue(t, testenv.Certificate{})
	tls, err := tlsfiles.NewClient(tlsfiles.ClientConfig{Files: tlsfiles.Files{Setting: "redis_tls", CA: ca.File, Cert: cert, Key: key}})
	if err != nil {
		t.Fatal(err)
	}
	c, err := Open(Config{URL: url, TLS: tls, Credentials: credentials, Timeout: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func user(name, password string) func(context.Context) (string, string, error) {
	return func(context.Context) (string, string, error) { return name, password, nil }
}

func conformTLS(t *testing.T, ca *testenv.Authority, url string) {
	root := as(t, ca, url, user("root", "of-root"))
	conform(t, func(t *testing.T) rig {
		flushAll(t, root)
		return rig{as(t, ca, url, user("tidemark", "of-tidemark")), func(t *testing.T) { flushAll(t, root) }}
	})
}

func TestRedisServerWithTLSConforms(t *testing.T) {
	ca := testenv.NewAuthority(t)
	conformTLS(t, ca, "rediss://"+testenv.RedisServerTLS(t, ca, accessList...).Addr)
}

func TestRedisClusterWithTLSConforms(t *testing.T) {
	ca := testenv.NewAuthority(t)
	cluster := testenv.RedisClusterTLS(t, ca)
	setUser := []any{"acl", "setuser", "tidemark", "on", ">of-tidemark"}
	for _, r := range rights {
		setUser = append(setUser, r)
	}
	for _, command := range [][]any{setUser, {"acl", "setuser", "root", "on", ">of-root", "~*", "&*", "+@all"}} {
		if err := rootDo(t.Context(), as(t, ca, cluster.URL(), nil), command...); err != nil {
			t.Fatal(err)
		}
	}
	conformTLS(t, ca, cluster.URL())
}

// A server of another authority, a wrong password, no certificate and no TLS:
// each is an error of the call that says what is wrong.
func TestRedisServerWithTLSRefuses(t *testing.T) {
	ours, theirs := testenv.NewAuthority(t), testenv.NewAuthority(t)
	server := testenv.RedisServerTLS(t, ours, accessList...)
	good := user("tidemark", "of-tidemark")
	for name, c := range map[string]struct {
		client *Client
		want   string
	}{
		"another authority": {as(t, theirs, "rediss://"+server.Addr, good), "redis_tls.ca_file does not have the authority"},
		"a wrong password":  {as(t, ours, "rediss://"+server.Addr, user("tidemark", "x")), "WRONGPASS"},
		"nobody":            {as(t, ours, "rediss://"+server.Addr, nil), "NOAUTH"},
		"no TLS":            {open(t, "redis://"+server.Addr), "redis:"},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		err := c.client.Ping(ctx)
		cancel()
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if err != nil && strings.Contains(err.Error(), "of-tidemark") {
			t.Errorf("%s: the error has the password", name)
		}
	}
}

// A password that is changed in its file is that of the next connection.
func TestRedisPasswordIsRenewed(t *testing.T) {
	ca := testenv.NewAuthority(t)
	server := testenv.RedisServerTLS(t, ca, accessList...)
	file := filepath.Join(t.TempDir(), "password")
	write := func(password string) {
		if err := os.WriteFile(file, []byte(password), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("of-tidemark")
	c := as(t, ca, "rediss://"+server.Addr, func(context.Context) (string, string, error) {
		b, err := os.ReadFile(file)
		return "tidemark", string(b), err
	})
	if err := c.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	root := as(t, ca, "rediss://"+server.Addr, user("root", "of-root"))
	for _, command := range [][]any{{"acl", "setuser", "tidemark", "resetpass", ">renewed"}, {"client", "kill", "user", "tidemark"}} {
		if err := rootDo(t.Context(), root, command...); err != nil {
			t.Fatal(err)
		}
	}
	write("renewed")
	testenv.Eventually(t, 10*time.Second, func() error { return c.Ping(t.Context()) })
}

// rootDo has each master do something that no client of ours does.
func rootDo(ctx context.Context, c *Client, command ...any) error {
	return c.eachMaster(ctx, func(ctx context.Context, n *redis.Client) error { return n.Do(ctx, command...).Err() })
}
