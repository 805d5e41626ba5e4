package drills

import "time"

// Catalogue lists every drill.
func Catalogue() []Drill { return append(projectionDrills(), systemDrills()...) }

func one(names ...string) [][]string { return [][]string{names} }

// few relations: most change while an owner is paused, so that its late record
// stands behind a newer one of the same key, and some do not change again
// before the end, so that nothing but a repair mends that.
var few = Cell{Relations: 4000}

// many relations, most of which do not change again: what is lost stays lost.
var many = Cell{Relations: 60_000, Rate: 2000}

func projectionDrills() []Drill {
	all := []Drill{
		{Name: "kill", About: "kill -9 of members at random times", Lanes: one("kill"), Rounds: 20, Rows: []string{"G04", "S08", "K07"}},
		{Name: "kill-burst", About: "kill -9 of members right after their first record", Lanes: one("kill-burst"), Rounds: 15, Cell: Cell{Members: 1}, Rows: []string{"G04", "G25"}},
		{Name: "kill-slow", About: "kill -9 of members whose writes are acked up to a second late", Lanes: one("kill"), Rounds: 6, Cell: Cell{SlowAcks: 500 * time.Millisecond}, Rows: []string{"G04"}},
		{Name: "kill-recovery", About: "kill -9 of members that read their tables' logs", Lanes: one("kill-recovery"), Rounds: 8, Rows: []string{"G12", "G19"}},
		{Name: "kill-rebalance", About: "kill -9 of members while partitions move", Lanes: one("kill-rebalance"), Rounds: 4, Cell: Cell{Members: 3}, Rows: []string{"G01", "G22"}},
		{Name: "kill-stopping", About: "kill -9 of members that stop gracefully", Lanes: one("kill-stopping"), Rounds: 15, Rows: []string{"G02", "G22"}},
		{Name: "zombie", About: "owners paused past their session, with successors running", Lanes: one("zombie"), Rounds: 4, Cell: few, Rows: []string{"S05"}},
		{Name: "late-append", About: "records of a paused owner in the changelogs of running ones", Lanes: one("late-append"), Rounds: 3, Cell: Cell{Relations: 20_000}, Rows: []string{"S05"}},
		{Name: "standby-late", About: "the same, with warm copies, and kills that move partitions", Lanes: one("late-append", "kill", "kill", "kill"), Rounds: 2, Cell: Cell{Relations: 20_000, HotStandby: true}},
		{Name: "wipe-state", About: "local stores gone between restarts", Lanes: one("wipe-state"), Rounds: 6, Rows: []string{"K06"}},
		{Name: "old-state", About: "local stores restored to an older copy between restarts", Lanes: one("old-state"), Rounds: 6, Rows: []string{"K07"}},
		{Name: "disk-full", About: "the state directory takes no more", Lanes: one("disk-full"), Rounds: 3, Cell: Cell{Disk: 48 << 20}},
		{Name: "rolling-restart", About: "graceful restarts of 3 of 6 members one by one, static membership", Lanes: one("restart"), Rounds: 4, Cell: Cell{Members: 6, Session: 10 * time.Second}, Rows: []string{"G22", "C02"}},
		{Name: "churn", About: "members come and go", Lanes: one("churn"), Rounds: 6, Cell: Cell{Members: 2}, Rows: []string{"G01", "S05"}},
		{Name: "two-versions", About: "members of two versions side by side, rolled forward and back, with kills and pauses", Rounds: 2, Cell: Cell{Members: 4, Relations: 4000, OtherVersion: true}, Rows: []string{"G18"}, Lanes: [][]string{
			{"upgrade", "downgrade"}, {"kill", "kill-burst", "zombie"},
		}},
		{Name: "hot-standby", About: "kills and pauses with warm copies on the other members", Lanes: one("kill", "kill", "zombie"), Rounds: 3, Cell: Cell{HotStandby: true, Relations: 4000}},

		{Name: "broker-stop", About: "the broker stands still for up to 30 s under load", Lanes: one("broker-stop"), Rounds: 3, Rows: []string{"G02", "G28", "S03"}},
		{Name: "broker-restart", About: "the broker is restarted and killed under load", Lanes: one("broker-restart", "broker-kill"), Rounds: 4, Rows: []string{"G09", "G28", "S11"}},
		{Name: "broker-of-three", About: "one broker of three killed under load: leaders and coordinators move, and back", Rounds: 4, Cell: Cell{Brokers: 3}, Rows: []string{"G09", "G28", "S11"}, Lanes: [][]string{{"broker-of-three"}, {"kill"}}},
		{Name: "broker-slow", About: "a slow broker, four times the rate, bounded memory", Lanes: one("broker-slow"), Rounds: 1, Rows: []string{"S04"}},
		{Name: "broker-slow-long", About: "a slow broker for three minutes, four times the rate, bounded memory", Lanes: one("broker-slow"), Rounds: 1, Cell: Cell{Slow: 3 * time.Minute}, Rows: []string{"S04"}},
		{Name: "produce-errors", About: "writes answered with errors, retriable or not", Lanes: one("produce-error"), Rounds: 12, Rows: []string{"G05", "S01", "S03", "S09", "K05"}},
		{Name: "group-errors", About: "commits and heartbeats answered with errors", Lanes: one("group-error"), Rounds: 8, Rows: []string{"S05", "S11"}},
		{Name: "fetch-errors", About: "reads answered with errors", Lanes: one("fetch-error"), Rounds: 8, Rows: []string{"G09"}},
		{Name: "lost-acks", About: "writes done whose answer never comes", Lanes: one("lost-ack", "cut"), Rounds: 10, Rows: []string{"S01", "S09", "K10"}},
		{Name: "stall", About: "no packet gets through for up to 40 s", Lanes: one("stall"), Rounds: 2, Rows: []string{"G08"}},
		{Name: "message-too-large", About: "an output takes no batch any more, then does again", Lanes: one("message-too-large"), Rounds: 3, Rows: []string{"G05"}},
		{Name: "log-truncated", About: "the changelog starts after what the local store has seen", Lanes: one("log-truncated"), Rounds: 2, Cell: Cell{Members: 1}, Rows: []string{"G15"}},
		{Name: "offset-ahead", About: "local offsets above the end of a log that lost its newest records", Lanes: one("offset-ahead"), Rounds: 2, Rows: []string{"G14", "G16"}},
		{Name: "compaction", About: "compacted changelogs, read again from their start", Lanes: one("compact", "kill"), Rounds: 4, Rows: []string{"S06"}},
		{Name: "topic-recreated", About: "the changelog deleted and made anew", Lanes: one("table-recreated"), Rounds: 1, Cell: many, Rows: []string{"G14"}},
		{Name: "display-recreated", About: "the display table deleted and made anew", Lanes: one("display-recreated"), Rounds: 1, Cell: many, Rows: []string{"G14"}},
		{Name: "input-recreated", About: "the input deleted and made anew", Lanes: one("input-recreated"), Rounds: 1, Rows: []string{"G14"}},

		{Name: "poison", About: "one record in twenty cannot be used, with kills", Lanes: one("kill"), Rounds: 4, Cell: Cell{Poison: 0.05}, Rows: []string{"G03", "G06"}},
		{Name: "duplicates", About: "half of all records come twice, with kills", Lanes: one("kill"), Rounds: 4, Cell: Cell{Duplicates: 0.5}},
		{Name: "storm", About: "everything, at random, members and broker at once", Random: true, Rounds: 12, Cell: Cell{Members: 3, Relations: 2000}, Lanes: [][]string{
			{"kill", "kill", "kill-burst", "kill-recovery", "kill-stopping", "zombie", "wipe-state", "old-state", "disk-full", "kill-rebalance"},
			{"produce-error", "produce-error", "lost-ack", "cut", "group-error", "fetch-error", "broker-stop", "broker-restart", "broker-kill", "stall"},
		}},
	}
	for i := range all {
		all[i].Bench = Projection
	}
	return all
}

