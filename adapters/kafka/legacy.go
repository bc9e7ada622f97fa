package kafka

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"

	"github.com/segmentio/kafka-go/protocol"
)

// legacyRecords reads a message, or a compressed set of them, in the formats
// before Kafka 0.11. They are rare, so kafka-go's own decoder does it.
func legacyRecords(whole []byte) ([]record, error) {
	framed := append(binary.BigEndian.AppendUint32(nil, uint32(len(whole))), whole...)
	var set protocol.RecordSet
	if _, err := set.ReadFrom(bytes.NewReader(framed)); err != nil {
		return nil, err
	}
	if set.Records == nil {
		return nil, errShort
	}
	var out []record
	for {
		r, err := set.Records.ReadRecord()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		key, err := protocol.ReadAll(r.Key)
		if err != nil {
			return nil, err
		}
		value, err := protocol.ReadAll(r.Value)
		if err != nil {
			return nil, err
		}
		for _, b := range []protocol.Bytes{r.Key, r.Value} {
			if b != nil {
				_ = b.Close()
			}
		}
		out = append(out, record{offset: r.Offset, time: r.Time.UnixMilli(), key: key, value: value})
	}
}
