import java.time.Duration;
import java.util.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.common.serialization.*;

/**
 * A plain Java member of a group. Arguments: bootstrap, topic, group. Prints "assigned N" on every assignment, each
 * record's value and, when it fails, "failed" with the exception.
 */
class Member {
    public static void main(String[] args) {
        Properties c = new Properties();
        c.put("bootstrap.servers", args[0]);
        c.put("group.id", args[2]);
        c.put("auto.offset.reset", "earliest");
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(c, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(args[1]), new ConsumerRebalanceListener() {
                public void onPartitionsAssigned(Collection<org.apache.kafka.common.TopicPartition> partitions) {
                    System.out.println("assigned " + partitions.size());
                }
                public void onPartitionsRevoked(Collection<org.apache.kafka.common.TopicPartition> partitions) {}
            });
            while (true) {
                for (ConsumerRecord<String, String> r : consumer.poll(Duration.ofMillis(200))) System.out.println(r.value());
            }
        } catch (Exception e) {
            System.out.println("failed " + e);
        }
    }
}
