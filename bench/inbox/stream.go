package main

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/onceward/onceward/inbox"
)

// idKind is how the producer makes its message ids. It decides how warm the
// index of the records stays.
type idKind string

const (
	timeOrdered idKind = "time-ordered ids" // UUIDv7: neighbours in time are neighbours in the index
	random      idKind = "random ids"       // UUIDv4
)

// payloadBytes is the size of a small JSON event.
const payloadBytes = 256

// stream describes the deliveries of one round. The same stream gives the same
// ids to every side: they do not meet, since each side has its own scope.
type stream struct {
	ids idKind
	// redelivered: every batch is delivered twice, as after a crash between the
	// commit and the offset.
	redelivered bool
	// start is the time the first id of round 0 carries.
	start time.Time
	round int
}

// step is the number of messages a connection's share must be a multiple of:
// whole batches, and whole pairs of them where each comes twice.
func (s stream) step() int {
	if s.redelivered {
		return 2 * batchSize
	}
	return batchSize
}

// share builds count deliveries and deals them to workers in turn, as
// partitions would.
func (s stream) share(count, workers int) [][]inbox.Message {
	shares := make([][]inbox.Message, workers)
	for w := range shares {
		shares[w] = make([]inbox.Message, 0, count/workers+1)
	}
	rng := s.random()
	payload := make([]byte, payloadBytes)
	fresh := 0
	for i := range count {
		share := &shares[i%workers]
		at := len(*share)
		if s.redelivered && at/batchSize%2 == 1 {
			*share = append(*share, (*share)[at-batchSize])
			continue
		}
		*share = append(*share, s.message(fresh, rng, payload))
		fresh++
	}
	return shares
}

func (s stream) message(n int, rng *rand.Rand, payload []byte) inbox.Message {
	return inbox.Message{
		ID:       s.id(n, rng),
		Source:   source,
		Topic:    source,
		Key:      strconv.AppendInt(nil, int64(n%1000), 10),
		Payload:  payload,
		Time:     s.start,
		Position: fmt.Sprintf("%s/0/%d", source, n),
	}
}

// id makes a UUID. Time-ordered ones advance by a millisecond every 16 messages.
func (s stream) id(n int, rng *rand.Rand) string {
	var u [16]byte
	binary.BigEndian.PutUint64(u[8:], rng.Uint64())
	version := byte(0x40)
	if s.ids == timeOrdered {
		version = 0x70
		millis := s.start.Add(time.Duration(s.round) * time.Hour).UnixMilli()
		binary.BigEndian.PutUint64(u[:8], uint64(millis+int64(n/16))<<16|uint64(n%16)<<8)
	} else {
		binary.BigEndian.PutUint64(u[:8], rng.Uint64())
	}
	u[6] = version | u[6]&0x0f
	u[8] = 0x80 | u[8]&0x3f
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}

// random is what the ids of a round are made from.
func (s stream) random() *rand.Rand { return rand.New(rand.NewPCG(uint64(s.round), 7)) }

// older returns the ids of records from long before the first round.
func (s stream) older() (id func(n int) string) {
	s.round = olderRound
	rng := s.random()
	return func(n int) string { return s.id(n, rng) }
}

// olderRound leaves a time of which no id of the older records, a millisecond every
// 16, gets to the first round.
const olderRound = -24 * 365

// distinct counts the different messages of the shares.
func distinct(shares [][]inbox.Message) int {
	ids := make(map[string]struct{})
	for _, share := range shares {
		for _, m := range share {
			ids[m.ID] = struct{}{}
		}
	}
	return len(ids)
}
