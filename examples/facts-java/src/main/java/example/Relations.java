package example;

import com.google.protobuf.InvalidProtocolBufferException;
import java.util.HashMap;
import java.util.Map;
import java.util.TreeSet;
import tidemark.v1.Records.Kind;
import tidemark.v1.Records.RelationChange;
import tidemark.v1.Records.State;

/**
 * What a reader of facts keeps: of each (kind, target, user) the highest version and its state.
 *
 * <p>Applying a record twice, late or out of order changes nothing, so it does not matter from where
 * reading goes on after a restart, as long as nothing is left out.
 */
final class Relations {
  record Key(int kind, String target, String user) {}

  /** version is unsigned. */
  record Value(long version, int state) {}

  enum Outcome {
    APPLIED,
    OLD,
    UNUSABLE
  }

  private final Map<Key, Value> all = new HashMap<>();

  /**
   * Takes a record's value. Its key, headers and offset say nothing that is needed here: versions
   * alone order a relation's facts.
   */
  Outcome apply(byte[] value) {
    if (value == null) {
      return Outcome.UNUSABLE; // tidemark writes no tombstones; a foreign one deletes nothing
    }
    RelationChange change;
    try {
      change = RelationChange.parseFrom(value); // fields of later versions are skipped
    } catch (InvalidProtocolBufferException e) {
      return Outcome.UNUSABLE;
    }
    // Numbers, not enums: a kind or state of a later version is kept as it is.
    Key key = new Key(change.getKindValue(), change.getTargetId(), change.getUserId());
    Value next = new Value(change.getRelationVersion(), change.getStateValue());
    if (key.kind == 0 || key.target.isEmpty() || key.user.isEmpty() || next.version == 0 || next.state == 0) {
      return Outcome.UNUSABLE;
    }
    Value have = all.get(key);
    if (have != null && Long.compareUnsigned(next.version, have.version) <= 0) {
      return Outcome.OLD;
    }
    all.put(key, next);
    return Outcome.APPLIED;
  }

  /** Every relation as a line "kind target user version state", sorted, with tabs in between. */
  String print() {
    TreeSet<String> lines = new TreeSet<>();
    all.forEach((k, v) -> lines.add(
        kind(k.kind) + "\t" + k.target + "\t" + k.user + "\t" + Long.toUnsignedString(v.version) + "\t" + state(v.state) + "\n"));
    return String.join("", lines);
  }

  private static String kind(int number) {
    Kind k = Kind.forNumber(number);
    return k == null ? Integer.toString(number) : k.name().substring("KIND_".length()).toLowerCase();
  }

  private static String state(int number) {
    State s = State.forNumber(number);
    return s == null ? Integer.toString(number) : s.name().substring("STATE_".length());
  }
}
