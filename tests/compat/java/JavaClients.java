import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** What Kafka's Java clients do with a broker. The second argument lists the group protocols. */
public class JavaClients {
  private static final TopicPartition FIRST = new TopicPartition("orders", 0);
  private static String servers;

  public static void main(String[] args) throws Exception {
    servers = args[0];
    try (Admin admin = Admin.create(Map.of("bootstrap.servers", servers))) {
      topics(admin);
      records(admin, args[1].split(","));
      transactions(admin);
    }
    System.out.println("done");
  }

  private static void topics(Admin admin) throws Exception {
    equal(1, admin.describeCluster().nodes().get().size(), "nodes");
    admin.createTopics(List.of(new NewTopic("orders", 2, (short) 1))).all().get();
    try {
      admin.createTopics(List.of(new NewTopic("orders", 2, (short) 1))).all().get();
      throw new AssertionError("created twice");
    } catch (ExecutionException error) {
      equal(TopicExistsException.class, error.getCause().getClass(), "created twice");
    }
    admin.createPartitions(Map.of("orders", NewPartitions.increaseTo(3))).all().get();
    int partitions = admin.describeTopics(List.of("orders")).topicNameValues()
        .get("orders").get().partitions().size();
    equal(3, partitions, "partitions");
    ConfigResource topic = new ConfigResource(ConfigResource.Type.TOPIC, "orders");
    ConfigEntry entry = new ConfigEntry("retention.ms", "3600000");
    AlterConfigOp change = new AlterConfigOp(entry, AlterConfigOp.OpType.SET);
    admin.incrementalAlterConfigs(Map.of(topic, List.of(change))).all().get();
    String value = admin.describeConfigs(List.of(topic)).all().get()
        .get(topic).get("retention.ms").value();
    equal("3600000", value, "retention.ms");
  }

  private static void records(Admin admin, String[] protocols) throws Exception {
    Set<String> sent = new TreeSet<>();
    for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd")) {
      try (KafkaProducer<String, String> producer = producer("compression.type", codec)) {
        for (int number = 0; number < 10; number++) {
          String text = codec + number;
          producer.send(new ProducerRecord<>("orders", number % 3, "key", text)).get();
          sent.add(text);
        }
      }
    }
    for (String protocol : protocols) {
      String group = "group-" + protocol;
      equal(sent, new TreeSet<>(consumed(group, protocol, "orders", 50)), protocol);
      equal(1, admin.describeConsumerGroups(List.of(group)).all().get().size(), group);
      long committed = admin.listConsumerGroupOffsets(group)
          .partitionsToOffsetAndMetadata().get().get(FIRST).offset();
      equal(20L, committed, "committed");
      admin.deleteConsumerGroups(List.of(group)).all().get();
    }
    admin.deleteRecords(Map.of(FIRST, RecordsToDelete.beforeOffset(5))).all().get();
    long start = admin.listOffsets(Map.of(FIRST, OffsetSpec.earliest())).all().get()
        .get(FIRST).offset();
    equal(5L, start, "start after deleting records");
  }

  private static void transactions(Admin admin) throws Exception {
    admin.createTopics(List.of(new NewTopic("payments", 1, (short) 1))).all().get();
    try (KafkaProducer<String, String> zombie = producer("transactional.id", "till")) {
      zombie.initTransactions();
      for (int number = 0; number < 4; number++) {
        zombie.beginTransaction();
        zombie.send(new ProducerRecord<>("payments", "payment" + number)).get();
        Map<TopicPartition, OffsetAndMetadata> read =
            Map.of(FIRST, new OffsetAndMetadata(5 + number));
        zombie.sendOffsetsToTransaction(read, new ConsumerGroupMetadata("tills"));
        if (number % 2 == 0) {
          zombie.commitTransaction();
        } else {
          zombie.abortTransaction();
        }
      }
      zombie.beginTransaction();
      zombie.send(new ProducerRecord<>("payments", "lost")).get();
      producer("transactional.id", "till").initTransactions();
      try {
        zombie.send(new ProducerRecord<>("payments", "lost")).get();
        throw new AssertionError("not fenced");
      } catch (ExecutionException error) {
        boolean isFenced = error.getCause() instanceof InvalidProducerEpochException
            || error.getCause() instanceof ProducerFencedException;
        equal(true, isFenced, "fenced by " + error.getCause());
      }
      zombie.close(Duration.ZERO);
    }
    equal(List.of("payment0", "payment2"), consumed("read", null, "payments", 2), "committed");
    long offset = admin.listConsumerGroupOffsets("tills")
        .partitionsToOffsetAndMetadata().get().get(FIRST).offset();
    equal(7L, offset, "offset of the last commit");
    equal(1, admin.listTransactions().all().get().size(), "transactional ids");
  }

  private static KafkaProducer<String, String> producer(String setting, String value) {
    Map<String, Object> config = new HashMap<>();
    config.put("bootstrap.servers", servers);
    config.put("key.serializer", StringSerializer.class);
    config.put("value.serializer", StringSerializer.class);
    config.put(setting, value);
    return new KafkaProducer<>(config);
  }

  private static List<String> consumed(String group, String protocol, String topic, int count) {
    Map<String, Object> config = new HashMap<>();
    config.put("bootstrap.servers", servers);
    config.put("key.deserializer", StringDeserializer.class);
    config.put("value.deserializer", StringDeserializer.class);
    config.put("auto.offset.reset", "earliest");
    config.put("isolation.level", "read_committed");
    config.put("group.id", group);
    if (protocol != null) {
      config.put("group.protocol", protocol);
    }
    List<String> values = new ArrayList<>();
    long end = System.currentTimeMillis() + 30_000;
    try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(config)) {
      consumer.subscribe(List.of(topic));
      while (values.size() < count && System.currentTimeMillis() < end) {
        for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(200))) {
          values.add(record.value());
        }
      }
      consumer.commitSync();
    }
    return values;
  }

  private static void equal(Object expected, Object found, String what) {
    if (!expected.equals(found)) {
      throw new AssertionError(what + ": expected " + expected + ", found " + found);
    }
  }
}
