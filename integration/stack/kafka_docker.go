package stack

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	dockercontainer "github.com/moby/moby/api/types/container"
	"github.com/testcontainers/testcontainers-go"
)

const (
	kafkaImage       = "apache/kafka:" + kafkaVersion
	kafkaImageLibs   = "/opt/kafka/libs" // where that image keeps its jars
	kafkaImageFolder = "/onceward"       // the stack's files and the broker's data, inside
)

// dockerKafka describes a container of the official image that runs the same configuration by the same Java commands as the
// native broker; the image's own start script cannot create SCRAM users. Ports are the same inside and outside, since a
// broker tells its clients where to find it.
func dockerKafka() (*kafkaBroker, error) {
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
	caFile := filepath.Join(dir, "ca.pem")
	if err := os.WriteFile(caFile, certs.ca, 0o600); err != nil {
		return nil, fmt.Errorf("write the CA of Kafka's listeners: %w", err)
	}
	inside := func(name string) string { return path.Join(kafkaImageFolder, name) }
	java := javaCommand(kafkaImageLibs+"/*", inside("log4j2.properties"))
	format := slices.Concat(java, kafkaFormat(inside("server.properties")))
	serve := slices.Concat(java, []string{"kafka.Kafka", inside("server.properties")})
	published := map[int]int{}
	for _, p := range []int{ports.plain, ports.sasl, ports.saslTLS, ports.tls} {
		published[p] = p
	}
	return &kafkaBroker{
		Broker: brokerAt(ports, caFile, certs),
		what:   "Apache Kafka " + kafkaVersion + " (docker, " + kafkaImage + ")",
		back: &container{
			image: kafkaImage,
			ports: published,
			options: []testcontainers.ContainerCustomizer{
				// Formatting a formatted folder does nothing, so a restart may run both again.
				testcontainers.WithEntrypoint("sh", "-c", shellQuote(format)+" && exec "+shellQuote(serve)),
				testcontainers.WithConfigModifier(func(c *dockercontainer.Config) { c.User = "0" }), // who may write to the folder
				testcontainers.WithFiles(
					file(inside("server.properties"), []byte(kafkaProperties(kafkaImageFolder, "0.0.0.0", ports))),
					file(inside("log4j2.properties"), []byte(kafkaLogging)),
					file(inside("keystore.pem"), certs.keystore),
					file(inside("ca.pem"), certs.ca),
				),
			},
		},
	}, nil
}

// shellQuote makes one shell command of arguments.
func shellQuote(args []string) string {
	quoted := make([]string, len(args))
	for i, a := range args {
		quoted[i] = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
	}
	return strings.Join(quoted, " ")
}
