import java.time.Duration;
import java.util.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.*;

/**
 * Writes random transactions to topics of one partition, one topic a codec, and prints what Java's consumer makes of them
 * under read_committed. Arguments: bootstrap, steps, seed, and topic and codec for each. Output: a line
 * "topic offset value" for each record.
 */
class Transactions {
    public static void main(String[] args) {
        Random random = new Random(Long.parseLong(args[2]));
        for (int i = 3; i < args.length; i += 2) {
            write(args[0], args[i], args[i + 1], Integer.parseInt(args[1]), random);
            read(args[0], args[i]);
        }
    }

    static void write(String bootstrap, String topic, String codec, int steps, Random random) {
        List<KafkaProducer<String, String>> producers = new ArrayList<>();
        boolean[] open = new boolean[5];
        for (int i = 0; i < open.length; i++) {
            Properties p = new Properties();
            p.put("bootstrap.servers", bootstrap);
            p.put("compression.type", codec);
            p.put("linger.ms", "0");
            p.put("batch.size", "600"); // several batches a transaction
            if (i > 0) p.put("transactional.id", topic + "-" + i); // the first one writes without transactions
            producers.add(new KafkaProducer<>(p, new StringSerializer(), new StringSerializer()));
            if (i > 0) producers.get(i).initTransactions();
        }
        int n = 0;
        for (int step = 0; step < steps; step++) {
            int i = random.nextInt(open.length);
            KafkaProducer<String, String> producer = producers.get(i);
            if (i > 0 && !open[i]) {
                producer.beginTransaction();
                open[i] = true;
            }
            if (i > 0 && random.nextInt(3) == 0) {
                end(producer, random);
                open[i] = false;
                continue;
            }
            for (int r = random.nextInt(6); r >= 0; r--) {
                producer.send(new ProducerRecord<>(topic, 0, "k" + random.nextInt(10), "v" + n++ + "-" + "x".repeat(random.nextInt(200))));
            }
            producer.flush();
        }
        for (int i = 0; i < open.length; i++) {
            if (open[i]) end(producers.get(i), random);
            producers.get(i).close();
        }
    }

    static void read(String bootstrap, String topic) {
        Properties c = new Properties();
        c.put("bootstrap.servers", bootstrap);
        c.put("isolation.level", "read_committed");
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(c, new StringDeserializer(), new StringDeserializer())) {
            TopicPartition partition = new TopicPartition(topic, 0);
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            long last = consumer.endOffsets(List.of(partition)).get(partition);
            while (consumer.position(partition) < last) {
                for (ConsumerRecord<String, String> r : consumer.poll(Duration.ofSeconds(1))) {
                    System.out.println(topic + " " + r.offset() + " " + r.value());
                }
            }
        }
    }

    static void end(KafkaProducer<String, String> producer, Random random) {
        if (random.nextBoolean()) producer.commitTransaction(); else producer.abortTransaction();
    }
}