// everything over HTTP costs more per change.
var whole = Cell{Rate: 200}

// paged lists are read all the time.
var (
	paged     = Cell{Rate: 200, Likers: 2, Readers: 6}
	pagedWarm = Cell{Rate: 200, Likers: 3, Readers: 6, HotStandby: true}
)

// A proxy before the API loses answers, and remembers what was answered.
var answersLost = Cell{Rate: 200, LossyAPI: true}

// restarted is PostgreSQL gone and back in each way, and answers lost meanwhile.
var restarted = [][]string{{"postgres-restart", "postgres-crash", "postgres-cut"}, {"lose-answers"}}

// A whole system with a Redis, of which each sort is.
var (
	withRedis   = Cell{Rate: 100, Redis: OneRedis}
	withReplica = Cell{Rate: 100, Redis: ReplicatedRedis}
	withCluster = Cell{Rate: 100, Redis: ClusteredRedis}
	overloaded  = Cell{Rate: 100, Redis: OneRedis, Overload: true}
)

func systemDrills() []Drill {
	all := []Drill{
		{Name: "kill-every-role", About: "kill -9 of every process of a whole system", Lanes: one("kill-every-role", "kill-all"), Rounds: 1, Rows: []string{"G11", "D11", "D26"}},
		{Name: "kill-roles", About: "kill -9 of processes of a whole system at random times", Lanes: one("kill-role"), Rounds: 12, Rows: []string{"D02", "D26"}},
		{Name: "pause-roles", About: "processes of a whole system paused, and restarted gracefully", Lanes: one("pause-role", "restart-role"), Rounds: 3, Rows: []string{"C02", "D12"}},
		{Name: "postgres-restart", About: "PostgreSQL restarted under load", Lanes: one("postgres-restart"), Rounds: 2, Rows: []string{"D11"}},
		{Name: "postgres-cut", About: "every connection to PostgreSQL ended", Lanes: one("postgres-cut"), Rounds: 3, Rows: []string{"C04"}},
		{Name: "postgres-crash", About: "PostgreSQL recovers from a crash under load", Lanes: one("postgres-crash"), Rounds: 2},
		{Name: "walsender-killed", About: "the change feed's walsenders ended", Lanes: one("walsender-killed"), Rounds: 4, Rows: []string{"C04", "D26"}},
		{Name: "system-broker", About: "a whole system whose broker stops, dies, stands still, loses answers", Lanes: one("system-broker", "system-connection"), Rounds: 3, Rows: []string{"C01", "G02", "G28"}},
		{Name: "rebalance-while-paging", About: "likers processes join, leave and restart while readers page through hot lists: everybody who stays is told once", Lanes: one("likers-join", "likers-leave", "likers-restart"), Rounds: 2, Cell: paged},
		{Name: "kill-likers", About: "kill -9 of likers processes while readers page through hot lists: everybody who stays is told once", Lanes: one("likers-kill", "likers-away", "likers-kill", "likers-kill-all"), Rounds: 2, Cell: paged},
		{Name: "standby-while-paging", About: "the same, with warm copies that answer while owners are away", Lanes: one("likers-away", "likers-kill"), Rounds: 2, Cell: pagedWarm},
		{Name: "lost-response", About: "requests and answers of the API lost, cut and doubled under load: each command is decided once", Lanes: one("lose-answers"), Rounds: 3, Cell: answersLost},
		{Name: "db-restart", About: "PostgreSQL restarted, crashed and cut off while requests and answers of the API are lost: each command is decided once, and none that was answered is gone", Lanes: restarted, Rounds: 3, Cell: answersLost, Rows: []string{"D11"}},
		{Name: "db-failover", About: "a synchronous standby takes over while requests and answers of the API are lost: the same", Lanes: [][]string{{"failover"}, {"lose-answers"}}, Rounds: 2, Cell: answersLost, Rows: []string{"D09"}},
		{Name: "drop-slot", About: "a replication slot dropped under load: what is missing is named exactly, then healed", Lanes: one("drop-slot"), Rounds: 2, Rows: []string{"D08"}},
		{Name: "alter-publication", About: "the publication leaves the outbox out under load: named, then healed", Lanes: one("alter-publication"), Rounds: 2},
		{Name: "delete-outbox-row", About: "outbox rows deleted by hand, also before the feed brought them: named, then healed", Lanes: one("delete-outbox-rows"), Rounds: 2},
		{Name: "truncate-cdc", About: "the broker loses records of cdc before intake has read them: named, then healed", Lanes: one("truncate-cdc"), Rounds: 2},
		{Name: "failover", About: "a synchronous standby without the slots takes over under load: named, then healed", Lanes: one("failover"), Rounds: 2, Rows: []string{"D09"}},
		{Name: "failover-behind", About: "a standby that lacks the newest commits takes over under load: counted facts are gone, which is named, then healed", Lanes: one("failover-behind"), Rounds: 2, Rows: []string{"D09"}},
		{Name: "redis-stop", About: "Redis stands still under load", Lanes: one("redis-stop"), Rounds: 2, Cell: withRedis},
		{Name: "redis-kill", About: "kill -9 of Redis under load: it comes back with nothing", Lanes: one("redis-kill"), Rounds: 2, Cell: withRedis},
		{Name: "redis-flush", About: "Redis emptied under load", Lanes: one("redis-flush"), Rounds: 2, Cell: withRedis},
		{Name: "redis-slow", About: "every answer of Redis 2 s late", Lanes: one("redis-slow"), Rounds: 2, Cell: withRedis},
		{Name: "redis-full", About: "Redis takes no more under load (maxmemory, noeviction)", Lanes: one("redis-full"), Rounds: 2, Cell: withRedis},
		{Name: "redis-evict", About: "Redis forgets what it likes to under load (maxmemory, allkeys-lru)", Lanes: one("redis-evict"), Rounds: 2, Cell: withRedis},
		{Name: "redis-failover", About: "a replica that lacks the last writes takes over from a killed Redis", Lanes: one("redis-failover"), Rounds: 2, Cell: withReplica},
		{Name: "redis-slot-move", About: "slots of a Redis Cluster of three moved while they are written", Lanes: one("redis-slot-move"), Rounds: 2, Cell: withCluster},
		{Name: "redis-late-task", About: "old versions handed in while an emptied Redis is filled again, and after", Lanes: one("redis-late-task"), Rounds: 2, Cell: withRedis},
		{Name: "redis-old-generation", About: "a writer wakes, and tasks come, whose cache generation has ended", Lanes: one("redis-old-generation"), Rounds: 1, Cell: withRedis},
		{Name: "redis-floor-kill", About: "kill -9 of those who keep the cache, between floor and Redis too, again and again", Lanes: one("redis-floor-kill"), Rounds: 2, Cell: withRedis},
		{Name: "redis-cut", About: "connections to Redis cut within a pipeline, which is done in part and again", Lanes: one("redis-cut"), Rounds: 2, Cell: withRedis},
		{Name: "redis-storm", About: "everything to Redis and to those who keep it and read it, at random", Random: true, Rounds: 6, Cell: withRedis, Lanes: [][]string{
			{"redis-stop", "redis-kill", "redis-flush", "redis-slow", "redis-full", "redis-evict", "redis-cut", "redis-late-task"},
			{"kill-role", "kill-role", "restart-role"},
		}},
		{Name: "overload", About: "every level of overload under load, by an operator, by a shard that stands still and by a lost Redis: each does what it says, and goes", Lanes: one("overload-levels", "overload-rise", "overload-redis"), Rounds: 1, Cell: overloaded},
		{Name: "switch-feed", About: "from the built-in emitter to Debezium and back under load; needs a real Kafka and a Connect worker", Lanes: one("switch-feed"), Rounds: 2, Rows: []string{"D26"}},
		{Name: "system-storm", About: "everything to a whole system, at random", Random: true, Rounds: 10, Lanes: [][]string{
			{"kill-role", "kill-role", "kill-all", "pause-role", "restart-role"},
			{"postgres-restart", "postgres-cut", "postgres-crash", "walsender-killed", "system-broker", "system-connection"},
		}},
	}
	for i := range all {
		all[i].Bench = System
		if all[i].Cell == (Cell{}) {
			all[i].Cell = whole
		}
	}
	return all
}
