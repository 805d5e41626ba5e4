package example;

import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.EnumMap;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Reads the stream facts from its start to where it ended when this began, and prints each relation
 * as it is by then.
 *
 * <p>There is no consumer group: the state is in memory, so it is read anew by each start. A reader
 * that keeps its state in a database commits offsets in the same transaction, see facts-python.
 */
public final class Facts {
  public static void main(String[] args) throws Exception {
    if (args.length != 2) {
      System.err.println("usage: Facts BROKERS TOPIC, such as: Facts 127.0.0.1:9092 tidemark.facts");
      System.exit(2);
    }
    Properties p = new Properties();
    p.put(ConsumerConfig.BOOTSTRAP_SERVERS_CONFIG, args[0]);
    p.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "none"); // never skip: below, positions are set by hand
    p.put(ConsumerConfig.ENABLE_AUTO_COMMIT_CONFIG, "false");
    p.put(ConsumerConfig.ALLOW_AUTO_CREATE_TOPICS_CONFIG, "false");
    Relations relations = new Relations();
    Map<Relations.Outcome, Integer> outcomes = new EnumMap<>(Relations.Outcome.class);
    ByteArrayDeserializer bytes = new ByteArrayDeserializer();
    try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(p, bytes, bytes)) {
      Set<TopicPartition> partitions = consumer.partitionsFor(args[1]).stream()
          .map(i -> new TopicPartition(i.topic(), i.partition())).collect(Collectors.toSet());
      consumer.assign(partitions);
      consumer.seekToBeginning(partitions);
      Map<TopicPartition, Long> ends = consumer.endOffsets(partitions);
      while (ends.entrySet().stream().anyMatch(e -> consumer.position(e.getKey()) < e.getValue())) {
        for (ConsumerRecord<byte[], byte[]> r : consumer.poll(Duration.ofSeconds(1))) {
          Relations.Outcome outcome = relations.apply(r.value());
          outcomes.merge(outcome, 1, Integer::sum);
          if (outcome == Relations.Outcome.UNUSABLE) {
            System.err.println("not usable: partition " + r.partition() + ", offset " + r.offset());
          }
        }
      }
    }
    PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
    out.print(relations.print());
    out.flush();
    System.err.println(outcomes);
  }
}
