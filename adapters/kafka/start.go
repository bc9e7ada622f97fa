package kafka

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"time"

	"github.com/segmentio/kafka-go"
)

const (
	// startTimeout bounds everything before the group is joined.
	startTimeout = 20 * time.Second
	// topicGrace is how long a topic that was just created may take to be
	// known to the broker that is asked.
	topicGrace = 3 * time.Second
)

// check finds out whether consuming can work, because kafka-go names a wrong
// password, a refused connection and a missing topic alike once it runs.
func (c *consumer) check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := c.processor.Check(ctx); err != nil {
		return fmt.Errorf("kafka: the inbox can't start: %w", err)
	}
	var retry backoff
	for started := time.Now(); ; {
		response, err := c.client.Metadata(ctx, &kafka.MetadataRequest{Topics: c.config.Topics})
		if err != nil {
			return explain(err, c.config.connection())
		}
		if err = c.checkTopics(response.Topics); err == nil {
			return nil
		}
		unknown := errors.Is(err, kafka.UnknownTopicOrPartition) || errors.Is(err, kafka.LeaderNotAvailable)
		if !unknown || time.Since(started) > topicGrace || !retry.wait(ctx) {
			return err
		}
	}
}

func (c *consumer) checkTopics(topics []kafka.Topic) error {
	for _, topic := range topics {
		switch {
		case errors.Is(topic.Error, kafka.UnknownTopicOrPartition):
			return fmt.Errorf("kafka: topic %q does not exist at %s: create it, or mend Topics: %w",
				topic.Name, strings.Join(c.config.Brokers, ", "), topic.Error)
		case errors.Is(topic.Error, kafka.TopicAuthorizationFailed):
			return fmt.Errorf("kafka: reading topic %q is not allowed: grant Read and Describe to this user: %w", topic.Name, topic.Error)
		case topic.Error != nil:
			return fmt.Errorf("kafka: topic %q can't be read: %w", topic.Name, topic.Error)
		}
		c.offsets.existing[topic.Name] = len(topic.Partitions)
	}
	return nil
}

// explain says what to do about a connection that could not be made.
func explain(err error, to connection) error {
	var (
		dns    *net.DNSError
		trust  *tls.CertificateVerificationError
		notTLS tls.RecordHeaderError
		slow   interface{ Timeout() bool }
		hint   string
	)
	switch {
	case errors.Is(err, kafka.SASLAuthenticationFailed):
		hint = "the broker refused the user or the password: mend SASL"
	case errors.Is(err, kafka.UnsupportedSASLMechanism), errors.Is(err, kafka.IllegalSASLState):
		hint = "this listener does not know the mechanism: mend SASL, or use another listener"
	case errors.As(err, &dns):
		hint = "the host name is unknown: mend Brokers"
	case errors.Is(err, syscall.ECONNREFUSED):
		hint = "nothing listens there: start the broker, or mend Brokers"
	case errors.As(err, &trust):
		hint = "the broker's certificate is not trusted: set TLS.RootCAs and TLS.ServerName"
	case errors.As(err, &notTLS):
		hint = "this listener does not speak TLS: unset TLS, or use another listener"
	case errors.As(err, &slow) && slow.Timeout():
		hint = "the broker does not answer: check the address in Brokers, the network and the listener's protocol (TLS, SASL)"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET):
		hint = "the broker closed the connection: this listener may want TLS or SASL"
		if to.tls != nil || to.sasl != nil {
			hint = "the broker closed the connection: does this listener speak TLS and SASL as configured?"
		}
	default:
		hint = "the cluster can't be reached"
	}
	return fmt.Errorf("kafka: connecting to %s: %s: %w", strings.Join(to.brokers, ", "), hint, err)
}

// refused explains an answer of the group's coordinator that no retry mends;
// nil for all others. Once the group has been joined, everything is retried.
func refused(err error, config ConsumerConfig) error {
	switch {
	case errors.Is(err, kafka.InvalidSessionTimeout):
		return fmt.Errorf("kafka: SessionTimeout is %v, and the broker takes only group.min.session.timeout.ms to group.max.session.timeout.ms "+
			"(6 s to 30 min unless set): change one of them: %w", config.SessionTimeout, err)
	case errors.Is(err, kafka.InconsistentGroupProtocol):
		return fmt.Errorf("kafka: group %q is in use by consumers of another kind (Java, librdkafka, another Go client), which can't share one: "+
			"stop them, or use a new Group: %w", config.Group, err)
	case errors.Is(err, kafka.GroupAuthorizationFailed):
		return fmt.Errorf("kafka: group %q is not allowed: grant Read on it to this user: %w", config.Group, err)
	case errors.Is(err, kafka.SASLAuthenticationFailed), errors.Is(err, kafka.UnsupportedSASLMechanism):
		return explain(err, config.connection())
	}
	return nil
}
