// Package crash proves by force that every message has its effect exactly once: consumer processes, database and broker
// are killed, stopped, frozen and cut off from each other while messages flow, and in the end the effects are counted.
//
// # A trial
//
// A trial is one topic under load, the members that read it and a checker:
//
//	producer ──▶ Kafka ──▶ members (processes) ──▶ inbox ──▶ PostgreSQL ──▶ checker
//
// The producer numbers the messages of each key 1, 2, 3 … and sends some of them again, at once and later: the same id, on
// the same key. A send whose outcome is unknown is sent again too, before anything behind it, so the first copies of a
// key are always in order.
//
// A member is this test binary run again (see member_test.go). It reports every event of the inbox and the adapter as a
// line on its standard output; faults are timed by these lines. Its handler takes the next number of the key from a row
// that it locks, and writes an effect with both numbers: the message's and the one it took.
//
// # The checker
//
// When the faults are over, a last member drains the topic. Then, for each consumer and key that got n messages, the effects
// must be exactly 1 … n by the message's number (nothing lost, nothing doubled), each with the same number taken (in
// order), the record of each id must be there, no attempt was spent, nothing was set aside, and the committed offset of each partition
// is its end. No constraint of the effects' table helps the product: it would take any row.
//
// # Seeds
//
// Every trial prints its seed. ONCEWARD_CRASH_SEED=n repeats the schedule of faults, as far as the machine plays along.
package crash
