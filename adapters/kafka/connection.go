package kafka

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/segmentio/kafka-go/sasl"
)

// connection is how a cluster is reached: what the configs of consumers and
// publishers have in common.
type connection struct {
	brokers []string
	tls     *tls.Config
	sasl    sasl.Mechanism
}

func (c connection) validate() error {
	if len(c.brokers) == 0 {
		return errors.New(`kafka: Brokers is empty: name at least one, such as "localhost:9092"`)
	}
	for i, broker := range c.brokers {
		// The address list goes to kafka-go joined by commas.
		if _, port, err := net.SplitHostPort(broker); err != nil || port == "" || strings.Contains(broker, ",") {
			return fmt.Errorf("kafka: Brokers[%d] %q is not an address: write host:port, one broker an entry", i, broker)
		}
	}
	return nil
}
