import java.util.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.serialization.*;

/**
 * Writes values that replace each other, by idempotent producers that come and go: compaction leaves empty batches of
 * theirs behind. Arguments: bootstrap, topic, producers, records of each.
 */
class Compacted {
    public static void main(String[] args) throws Exception {
        for (int i = 0; i < Integer.parseInt(args[2]); i++) {
            Properties p = new Properties();
            p.put("bootstrap.servers", args[0]);
            p.put("enable.idempotence", "true");
            p.put("linger.ms", "5");
            try (KafkaProducer<String, String> producer = new KafkaProducer<>(p, new StringSerializer(), new StringSerializer())) {
                for (int r = 0; r < Integer.parseInt(args[3]); r++) {
                    producer.send(new ProducerRecord<>(args[1], 0, "k" + r % 3, "v" + i + "-" + r));
                    if (r % 20 == 19) producer.flush();
                }
            }
        }
    }
}
