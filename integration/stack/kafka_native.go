package stack

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
)

// nativeKafka formats a data folder and makes the process that will serve it.
func nativeKafka(ctx context.Context) (*kafkaBroker, error) {
	libs, err := kafkaJars(ctx)
	if err != nil {
		return nil, err
	}
	dir, err := held.folder("kafka")
	if err != nil {
		return nil, err
	}
	ports, err := reserveKafkaPorts()
	if err != nil {
		return nil, err
	}
	certs, err := newCertificates()
	if err != nil {
		return nil, err
	}
	properties := filepath.Join(dir, "server.properties")
	logging := filepath.Join(dir, "log4j2.properties")
	for file, content := range map[string][]byte{
		properties:                         []byte(kafkaProperties(dir, "127.0.0.1", ports)),
		logging:                            []byte(kafkaLogging),
		filepath.Join(dir, "keystore.pem"): certs.keystore,
		filepath.Join(dir, "ca.pem"):       certs.ca,
	} {
		if err := os.WriteFile(file, content, 0o600); err != nil {
			return nil, fmt.Errorf("write Kafka's configuration: %w", err)
		}
	}
	java := javaCommand(filepath.Join(libs, "*"), logging)
	var self *account
	if err := self.run(ctx, dir, slices.Concat(java, kafkaFormat(properties))...); err != nil {
		return nil, fmt.Errorf("format Kafka's storage: %w", err)
	}
	return &kafkaBroker{
		Broker: brokerAt(ports, filepath.Join(dir, "ca.pem"), certs),
		what:   "Apache Kafka " + kafkaVersion + " (native)",
		back: &process{
			argv:    slices.Concat(java, []string{"kafka.Kafka", properties}),
			dir:     dir,
			logPath: filepath.Join(dir, "log"),
			stopBy:  syscall.SIGTERM,
		},
	}, nil
}
