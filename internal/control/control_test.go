package control

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sync/errgroup"

	"github.com/tidemark/tidemark/internal/testenv"
	"github.com/tidemark/tidemark/topology"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func openEmpty(t *testing.T) *DB {
	t.Helper()
	url := testenv.Postgres(t)
	if err := Migrate(t.Context(), url); err != nil {
		t.Fatal(err)
	}
	db, err := Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	return db
}

func openBootstrapped(t *testing.T) *DB {
	t.Helper()
	db := openEmpty(t)
	if err := db.Bootstrap(t.Context(), topology.DefaultConfig()); err != nil {
		t.Fatal(err)
	}
	return db
}

// mutate changes the database behind its triggers, as a bad restore would.
func mutate(t *testing.T, db *DB, sql string) {
	t.Helper()
	if _, err := db.pool.Exec(t.Context(), "SET session_replication_role = replica; "+sql+"; RESET session_replication_role"); err != nil {
		t.Fatal(err)
	}
}

func TestBootstrapStoresTheDefaultContracts(t *testing.T) {
	db := openBootstrapped(t)
	m, err := db.ShardMap(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := topology.NewShardMap(1, 4)
	if m.ID != 1 || m.Contract != want.Contract || len(m.Slots) != len(want.Slots) {
		t.Fatalf("shard map %d with contract %+v and %d slots", m.ID, m.Contract, len(m.Slots))
	}
	for _, user := range []string{"u1", "u2", "用户"} {
		if m.Shard(user) != want.Shard(user) {
			t.Errorf("user %s is on shard %d, want %d", user, m.Shard(user), want.Shard(user))
		}
	}
	manifest, err := db.ActiveManifest(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	wantManifest := topology.NewManifest(1, 1, 1, topology.DefaultBucketSpace(), 8)
	reverse, err := db.ReverseGeneration(t.Context())
	if want := topology.NewReverseGeneration(1, 8, 16); err != nil || reverse != want {
		t.Errorf("reverse generation %+v, %v, want %+v", reverse, err, want)
	}
	if manifest.ID != 1 || manifest.Generation != 1 || manifest.BucketSpace != 1 || manifest.Checksum() != wantManifest.Checksum() {
		t.Errorf("manifest %d of generation %d, space %d", manifest.ID, manifest.Generation, manifest.BucketSpace)
	}
}

func TestBootstrapIsDoneOnceByManyStarters(t *testing.T) {
	url := testenv.Postgres(t)
	group, ctx := errgroup.WithContext(t.Context())
	for range 8 {
		group.Go(func() error {
			if err := Migrate(ctx, url); err != nil {
				return err
			}
			db, err := Open(ctx, url)
			if err != nil {
				return err
			}
			defer db.Close()
			return db.Bootstrap(ctx, topology.DefaultConfig())
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	list, err := MigrationStatus(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range list {
		if !m.Applied || m.AppliedAt.IsZero() {
			t.Errorf("migration %s is not applied", m.Name)
		}
	}
}

func TestBootstrapRefusesOtherConfigurationByName(t *testing.T) {
	db := openBootstrapped(t)
	for name, tc := range map[string]struct {
		change func(*topology.Config)
		want   []string
	}{
		"same":                   {func(*topology.Config) {}, nil},
		"more partitions":        {func(c *topology.Config) { c.CountPartitions = 16 }, nil},
		"other shards":           {func(c *topology.Config) { c.Shards = 8 }, []string{"shards is configured as 8", "made for 4"}},
		"fewer partitions":       {func(c *topology.Config) { c.CountPartitions = 4 }, []string{"count partitions is configured as 4", "bucket 4 is on partition 4"}},
		"other liker partitions": {func(c *topology.Config) { c.LikerPartitions = 16 }, []string{"reverse generation 1", "liker partitions is configured as 16", "made for 8"}},
		"other R":                {func(c *topology.Config) { c.ReverseShards = 32 }, []string{"reverse generation 1", "reverse shards is configured as 32", "made for 16"}},
		"both":                   {func(c *topology.Config) { c.Shards, c.CountPartitions = 2, 2 }, []string{"shards", "count partitions"}},
		"invalid configuration":  {func(c *topology.Config) { c.Shards = 0 }, []string{"shards is 0"}},
	} {
		t.Run(name, func(t *testing.T) {
			c := topology.DefaultConfig()
			tc.change(&c)
			checkNames(t, db.Bootstrap(t.Context(), c), tc.want)
		})
	}
}

func TestI15StoredContractsThatThisCodeCannotFollowAreRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		sql  string
		want []string
	}{
		"bucket algorithm":    {"UPDATE bucket_space SET algorithm = 'crc32'", []string{"bucket space 1", `algorithm "crc32"`}},
		"bucket encoding":     {"UPDATE bucket_space SET encoding = 'lp2'", []string{"bucket space 1", `encoding "lp2"`}},
		"bucket seed":         {"UPDATE bucket_space SET seed = '0000000000000001'", []string{"bucket space 1", "probe"}},
		"bucket modulus":      {"UPDATE bucket_space SET modulus = 512", []string{"bucket space 1", "probe"}},
		"shard seed":          {"UPDATE shard_map SET seed = '0000000000000001'", []string{"shard map 1", "probe"}},
		"reverse user seed":   {"UPDATE reverse_generation SET users_seed = '0000000000000001'", []string{"reverse generation 1", "probe"}},
		"reverse target seed": {"UPDATE reverse_generation SET targets_seed = '0000000000000001'", []string{"reverse generation 1", "probe"}},
		"reverse algorithm":   {"UPDATE reverse_generation SET users_algorithm = 'crc32'", []string{"reverse generation 1", `algorithm "crc32"`}},
		"reverse encoding":    {"UPDATE reverse_generation SET targets_encoding = 'lp2'", []string{"reverse generation 1", `encoding "lp2"`}},
		"reverse R":           {"UPDATE reverse_generation SET users_modulus = 32", []string{"reverse generation 1", "probe"}},
		"reverse spread":      {"UPDATE reverse_generation SET spread = 99", []string{"reverse generation 1", "spread 99"}},
		"no reverse probes":   {"UPDATE reverse_generation SET users_probes = '[]'", []string{"reverse generation 1", "no probes"}},
		"no probes":           {"UPDATE shard_map SET probes = '[]'", []string{"shard map 1", "no probes"}},
		"shard of a slot":     {"UPDATE shard_map SET slots[1] = 9", []string{"shard map 1", "shard 9"}},
		"route":               {"UPDATE route_manifest_item SET partition = 1 WHERE bucket = 0", []string{"route manifest 1", "checksum"}},
		"epoch":               {"UPDATE route_manifest_item SET epoch = 2 WHERE bucket = 7", []string{"route manifest 1", "checksum"}},
		"missing route":       {"DELETE FROM route_manifest_item WHERE bucket = 3", []string{"no route for bucket 3"}},
		"last route":          {"DELETE FROM route_manifest_item WHERE bucket = 1023", []string{"sealed with 1024 routes and has 1023"}},
		"not sealed":          {"UPDATE route_manifest SET status = 'BUILDING'", []string{"BUILDING, not SEALED"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := openBootstrapped(t)
			mutate(t, db, tc.sql)
			checkNames(t, db.Bootstrap(t.Context(), topology.DefaultConfig()), tc.want)
			_, errMap := db.ShardMap(t.Context())
			_, errManifest := db.ActiveManifest(t.Context())
			_, errReverse := db.ReverseGeneration(t.Context())
			checkNames(t, errors.Join(errMap, errManifest, errReverse), tc.want)
		})
	}
}

func TestI15ContractsAndSealedManifestsAreImmutableInTheDatabase(t *testing.T) {
	db := openBootstrapped(t)
	for _, sql := range []string{
		"UPDATE shard_map SET shards = 5",
		"DELETE FROM shard_map",
		"UPDATE bucket_space SET seed = '0000000000000001'",
		"DELETE FROM bucket_space",
		"UPDATE reverse_generation SET users_modulus = 32",
		"UPDATE reverse_generation SET spread = 1",
		"DELETE FROM reverse_generation",
		"UPDATE route_manifest SET checksum = '0000000000000000'",
		"UPDATE route_manifest_item SET partition = 1 WHERE bucket = 0",
		"DELETE FROM route_manifest_item WHERE bucket = 0",
		"INSERT INTO route_manifest_item VALUES (1, 5000, 0, 1)",
		"INSERT INTO route_manifest (id, generation, bucket_space) VALUES (2, 1, 1); UPDATE generation SET active_manifest_id = 2",
		"INSERT INTO route_manifest (id, generation, bucket_space) VALUES (2, 1, 1); INSERT INTO route_manifest_item VALUES (2, 0, 0, 1); UPDATE route_manifest_item SET manifest_id = 1, bucket = 5000 WHERE manifest_id = 2",
	} {
		_, err := db.pool.Exec(t.Context(), sql)
		var pg *pgconn.PgError
		if !errors.As(err, &pg) || pg.Code != "55000" {
			t.Errorf("%s: %v", sql, err)
		}
	}
}

func TestReadingBeforeBootstrap(t *testing.T) {
	db := openEmpty(t)
	if _, err := db.ShardMap(t.Context()); !errors.Is(err, ErrNotBootstrapped) {
		t.Errorf("shard map: %v", err)
	}
	if _, err := db.ActiveManifest(t.Context()); !errors.Is(err, ErrNotBootstrapped) {
		t.Errorf("manifest: %v", err)
	}
}

// A deployment that was made before there was a reverse index gets its
// generation by the next migration; what it had stays as it was.
func TestBootstrapAddsTheReverseGenerationToAnOlderDeployment(t *testing.T) {
	db := openBootstrapped(t)
	mutate(t, db, "DELETE FROM reverse_activation; DELETE FROM reverse_generation")
	if _, err := db.ReverseGeneration(t.Context()); !errors.Is(err, ErrNotBootstrapped) {
		t.Errorf("before: %v", err)
	}
	c := topology.DefaultConfig()
	c.LikerPartitions, c.ReverseShards = 3, 5
	if err := db.Bootstrap(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	g, err := db.ReverseGeneration(t.Context())
	if want := topology.NewReverseGeneration(1, 3, 5); err != nil || g != want {
		t.Errorf("%+v, %v, want %+v", g, err, want)
	}
}

func TestReadingBeforeMigration(t *testing.T) {
	db, err := Open(t.Context(), testenv.Postgres(t))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	_, err = db.ShardMap(t.Context())
	checkNames(t, err, []string{"schema is missing", "tidemark schema migrate"})
}

func TestOpenWithoutADatabase(t *testing.T) {
	_, err := Open(context.Background(), "postgres://127.0.0.1:1/none?connect_timeout=2")
	checkNames(t, err, []string{"control database: connecting"})
	_, err = Open(context.Background(), "postgres://%zz")
	checkNames(t, err, []string{"control database: reading its URL"})
}

func checkNames(t *testing.T, err error, want []string) {
	t.Helper()
	if len(want) == 0 {
		if err != nil {
			t.Fatal(err)
		}
		return
	}
	if err == nil {
		t.Fatalf("no error, want one that names %q", want)
	}
	for _, w := range want {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error %q does not name %q", err, w)
		}
	}
}
