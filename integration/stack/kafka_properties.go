package stack

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"path"
	"strings"
)

const (
	kafkaUser     = "alice"
	kafkaPassword = "alice-secret"
)

// kafkaPorts are the listeners of one broker.
type kafkaPorts struct{ plain, sasl, saslTLS, tls, controller int }

func reserveKafkaPorts() (p kafkaPorts, err error) {
	for _, port := range []*int{&p.plain, &p.sasl, &p.saslTLS, &p.tls, &p.controller} {
		if *port, err = reservePort(); err != nil {
			return p, err
		}
	}
	return p, nil
}

// kafkaProperties is the configuration of a single node that is broker and controller. It lives in folder; bind is the
// address to listen on. Clients always reach it on the loopback interface.
//
// The intervals are short so that tests see in seconds what a production broker does in minutes: a broker killed with
// SIGKILL registers again after 2 s, a consumer may set a session timeout of 500 ms, compaction and retention run at once.
func kafkaProperties(folder, bind string, p kafkaPorts) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }

	line("process.roles=broker,controller")
	line("node.id=1")
	line("listeners=PLAINTEXT://%[1]s:%[2]d,SASL://%[1]s:%[3]d,SASLTLS://%[1]s:%[4]d,TLS://%[1]s:%[5]d,CONTROLLER://127.0.0.1:%[6]d",
		bind, p.plain, p.sasl, p.saslTLS, p.tls, p.controller)
	line("advertised.listeners=PLAINTEXT://127.0.0.1:%d,SASL://127.0.0.1:%d,SASLTLS://127.0.0.1:%d,TLS://127.0.0.1:%d",
		p.plain, p.sasl, p.saslTLS, p.tls)
	line("listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL:SASL_PLAINTEXT,SASLTLS:SASL_SSL,TLS:SSL")
	line("controller.listener.names=CONTROLLER")
	line("controller.quorum.voters=1@127.0.0.1:%d", p.controller)
	line("log.dirs=%s", path.Join(folder, "data"))

	line("sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512")
	for _, listener := range []string{"sasl", "sasltls"} {
		line(`listener.name.%s.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required user_%s="%s";`,
			listener, kafkaUser, kafkaPassword)
		for _, mechanism := range []string{"scram-sha-256", "scram-sha-512"} {
			line(`listener.name.%s.%s.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;`, listener, mechanism)
		}
	}
	line("ssl.keystore.type=PEM")
	line("ssl.keystore.location=%s", path.Join(folder, "keystore.pem"))
	line("ssl.truststore.type=PEM")
	line("ssl.truststore.location=%s", path.Join(folder, "ca.pem"))

	for _, setting := range []string{
		"auto.create.topics.enable=false",
		"offsets.topic.replication.factor=1",
		"offsets.topic.num.partitions=1",
		"transaction.state.log.replication.factor=1",
		"transaction.state.log.min.isr=1",
		"transaction.state.log.num.partitions=1",
		"transaction.abort.timed.out.transaction.cleanup.interval.ms=1000",
		"share.coordinator.state.topic.replication.factor=1",
		"share.coordinator.state.topic.min.isr=1",
		"group.initial.rebalance.delay.ms=0",
		"group.min.session.timeout.ms=500",
		"broker.session.timeout.ms=2000",
		"broker.heartbeat.interval.ms=300",
		"log.cleaner.backoff.ms=200",
		"log.cleaner.dedupe.buffer.size=8388608",
		"log.initial.task.delay.ms=500",
		"log.retention.check.interval.ms=1000",
		"num.network.threads=2",
		"num.io.threads=4",
	} {
		line("%s", setting)
	}
	return b.String()
}

// kafkaLogging writes warnings to standard output, which the stack keeps in a file.
const kafkaLogging = `rootLogger.level = WARN
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{ISO8601} %p %c - %m%n
`

// kafkaFormat are the arguments that format the broker's storage and create the SCRAM user.
func kafkaFormat(properties string) []string {
	id := make([]byte, 16)
	_, _ = rand.Read(id) // never fails, says its documentation
	id[0] &= 0x7f        // an id that begins with '-' would be taken for an option
	args := []string{"kafka.tools.StorageTool", "format", "--cluster-id", base64.RawURLEncoding.EncodeToString(id), "--config", properties, "--ignore-formatted"}
	for _, mechanism := range []string{"SCRAM-SHA-256", "SCRAM-SHA-512"} {
		args = append(args, "--add-scram", fmt.Sprintf("%s=[name=%s,password=%s]", mechanism, kafkaUser, kafkaPassword))
	}
	return args
}
