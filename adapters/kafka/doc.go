// Package kafka reads Kafka topics into an inbox, where every record is handled
// once, whatever is delivered twice; and it publishes the events of an outbox (see
// Publishing, below).
//
//	err := kafka.Consume(ctx, kafka.ConsumerConfig{
//		Brokers: []string{"localhost:9092"},
//		Group:   "billing",
//		Topics:  []string{"orders"},
//	}, billing) // an *inbox.Inbox
//
// Consume blocks until ctx ends, drains and returns. Run several of it, in one
// process or many: members of a group share the partitions.
//
// It stands on segmentio/kafka-go: its ConsumerGroup for membership, its
// Transport and the protocol's own fetch for reading. kafka-go's Reader is not
// used, because it hands out queued messages after its generation has ended,
// can't tell null from empty, and delivers aborted transactions; nor is its
// decoder of records, for the reasons given at the type exchange.
//
// # A generation
//
// Each rebalance starts a generation, and with it this:
//
//	joining ──▶ reading ──▶ draining ──▶ committed ──▶ joining, or left
//
//	joining    the group coordinator assigns partitions
//	reading    a fetcher for each partition, one fetch ahead of its lanes; lanes
//	           hand messages to the inbox; one committer for all partitions
//	draining   the generation has ended, or ctx has: nothing is fetched and no
//	           new call to the inbox begins. Calls under way go on for
//	           DrainTimeout while commits keep the session, then their context
//	           is cancelled; at once if the broker says that we were evicted
//	committed  the last offsets are committed with the same generation
//
// # A delivery
//
//	fetched ──▶ handed to the inbox ──▶ processed, duplicate or parked ──▶ settled
//	                ▲         │
//	                └─────────┴─ failed: wait RetryAfter; outage: wait, backing off
//
// A settled message moves the partition's watermark: the lowest offset that is
// not settled yet. Only the watermark is committed, and only after the
// database has. So a crash anywhere delivers again what was not committed, and
// the inbox knows it. A message that fails is tried again where it is; in the
// meantime its lane waits, since the messages behind it may depend on it.
//
// # What happens when
//
//	the process dies                redelivered from the watermark; duplicates
//	the database is down            no message is handed on, fetching stops one
//	                                fetch ahead; tried again with backoff; no
//	                                attempts are spent
//	a broker dies, a leader moves   retried with backoff, EventRetry
//	the coordinator is lost         the generation ends; drained; joins again as
//	                                a new member, and the old one is sent away,
//	                                or the group would wait for its session
//	a rebalance                     drained, committed, joined again
//	evicted (too slow, frozen)      handlers cancelled, EventHandlersCancelled;
//	                                if one commits all the same, the record
//	                                makes the redelivery a duplicate
//	a handler ignores its context   EventAbandoned after 5 s, and Consume goes on
//	                                (at the end it returns an error)
//	a commit is refused             EventCommitDropped; drained, joined again;
//	                                redelivered; duplicates
//	records deleted before we read  EventDataLoss with their number; reads on at
//	                                the log's start
//	the log ends before our offset  EventOffsetReset: the log was truncated or the
//	                                topic made again; after a second look, reads on
//	                                at its start (with StartLast at its end): what
//	                                was handled is recognised
//	a batch that can't be decoded   what stands before it is delivered; EventCorrupt;
//	                                then nothing of the partition until a person
//	                                acts (kafka-delete-records.sh passes over it)
//	an open transaction             waits for its end; EventStalled
//	partitions added                the group's leader sees it within seconds and
//	                                starts a rebalance
//	a topic deleted                 EventTopicMissing; when it is made again, it is
//	                                read from its start. (A new one that takes the
//	                                old one's place within two seconds looks like
//	                                the same log: see above)
//
// # Reading what is committed
//
// Brokers send aborted records too, with a list of aborted transactions; the
// client has to leave them out. kafka-go doesn't, this package does. Set
// Isolation to ReadUncommitted to see everything.
//
// # Memory
//
// BufferBytes bounds what is fetched and not handled. A record larger than
// that still comes through, alone. Keys, payloads and header values are not
// copied: they lie in the array that the fetch was received in, or that their
// batch was decompressed into. Once all messages of a fetch are settled, the
// next one is received in the same array. The handler of an Inbox gets a copy of
// its own, and may keep it; another Processor must copy the bytes that it keeps
// beyond the call in which it settles their message.
//
// # Publishing
//
//	publisher := kafka.NewPublisher(kafka.PublisherConfig{Brokers: []string{"localhost:9092"}})
//	defer publisher.Close()
//	relay := outbox.NewRelay(store, publisher, outbox.RelayConfig{Name: "events"})
//
// An event becomes a record of its topic: key, payload and headers as they are,
// null and empty apart, HeaderID before the other headers, CreatedAt as its time.
// (Kafka deletes by that time: an event that is replayed after retention.ms is gone
// at once, unless the topic has message.timestamp.type=LogAppendTime.) Keys go to the
// partition that Java's producer takes. Events without a key fill one batch after
// the other, each for another partition.
//
// One call of Publish goes through these steps:
//
//	events ──▶ queues ──▶ a request to each broker ──▶ answers ──▶ results
//	                          ▲                           │
//	                          └─ next batches, or smaller ┘
//
//	queues     the events of one partition, in order
//	a request  the first batch of each queue that the broker leads, acks=all;
//	           all brokers at once, each with one request at a time. Only the
//	           head of a queue is sent, and only when what was before it has its result
//	answers    one for each batch; what is left is sent next, without the later
//	           events of keys that have failed
//
// and this is what an answer does:
//
//	acknowledged                          nil
//	no answer, no connection, ctx ended   all that this broker still had to get: ErrUnavailable;
//	                                      idle connections to it are dropped, they are dead as well
//	no leader, too few replicas, …        what is left for the partition: ErrUnavailable;
//	                                      the topic is asked for again before the next call
//	over the quota                        the next request waits as long as the broker says
//	batch too large                       half of it, until it fits; one event alone: ErrPermanent
//	records refused                       those that the broker names: ErrPermanent; the others go
//	                                      again. It names none (before Kafka 2.4): half, down to one
//	not allowed, anything else            what is left for the partition: the cause, an attempt;
//	                                      so it is for a topic that does not exist
//
// An event that fails holds up the later ones of its topic and key in the call,
// and no others: they get ErrBehind. There is no idempotent producer: an event that
// was written though no answer came is written again by the next call, with the same ID,
// and never after a younger one of its key that was not there yet.
//
// Connecting is diagnosed as in Consume: Check, and the results, name the real cause
// of a refused connection, an untrusted certificate or a wrong password. How
// many partitions a topic has is looked at every 5 seconds; when some are added, keys
// move, and order per key holds from then on.
//
// Records are encoded here, straight into the array that is sent: with kafka-go's
// encoder they cost eight times as much (BenchmarkEncode), and its client
// wants a request for each partition. How it fares against kafka-go's Writer and its
// Client.Produce is in bench/README.md (outbox-publisher).
//
// A consumer has a connection to the leader of each partition that it reads, twice as many
// for the first half minute: with hundreds of partitions mind the limits of the broker and
// of open files.
//
// # Limits
//
// Kafka 1.0 to 4.x. Compressed sets in the formats before 0.11, if compaction has
// thinned them, are numbered by kafka-go's decoder, which assumes no gaps:
// rewrite such old topics first. No static membership, no cooperative rebalancing, no
// KIP-848 groups: kafka-go has none, so a rebalance stops the group for as
// long as its slowest member drains. A group can't be shared with other clients
// (Java, librdkafka, franz-go, kafka-go's Reader): the broker refuses whichever
// comes second, and Consume says so. To take over from one of those, stop its
// consumers first, or use a new group and set its offsets
// (kafka-consumer-groups.sh --reset-offsets).
//
// # Seeing lag
//
// Offsets are committed to the group as by any consumer, at most 200 ms late:
//
//	kafka-consumer-groups.sh --bootstrap-server … --describe --group billing
//
// and every exporter of group lag works. EventStalled carries the lag of a
// partition that stands still.
package kafka
