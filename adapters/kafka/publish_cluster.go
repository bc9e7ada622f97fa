package kafka

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/metadata"

	"github.com/onceward/onceward/internal/userlog"
	"github.com/onceward/onceward/outbox"
)

// layoutAge is how old the picture of a topic may be: how long partitions that
// were added stay unnoticed. It is renewed at once after a failure.
const layoutAge = 5 * time.Second

// cluster is what a publisher knows of the brokers and of the topics it was
// asked for. kafka-go's transport has such a picture too, but one of all topics,
// or of topics named at its start, and a cold one says of a refused connection
// that the topic is not found. So its transport only carries requests here, to
// addresses.
type cluster struct {
	connection connection
	network    *network
	log        *slog.Logger // never panics
	seeds      *broker
	turn       atomic.Uint32 // of events without a key

	mu      sync.Mutex
	brokers map[string]*broker // by address
	layouts map[string]*layout // by topic
}

func newCluster(config PublisherConfig, n *network) *cluster {
	c := &cluster{
		connection: config.connection(), network: n, log: userlog.Guard(config.Logger, nil),
		brokers: make(map[string]*broker), layouts: make(map[string]*layout),
	}
	c.seeds = c.newBroker(config.Brokers...)
	c.turn.Store(rand.Uint32())
	return c
}

// layout is where the partitions of a topic are. Only its atomics change, and
// asked, which the cluster's lock protects.
type layout struct {
	topic   string
	leaders []*broker // by partition; nil: it has none
	all     []int     // partitions
	led     []int     // those with a leader
	asked   time.Time

	stale atomic.Bool  // to be asked again
	limit atomic.Int64 // of a batch in bytes, if the topic refused a larger one
}

// partitionOf is the partition of a key, the same as Java's producer's.
func (l *layout) partitionOf(key []byte) int {
	return kafka.Murmur2Balancer{}.Balance(kafka.Message{Key: key}, l.all...)
}

// anyPartition is a partition for events without a key.
func (l *layout) anyPartition(turn uint32) int {
	among := l.led
	if len(among) == 0 {
		among = l.all
	}
	return among[int(turn%uint32(len(among)))]
}

func (l *layout) batchBytes(limit int) int {
	if known := int(l.limit.Load()); known > 0 {
		return min(known, limit)
	}
	return limit
}

// refused notes that the topic refused a batch, and reports whether that is new.
func (l *layout) refused(bytes int) bool { return l.limit.Swap(int64(bytes/2)) == 0 }

// place is a topic's layout, or why it can't be written to.
type place struct {
	layout *layout
	err    error
}

// find returns the places of topics. What is known well enough costs no request.
func (c *cluster) find(ctx context.Context, topics []string) map[string]place {
	places := make(map[string]place, len(topics))
	var unknown []string
	c.mu.Lock()
	for _, topic := range topics {
		l := c.layouts[topic]
		switch {
		case !validTopic(topic):
			places[topic] = place{err: errTopicName(topic)}
		case l != nil && !l.stale.Load() && time.Since(l.asked) < layoutAge:
			places[topic] = place{layout: l}
		default:
			unknown = append(unknown, topic)
		}
	}
	c.mu.Unlock()
	if len(unknown) == 0 {
		return places
	}

	answer, err := c.ask(ctx, unknown)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		err = fmt.Errorf("%w: %w", outbox.ErrUnavailable, err)
		for _, topic := range unknown {
			if old := c.layouts[topic]; old != nil {
				old.asked = time.Now()
				places[topic] = place{layout: old} // its brokers may be there all the same
			} else {
				places[topic] = place{err: err}
			}
		}
		return places
	}
	brokers := c.learnBrokers(answer.Brokers)
	for i := range answer.Topics {
		t := &answer.Topics[i]
		places[t.Name] = c.learn(t, brokers)
	}
	for _, topic := range unknown {
		if _, ok := places[topic]; !ok {
			places[topic] = place{err: fmt.Errorf("kafka: topic %q: the brokers' answer leaves it out: %w", topic, outbox.ErrUnavailable)}
		}
	}
	return places
}

// learn takes the picture of a topic from an answer.
func (c *cluster) learn(t *metadata.ResponseTopic, brokers map[int32]*broker) place {
	old := c.layouts[t.Name]
	if err := topicError(t.Name, kafka.Error(t.ErrorCode)); err != nil {
		delete(c.layouts, t.Name)
		return place{err: err}
	}
	l := &layout{topic: t.Name, leaders: make([]*broker, len(t.Partitions)), asked: time.Now()}
	for i := range t.Partitions {
		l.all = append(l.all, i)
		if n := int(t.Partitions[i].PartitionIndex); n >= 0 && n < len(l.leaders) {
			l.leaders[n] = brokers[t.Partitions[i].LeaderID]
		}
	}
	for i, leader := range l.leaders {
		if leader != nil {
			l.led = append(l.led, i)
		}
	}
	if len(l.leaders) == 0 {
		return place{err: fmt.Errorf("kafka: topic %q has no partitions yet: %w", t.Name, outbox.ErrUnavailable)}
	}
	if old != nil {
		// The limit that was found may have been raised since.
		l.limit.Store(min(2*old.limit.Load(), maxMaxBatchBytes))
		if len(old.all) != len(l.all) {
			c.log.Warn("kafka: the topic has another number of partitions: keys move to other ones, and their order holds from now on",
				slog.String("topic", t.Name), slog.Int("before", len(old.all)), slog.Int("now", len(l.all)))
		}
	}
	c.layouts[t.Name] = l
	return place{layout: l}
}

