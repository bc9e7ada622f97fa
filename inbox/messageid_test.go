package inbox_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/onceward/onceward/inbox"
)

func header(name, value string) inbox.Header {
	return inbox.Header{Name: name, Value: []byte(value)}
}

func TestMessageIDIsTheFirstThatIsPresent(t *testing.T) {
	t.Parallel()
	identity := inbox.Identity{
		Headers: []string{"_watermill_message_uuid", "MessageId"},
		Missing: inbox.PositionID,
	}
	// From the last resort to the first choice; each step adds one header.
	m := inbox.Message{Source: "orders", Topic: "orders", Position: "orders/0/7"}
	native := ""
	for _, step := range []struct {
		header     inbox.Header
		native     string
		id, source string
	}{
		{header("unrelated", "x"), "", "orders/0/7", "orders"},
		{header("id", "debezium"), "", "debezium", "orders"},
		{header("unrelated", "y"), "native", "native", "orders"},
		{header("cloudEvents_source", "/amqp"), "", "native", "orders"},
		{header("cloudEvents_id", "amqp-new"), "", "amqp-new", "ce:/amqp"},
		{header("cloudEvents:id", "amqp-old"), "", "amqp-old", "orders"},
		{header("ce_id", "kafka"), "", "kafka", "orders"},
		{header("ce_source", "/shop"), "", "kafka", "ce:/shop"},
		{header("MessageId", "masstransit"), "", "masstransit", "orders"},
		{header("_watermill_message_uuid", "watermill"), "", "watermill", "orders"},
		{header("onceward-id", "ours"), "", "ours", "orders"},
	} {
		m.Headers = append(m.Headers, step.header)
		if step.native != "" {
			native = step.native
		}
		got := m
		identity.Resolve(&got, native)
		if got.ID != step.id || got.Source != step.source {
			t.Errorf("with %s: ID %q of source %q, want %q of %q", step.header.Name, got.ID, got.Source, step.id, step.source)
		}
	}
}

// A framework that draws an "id" at random for each send must not hide the ID
// that the user has named.
func TestHeaderTheUserNamesBeatsEveryGuess(t *testing.T) {
	t.Parallel()
	identity := inbox.Identity{Headers: []string{"payment-id"}}
	for _, random := range []string{"6f1c", "b2d4"} {
		m := inbox.Message{Source: "payments", Headers: []inbox.Header{
			header("id", random), header("ce_id", random), header("ce_source", "/shop"), header("payment-id", "pay_123"),
		}}
		identity.Resolve(&m, random)
		if m.ID != "pay_123" || m.Source != "payments" {
			t.Errorf("ID is %q of source %q", m.ID, m.Source)
		}
	}
}

func TestZeroIdentityLeavesAMessageWithoutID(t *testing.T) {
	t.Parallel()
	m := message("stale")
	inbox.Identity{}.Resolve(&m, "")
	if m.ID != "" {
		t.Errorf("ID is %q", m.ID)
	}
}

func TestHeaderNamesMatchExactlyFirstThenWithoutCase(t *testing.T) {
	t.Parallel()
	m := inbox.Message{Headers: []inbox.Header{header("Onceward-Id", "folded"), header("onceward-id", "exact")}}
	inbox.Identity{}.Resolve(&m, "")
	if m.ID != "exact" {
		t.Errorf("ID is %q", m.ID)
	}
	m.Headers = m.Headers[:1]
	inbox.Identity{}.Resolve(&m, "")
	if m.ID != "folded" {
		t.Errorf("ID is %q", m.ID)
	}
}

func TestEmptyIDCountsAsAbsent(t *testing.T) {
	t.Parallel()
	m := inbox.Message{Headers: []inbox.Header{
		header("onceward-id", ""), {Name: "ce_id"}, header("id", ""), header("ID", "eventuate"), header("ce_source", "/shop"),
	}, Source: "orders"}
	inbox.Identity{}.Resolve(&m, "")
	if m.ID != "eventuate" || m.Source != "orders" {
		t.Errorf("ID is %q of source %q", m.ID, m.Source)
	}
}

func TestMissingDerivesAnIDFromTheMessage(t *testing.T) {
	t.Parallel()
	m := message("")
	inbox.Identity{Missing: func(m inbox.Message) string { return "derived from " + string(m.Payload) }}.Resolve(&m, "")
	if m.ID != "derived from payload of " {
		t.Errorf("ID is %q", m.ID)
	}
}

// A CloudEvents source is the producer's word: it must not be equal to any topic.
func TestSourcesOfCloudEventsAndTopicsAreNeverEqual(t *testing.T) {
	t.Parallel()
	f := setup(t)
	resolved := func(topic, source string) inbox.Message {
		m := inbox.Message{Source: topic, Topic: topic, Position: topic + "/0/0", Headers: []inbox.Header{header("ce_id", "1")}}
		if source != "" {
			m.Headers = append(m.Headers, header("ce_source", source))
		}
		inbox.Identity{}.Resolve(&m, "")
		return m
	}
	names := []string{"payments", "ce:payments", "topic:payments", "topic:ce:payments", "ce:ce:payments", "topic:topic:payments"}
	for _, name := range names {
		f.wantOutcomes(f.process(resolved("audit", name)), "processed")
		f.wantOutcomes(f.process(resolved(name, "")), "processed")
	}
	for _, name := range names {
		f.wantOutcomes(f.process(resolved("elsewhere", name), resolved(name, "")), "duplicate, duplicate")
	}
}

func TestMissingThatPanicsSetsItsMessageAsideWithThePanic(t *testing.T) {
	t.Parallel()
	f := setup(t, inbox.Batch(2))
	identity := inbox.Identity{Missing: func(m inbox.Message) string { return string(m.Payload[:7]) }}
	ms := []inbox.Message{{Source: "orders", Payload: []byte("short")}, {Source: "orders", Payload: []byte("number 7")}}
	for i := range ms {
		identity.Resolve(&ms[i], "")
	}
	results := f.process(ms...)
	f.wantOutcomes(results, "parked, processed")
	f.wantEffects("number ")
	f.wantLetters(" missing_id")
	if _, ok := errors.AsType[*inbox.PanicError](results[0].Err); !ok {
		t.Errorf("error is %v", results[0].Err)
	}
	if text := f.store.letters[0].Error; !strings.Contains(text, "Identity.Missing panicked: runtime error: slice bounds out of range") {
		t.Errorf("the letter's error is %q", text)
	}
	if log := f.logs.String(); !strings.Contains(log, "TestMissingThatPanics") {
		t.Errorf("no stack in the log: %s", log)
	}
}
