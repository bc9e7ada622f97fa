package inbox

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"
	"time"

	"github.com/onceward/onceward/idempotency"
)

// Scopes. A consumer's name holds neither slash nor colon, so these can't be
// equal for different consumers, sources or kinds:
//
//	billing/orders             messages of source "orders", by ID
//	billing/ce:/shop           those of CloudEvents source "/shop"
//	billing:missing_id/orders  deliveries without ID, by position and content
//	billing:id_reused/orders   reused IDs, by ID and payload
//	billing:unfinished/orders  messages recorded but not handled, by ID
//	billing:rewritten/orders   letters a redrive wrote again, by ID and old number
func (in *Inbox[Tx]) scope(source string) string { return in.consumer + "/" + source }

// scoped is the scope of a source, so that the messages of one share a string.
type scoped struct{ source, scope string }

// fillClaims sets the claim of each message.
func (in *Inbox[Tx]) fillClaims(claims []idempotency.Claim, messages []Message, last *scoped) {
	for i := range messages {
		m := &messages[i]
		if m.ID == "" {
			claims[i] = in.claim(m)
			continue
		}
		if m.Source != last.source {
			*last = scoped{m.Source, in.scope(m.Source)}
		}
		claims[i] = in.claimIn(last.scope, m)
	}
}

// claim returns the claim of one message. Without an ID it is that of the
// delivery, so that a redelivery adds no second dead letter.
func (in *Inbox[Tx]) claim(m *Message) idempotency.Claim {
	if m.ID == "" {
		return in.asideClaim(string(ReasonMissingID), m, deliveryKey(m))
	}
	return in.claimIn(in.scope(m.Source), m)
}

func (in *Inbox[Tx]) claimIn(scope string, m *Message) idempotency.Claim {
	claim := idempotency.Claim{Scope: scope, Key: m.ID, Retention: in.lifetime(m)}
	if in.fingerprint {
		claim.Fingerprint = fingerprint(m.Payload)
	}
	return claim
}

// asideClaim is a claim under which a message is set aside, in the scope of a kind
// of its own.
func (in *Inbox[Tx]) asideClaim(kind string, m *Message, key string) idempotency.Claim {
	return idempotency.Claim{
		Scope:     in.consumer + ":" + kind + "/" + m.Source,
		Key:       key,
		Retention: in.lifetime(m),
	}
}

// reusedKey tells reused IDs by what they were used for.
func reusedKey(m *Message) string {
	return m.ID + "#" + hex.EncodeToString(fingerprint(m.Payload))
}

// lifetime is how long the record of a message must live: until the message is
// too old to be handled, and the slack of the clocks. A message stamped in the
// future gets old later. The cap lets a message that claims to come from more than
// a lifetime ahead be handled once in a hundred years.
func (in *Inbox[Tx]) lifetime(m *Message) time.Duration {
	ahead := time.Duration(0)
	if !m.Time.IsZero() {
		ahead = min(max(time.Until(m.Time), 0), idempotency.MaxRetention)
	}
	return min(in.retention+clockSlack+ahead, idempotency.MaxRetention)
}

// fingerprint is the SHA-256 of a payload. That of no payload is all zeros, which
// nobody can find an input for, so nil and empty differ.
func fingerprint(payload []byte) []byte {
	var sum [sha256.Size]byte
	if payload != nil {
		sum = sha256.Sum256(payload)
	}
	return sum[:]
}

// deliveryKey identifies one delivery of a message without ID, by its position and
// by all it holds: a topic that was deleted and made again has the same positions.
func deliveryKey(m *Message) string {
	h := sha256.New()
	hashPart(h, []byte(m.Topic))
	hashPart(h, m.Key)
	hashPart(h, m.Payload)
	for _, header := range m.Headers {
		hashPart(h, []byte(header.Name))
		hashPart(h, header.Value)
	}
	if !m.Time.IsZero() {
		hashPart(h, binary.BigEndian.AppendUint64(nil, uint64(m.Time.UnixNano())))
	}
	return "at:" + m.Position + "#" + hex.EncodeToString(h.Sum(nil))
}

// hashPart adds a part with its length, so that parts can't run into each other.
func hashPart(h hash.Hash, part []byte) {
	length := uint64(len(part))
	if part == nil {
		length = 1<<64 - 1
	}
	h.Write(binary.BigEndian.AppendUint64(nil, length))
	h.Write(part)
}