// learnBrokers makes brokers of those in an answer, by their id, and forgets those that
// are not in it.
func (c *cluster) learnBrokers(answer []metadata.ResponseBroker) map[int32]*broker {
	byID := make(map[int32]*broker, len(answer))
	now := make(map[string]*broker, len(answer))
	for _, b := range answer {
		address := net.JoinHostPort(b.Host, strconv.Itoa(int(b.Port)))
		known := c.brokers[address]
		if known == nil {
			known = c.newBroker(address)
		}
		byID[b.NodeID], now[address] = known, known
	}
	for address, b := range c.brokers {
		if now[address] == nil {
			b.gone.Store(true)
			b.transport.CloseIdleConnections()
		}
	}
	c.brokers = now
	return byID
}

// ask asks for topics, first the brokers of the config, then those that were
// discovered. The error is the real cause at the former.
func (c *cluster) ask(ctx context.Context, topics []string) (*metadata.Response, error) {
	answer, err := c.seeds.metadata(ctx, topics)
	if err == nil {
		return answer, nil
	}
	cause := explain(err, c.connection)
	c.mu.Lock()
	others := slices.Collect(maps.Values(c.brokers))
	c.mu.Unlock()
	for _, b := range others {
		if ctx.Err() != nil {
			break
		}
		if answer, err = b.metadata(ctx, topics); err == nil {
			return answer, nil
		}
	}
	return nil, cause
}

// close closes all connections.
func (c *cluster) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seeds.transport.CloseIdleConnections()
	for _, b := range c.brokers {
		b.transport.CloseIdleConnections()
	}
}

// broker is one broker, or the ones of the config, with a transport of its own.
type broker struct {
	address   net.Addr
	transport *kafka.Transport
	gone      atomic.Bool // not of the cluster any more, though a call may still use it

	mu     sync.Mutex
	paused time.Time // until then it takes no requests
}

func (c *cluster) newBroker(addresses ...string) *broker {
	return &broker{
		address: kafka.TCP(addresses...),
		transport: &kafka.Transport{
			Dial:        c.network.dial,
			DialTimeout: handshakeTimeout,
			// The transport asks for metadata all the time, and waits for the
			// first answer as long as this. Of no topics it is small.
			MetadataTTL:    requestTimeout,
			MetadataTopics: []string{},
			ClientID:       clientID,
			TLS:            c.connection.tls,
			SASL:           c.connection.sasl,
			Context:        c.network.ctx,
		},
	}
}

// roundTrip sends a request. A failure drops the connections that are idle: when
// a broker has died they are dead too, and each would cost a failure of its own.
func (b *broker) roundTrip(ctx context.Context, request protocol.Message) (protocol.Message, error) {
	m, err := b.transport.RoundTrip(ctx, b.address, request)
	if err != nil || b.gone.Load() {
		b.transport.CloseIdleConnections()
	}
	return m, err
}

func (b *broker) metadata(ctx context.Context, topics []string) (*metadata.Response, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	m, err := b.roundTrip(ctx, &metadataRequest{Request: metadata.Request{TopicNames: topics}})
	if err != nil {
		return nil, err
	}
	return m.(metadataAnswer).Response, nil
}

// throttle notes that the broker told us to wait, as one does for clients over
// their quota. It would not read a request before.
func (b *broker) throttle(d time.Duration) {
	if d <= 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.paused = time.Now().Add(min(d, maxThrottle))
}

// throttled waits until the broker takes requests.
func (b *broker) throttled(ctx context.Context) error {
	b.mu.Lock()
	wait := time.Until(b.paused)
	b.mu.Unlock()
	if wait > 0 && !sleep(ctx, wait) {
		return errors.New("this client is over its quota, and the broker wants it to wait")
	}
	return ctx.Err()
}

// metadataRequest is a request for metadata that goes to a broker: kafka-go
// answers its own from the transport's picture.
type metadataRequest struct {
	metadata.Request

	version int16
}

// metadataAnswer keeps kafka-go from treating the answer as one of its own.
type metadataAnswer struct{ *metadata.Response }

func (r *metadataRequest) Prepare(version int16) { r.version = version }

func (r *metadataRequest) Required(map[protocol.ApiKey]int16) bool { return true }

func (r *metadataRequest) RawExchange(rw io.ReadWriter) (protocol.Message, error) {
	m, err := protocol.RoundTrip(rw, r.version, correlationID, clientID, &r.Request)
	if err != nil {
		return nil, err
	}
	return metadataAnswer{m.(*metadata.Response)}, nil
}

var (
	_ protocol.PreparedMessage = (*metadataRequest)(nil)
	_ protocol.RawExchanger    = (*metadataRequest)(nil)
)
