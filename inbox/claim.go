package inbox

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"
	"strings"

	"github.com/onceward/onceward/idempotency"
)

// Scopes. A consumer's name holds neither slash nor colon, so these can't be
// equal for different consumers, sources or kinds:
//
//	billing/orders             messages of source "orders", by ID
//	billing:missing_id/orders  deliveries without ID, by position
//	billing:id_reused/orders   reused IDs, by ID and payload
func (in *Inbox[Tx]) scope(source string) string { return in.consumer + "/" + source }

func (in *Inbox[Tx]) asideScope(reason Reason, source string) string {
	return in.consumer + ":" + string(reason) + "/" + source
}

// claims returns the claim of each message.
func (in *Inbox[Tx]) claims(messages []Message) []idempotency.Claim {
	claims := make([]idempotency.Claim, len(messages))
	for i := range messages {
		m := &messages[i]
		if i > 0 && m.ID != "" && messages[i-1].ID != "" && m.Source == messages[i-1].Source {
			// One string for all messages of a source.
			claims[i] = in.claimIn(claims[i-1].Scope, m)
			continue
		}
		claims[i] = in.claim(m)
	}
	return claims
}

// claim returns the claim of one message. Without an ID it is that of the
// delivery, so that a redelivery adds no second dead letter.
func (in *Inbox[Tx]) claim(m *Message) idempotency.Claim {
	if m.ID == "" {
		return idempotency.Claim{
			Scope:     in.asideScope(ReasonMissingID, m.Source),
			Key:       deliveryKey(m),
			Retention: in.retention + clockSlack,
		}
	}
	return in.claimIn(in.scope(m.Source), m)
}

func (in *Inbox[Tx]) claimIn(scope string, m *Message) idempotency.Claim {
	claim := idempotency.Claim{Scope: scope, Key: m.ID, Retention: in.retention + clockSlack}
	if in.fingerprint {
		claim.Fingerprint = fingerprint(m.Payload)
	}
	return claim
}

// reusedClaim is the claim under which a message with a reused ID is set aside.
func (in *Inbox[Tx]) reusedClaim(m *Message) idempotency.Claim {
	return idempotency.Claim{
		Scope:     in.asideScope(ReasonIDReused, m.Source),
		Key:       m.ID + "#" + hex.EncodeToString(fingerprint(m.Payload)),
		Retention: in.retention + clockSlack,
	}
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

// deliveryKey identifies one delivery of a message without ID: by its position
// or, where the broker has none, by all it holds.
func deliveryKey(m *Message) string {
	if m.Position != "" {
		return "at:" + m.Position
	}
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
	return "content:" + hex.EncodeToString(h.Sum(nil))
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

// errorText is an error as it is stored and logged: valid text of at most 1 KB
// without NUL bytes, which PostgreSQL refuses.
func errorText(err error) string {
	const limit = 1024
	if err == nil {
		return ""
	}
	text := err.Error()
	if len(text) > limit {
		text = text[:limit]
	}
	return strings.ReplaceAll(strings.ToValidUTF8(text, ""), "\x00", "")
}
