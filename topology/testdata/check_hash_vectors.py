#!/usr/bin/env python3
"""Check hash_vectors.json without any of tidemark's code.

    pip install xxhash && python3 check_hash_vectors.py [hash_vectors.json]

A client in another language is compatible when it gives the same numbers:

  slot       ids -> lp1 bytes (each id: its length in bytes as an unsigned
             LEB128 varint, then its UTF-8 bytes) -> xxh64 with the contract's
             seed -> modulo the contract's modulus
  partition  a key that begins with four lower-case hex digits and "|" names
             its partition; any other key goes to
             (murmur2(UTF-8 bytes) & 0x7fffffff) mod partitions, as Kafka's
             Java clients do
  reverse    where generation 1 of the reverse index keeps a relation: the
             shard is the slot of the user under reverse-users-1; the
             partition is (the slot of kind and target under
             reverse-targets-1 + shard mod 4) mod 8
"""
import json
import pathlib
import re
import sys

import xxhash


def lp1(ids):
    out = bytearray()
    for text in ids:
        data = text.encode("utf-8")
        n = len(data)
        while n >= 0x80:
            out.append(n & 0x7F | 0x80)
            n >>= 7
        out.append(n)
        out += data
    return bytes(out)


def murmur2(data):
    m, mask = 0x5BD1E995, 0xFFFFFFFF
    h = 0x9747B28C ^ len(data)
    whole = len(data) & ~3
    for i in range(0, whole, 4):
        k = int.from_bytes(data[i : i + 4], "little") * m & mask
        k = (k ^ k >> 24) * m & mask
        h = (h * m & mask) ^ k
    tail = data[whole:]
    if tail:
        h = (h ^ int.from_bytes(tail, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return h ^ h >> 15


def partition(key, partitions):
    if re.match(r"[0-9a-f]{4}\|", key):
        return int(key[:4], 16)
    return (murmur2(key.encode("utf-8")) & 0x7FFFFFFF) % partitions


def main():
    here = pathlib.Path(__file__).with_name("hash_vectors.json")
    vectors = json.loads(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else here).read_text("utf-8"))
    wrong = 0

    def expect(what, got, want):
        nonlocal wrong
        if got != want:
            wrong += 1
            print(f"{what}: got {got}, the file says {want}")

    for v in vectors["slots"]:
        contract = vectors["contracts"][v["contract"]]
        data = lp1(v["ids"])
        h = xxhash.xxh64_intdigest(data, seed=int(contract["seed"], 16))
        what = f"{v['contract']} {v['ids']!r:.60}"
        expect(f"{what}: bytes", data.hex(), v["bytes"])
        expect(f"{what}: xxh64", f"{h:016x}", v["xxh64"])
        expect(f"{what}: slot", h % contract["modulus"], v["slot"])
    for v in vectors["partitions"]:
        h = murmur2(v["key"].encode("utf-8"))
        expect(f"{v['key']!r}: murmur2", h - (1 << 32) if h >> 31 else h, v["murmur2"])
        expect(f"{v['key']!r}: partition", partition(v["key"], v["partitions"]), v["partition"])
    for v in vectors["reverse"]:
        users, targets = vectors["contracts"]["reverse-users-1"], vectors["contracts"]["reverse-targets-1"]
        shard = xxhash.xxh64_intdigest(lp1([v["user"]]), seed=int(users["seed"], 16)) % users["modulus"]
        first = xxhash.xxh64_intdigest(lp1([v["kind"], v["target"]]), seed=int(targets["seed"], 16)) % targets["modulus"]
        what = f"{v['kind']} {v['target']!r} {v['user']!r}"
        expect(f"{what}: reverse shard", shard, v["shard"])
        expect(f"{what}: reverse partition", (first + shard % 4) % targets["modulus"], v["partition"])
    print(f"{len(vectors['slots'])} slots, {len(vectors['partitions'])} partitions and {len(vectors['reverse'])} reverse places checked, {wrong} wrong")
    return 3 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
