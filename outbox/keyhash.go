package outbox

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
)

// KeyHash stands for a topic and a key where events wait for each other: 32
// hexadecimal digits, so that a key of any size and content fits an index.
func KeyHash(topic string, key []byte) string {
	h := sha256.New()
	var length [8]byte // Sets the topic apart from the key.
	binary.BigEndian.PutUint64(length[:], uint64(len(topic)))
	h.Write(length[:])
	h.Write([]byte(topic))
	h.Write(key)
	var sum [sha256.Size]byte
	return hex.EncodeToString(h.Sum(sum[:0])[:16])
}

// keyHash is the KeyHash of an event, empty if it has no key.
func (m *Message) keyHash() string {
	if m.Key == nil {
		return ""
	}
	return KeyHash(m.Topic, m.Key)
}
