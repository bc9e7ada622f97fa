import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HexFormat;
import org.apache.kafka.clients.producer.internals.BuiltInPartitioner;

/** Prints the partition that Java's producer takes for each key of a file, one in hexadecimal a line. */
public class Partitions {
    public static void main(String[] args) throws Exception {
        int partitions = Integer.parseInt(args[1]);
        StringBuilder out = new StringBuilder();
        for (String line : Files.readAllLines(Path.of(args[0]))) {
            out.append(BuiltInPartitioner.partitionForKey(HexFormat.of().parseHex(line), partitions)).append('\n');
        }
        System.out.print(out);
    }
}
