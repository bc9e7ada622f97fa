package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/onceward/onceward/adapters/kafka"
	"github.com/onceward/onceward/inbox"
)

// job is what the consumer process is told on its standard input.
type job struct {
	Database location      `json:"database"`
	Broker   string        `json:"broker"`
	Topic    string        `json:"topic"`
	Group    string        `json:"group"`
	Session  time.Duration `json:"session"`
	Crash    crash         `json:"crash"`
}

// consume is the service itself, and what a service of yours looks like: a
// handler that writes through the transaction it is given, an inbox around it,
// and a Kafka consumer around that. It returns when ctx has ended and what was
// in its hands is finished.
func consume(ctx context.Context, j *job, w *witness) (err error) {
	db, err := openDatabase(ctx, j.Database)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.close()) }()

	ledger := inbox.New(db.store, "ledger", func(ctx context.Context, tx *sql.Tx, m inbox.Message) error {
		var o order
		if err := json.Unmarshal(m.Payload, &o); err != nil {
			return inbox.Permanent(fmt.Errorf("not an order: %w", err))
		}
		if _, err := tx.ExecContext(ctx, db.insertEntry, o.ID, o.Customer, o.Cents); err != nil {
			return err
		}
		w.booked(m)
		return nil
	}, inbox.OnEvent(w.event))

	w.Processor = ledger
	return kafka.Consume(ctx, kafka.ConsumerConfig{
		Brokers:        []string{j.Broker},
		Group:          j.Group,
		Topics:         []string{j.Topic},
		SessionTimeout: j.Session,
	}, w)
}

// consumerProcess is main in the consumer's process. Its standard input is the
// job, and then silence until it closes: that asks for a clean stop (on every
// operating system, and also when the parent dies). Its standard output is
// one sighting per line.
func consumerProcess() int {
	var j job
	if err := json.NewDecoder(os.Stdin).Decode(&j); err != nil {
		fmt.Fprintln(os.Stderr, "reading the job from standard input:", err)
		return 1
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go func() {
		defer stop()
		_, _ = io.Copy(io.Discard, os.Stdin) // ends with the pipe, however it ends
	}()
	if err := consume(ctx, &j, &witness{crash: j.Crash, tell: tellOn(os.Stdout)}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}
