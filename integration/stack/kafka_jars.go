package stack

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

const kafkaVersion = "4.4.0"

// kafkaPOM names the broker, its tools and clients, and a logger. Maven brings what they need.
const kafkaPOM = `<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>onceward</groupId>
  <artifactId>test-kafka</artifactId>
  <version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>` + kafkaVersion + `</version></dependency>
    <dependency><groupId>org.apache.logging.log4j</groupId><artifactId>log4j-slf4j-impl</artifactId><version>2.25.1</version></dependency>
  </dependencies>
</project>
`

// KafkaLibs returns the folder of Kafka's jars, broker and Java clients, for tests that compile and run Java against them
// (`javac -cp 'LIBS/*'`). Java and the jars are installed if need be, in every mode.
func KafkaLibs(t testing.TB) string {
	t.Helper()
	libs, err := kafkaJars(context.Background())
	if err != nil {
		t.Fatalf("stack: %v", err)
	}
	return libs
}

// kafkaJars fetches the jars once per machine; later runs find them in the cache.
func kafkaJars(ctx context.Context) (string, error) {
	err := need{
		what:     "Kafka's Java",
		packages: []string{"openjdk-17-jdk-headless", "maven"},
		find:     onPath("java", "javac", "mvn"),
		instead:  "set ONCEWARD_TEST_KAFKA to host:port of a broker, or start Docker",
	}.ensure(ctx)
	if err != nil {
		return "", err
	}
	dir, err := fetched(ctx, "kafka-"+kafkaVersion, func(ctx context.Context, dir string) error {
		if err := os.WriteFile(filepath.Join(dir, "pom.xml"), []byte(kafkaPOM), 0o600); err != nil {
			return fmt.Errorf("write Kafka's pom.xml: %w", err)
		}
		return maven(ctx, dir, "dependency:copy-dependencies", "-DoutputDirectory=libs", "-DincludeScope=runtime")
	})
	return filepath.Join(dir, "libs"), err
}
