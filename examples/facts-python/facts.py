"""Reads the stream facts into an SQLite file, and prints each relation as it is by then.

Of each (kind, target, user) the highest version and its state are kept. A record that comes twice,
late or out of order changes nothing. Offsets are written in the same transaction as what they stand
for, so a kill at any point loses nothing and the next start goes on from there.

    python facts.py 127.0.0.1:9092 tidemark.facts facts.db
"""

import sqlite3
import sys

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition
from google.protobuf.message import DecodeError

from tidemark.v1 import records_pb2

SCHEMA = """
CREATE TABLE IF NOT EXISTS relation (
    kind INTEGER, target TEXT, user TEXT, version INTEGER NOT NULL, state INTEGER NOT NULL,
    PRIMARY KEY (kind, target, user)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS position (topic TEXT, partition INTEGER, next INTEGER NOT NULL, PRIMARY KEY (topic, partition));
"""

# The guard is in the statement: a version that is not higher changes no row.
UPSERT = """
INSERT INTO relation (kind, target, user, version, state) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (kind, target, user) DO UPDATE SET version = excluded.version, state = excluded.state
WHERE excluded.version > relation.version
"""

APPLIED, OLD, UNUSABLE = "applied", "old", "unusable"


def apply(db, value):
    """Takes a record's value. Its key, headers and offset say nothing that is needed here."""
    if value is None:
        return UNUSABLE  # tidemark writes no tombstones; a foreign one deletes nothing
    change = records_pb2.RelationChange()
    try:
        change.ParseFromString(value)  # fields of later versions are skipped
    except DecodeError:
        return UNUSABLE
    # Numbers, not names: a kind or state of a later version is kept as it is.
    row = (change.kind, change.target_id, change.user_id, change.relation_version, change.state)
    if not all(row) or change.relation_version >= 1 << 63:  # SQLite's integers end there
        return UNUSABLE
    return APPLIED if db.execute(UPSERT, row).rowcount else OLD


def name(enum, number, prefix):
    value = enum.DESCRIPTOR.values_by_number.get(number)
    return value.name.removeprefix(prefix) if value else str(number)


def lines(db):
    """Every relation as "kind target user version state", sorted, with tabs in between."""
    return sorted(
        "\t".join((
            name(records_pb2.Kind, kind, "KIND_").lower(), target, user, str(version), name(records_pb2.State, state, "STATE_"),
        ))
        for kind, target, user, version, state in db.execute("SELECT kind, target, user, version, state FROM relation")
    )


def read(db, brokers, topic):
    """Reads from where the file ends to where the topic ended when this began."""
    consumer = Consumer({
        "bootstrap.servers": brokers,
        "group.id": "facts-example",  # the client asks for one; offsets are kept in the file
        "enable.auto.commit": False,
        "auto.offset.reset": "error",  # retention has passed what was not read: say so, never skip
        "allow.auto.create.topics": False,
        "enable.metrics.push": False,
    })
    counts = {APPLIED: 0, OLD: 0, UNUSABLE: 0}
    try:
        described = consumer.list_topics(topic, timeout=10).topics[topic]
        if described.error:
            raise KafkaException(described.error)
        ends, begin = {}, []
        for partition in described.partitions:
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=10)
            row = db.execute("SELECT next FROM position WHERE topic = ? AND partition = ?", (topic, partition)).fetchone()
            if row and row[0] < low:
                raise SystemExit(f"partition {partition}: offsets {row[0]}..{low - 1} are gone before they were read")
            if (row[0] if row else low) < high:
                ends[partition] = high
                begin.append(TopicPartition(topic, partition, row[0] if row else OFFSET_BEGINNING))
        consumer.assign(begin)
        while ends:
            records = consumer.consume(1000, timeout=1)
            with db:  # one transaction: what was read, and how far
                for r in records:
                    if r.error():
                        raise KafkaException(r.error())
                    outcome = apply(db, r.value())
                    counts[outcome] += 1
                    if outcome == UNUSABLE:
                        print(f"not usable: partition {r.partition()}, offset {r.offset()}", file=sys.stderr)
                    db.execute(
                        "INSERT INTO position VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET next = excluded.next",
                        (topic, r.partition(), r.offset() + 1),
                    )
                    if r.offset() + 1 >= ends.get(r.partition(), float("inf")):
                        del ends[r.partition()]
    finally:
        consumer.close()
    return counts


def main():
    if len(sys.argv) != 4:
        sys.exit("usage: facts.py BROKERS TOPIC FILE, such as: facts.py 127.0.0.1:9092 tidemark.facts facts.db")
    _, brokers, topic, file = sys.argv
    db = sqlite3.connect(file)
    db.executescript(SCHEMA)
    counts = read(db, brokers, topic)
    sys.stdout.reconfigure(encoding="utf-8")
    for line in lines(db):
        print(line)
    print(counts, file=sys.stderr)


if __name__ == "__main__":
    main()
