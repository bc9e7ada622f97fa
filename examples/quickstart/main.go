// Quickstart shows Onceward at work: it sends 1,000 orders through Kafka, each
// of them twice, kills the consumer four times in the middle of its work, and
// counts what arrived in the ledger.
//
//	go run ./examples/quickstart
//
// It needs nothing but Go: Kafka runs inside the program (a fake that speaks
// the real protocol) and the database is SQLite in a temporary folder. With
// -kafka and -postgres the same code runs on real servers.
//
// Read consumer.go first: it is the service. The rest makes its life hard
// (producer.go, witness.go, process.go) and looks at the result (report.go).
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"strings"
	"time"
)

const (
	orderCount = 1_000
	// patience ends a run that makes no progress; on real servers each kill
	// costs the session timeout of the consumer group.
	patience = 3 * time.Minute
)

// kills is what happens to the first consumers, one after the other.
var kills = []moment{insideTransaction, beforeOffset, insideTransaction, beforeOffset}

const usage = `Sends 1,000 orders through Kafka, each of them twice, kills the consumer in the
middle of its work, and counts the effects. Exit status 0: every order had
exactly one. Exit status 1: it had not, or the run failed.

  go run ./examples/quickstart
        Kafka inside the program and SQLite in a temporary folder
  go run ./examples/quickstart -kafka HOST:PORT -postgres URL
        the same on real servers; topic, group and schema get names of their
        own and are removed at the end

`

func main() {
	if os.Getenv(consumerEnv) != "" {
		os.Exit(consumerProcess())
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	status := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(status)
}

// run is the program; it returns the exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	out, complain := log.New(stdout, "", 0), log.New(stderr, "quickstart: ", 0)
	flags := flag.NewFlagSet("quickstart", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		_, _ = fmt.Fprint(flags.Output(), usage)
		flags.PrintDefaults()
	}
	kafkaAddress := flags.String("kafka", "", "a Kafka `HOST:PORT` without TLS (default: inside the program)")
	postgresURL := flags.String("postgres", "", "a PostgreSQL `URL`, postgres://USER:PASSWORD@HOST:PORT/DATABASE (default: SQLite)")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	case flags.NArg() > 0:
		complain.Printf("%q is not understood: there are only flags", flags.Arg(0))
		flags.Usage()
		return 2
	}
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not done after %v", patience))
	defer cancel()
	result, err := exercise(ctx, *kafkaAddress, *postgresURL, out)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = fmt.Errorf("%w: %w", cause, err)
		}
		complain.Print(err)
		return 1
	}
	out.Printf("\n%v", result)
	if !result.exactlyOnce() {
		out.Print("\nNOT exactly once. Please report this with the output above.")
		return 1
	}
	out.Print("\nEvery order took effect exactly once.")
	return 0
}

// exercise is the whole story, told on out.
func exercise(ctx context.Context, kafkaAddress, postgresURL string, out *log.Logger) (_ *report, err error) {
	began := time.Now()
	say := func(format string, args ...any) {
		out.Printf("%6.2fs  %s", time.Since(began).Seconds(), fmt.Sprintf(format, args...))
	}
	name := "onceward_quickstart_" + strings.ToLower(rand.Text()[:8])

	db, err := createDatabase(ctx, postgresURL, name)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, db.remove(ctx)) }()
	kafka, err := openBroker(ctx, kafkaAddress)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, kafka.close(ctx, name, name)) }()
	if err := kafka.createTopic(ctx, name); err != nil {
		return nil, err
	}
	say("topic %s on Kafka at %s, ledger in %s", name, kafka.address, db.location)

	result := &report{orders: newOrders(orderCount)}
	messages := withRetries(result.orders)
	if err := kafka.send(ctx, name, messages); err != nil {
		return nil, err
	}
	result.sent = len(messages)
	say("sent %s messages: %s orders, each of them twice", grouped(len(messages)), grouped(len(result.orders)))
	ends, err := kafka.ends(ctx, name)
	if err != nil {
		return nil, err
	}

	for number := 1; ; number++ {
		j := &job{Database: db.location, Broker: kafka.address, Topic: name, Group: name, Session: kafka.session}
		if number <= len(kills) {
			j.Crash = crash{Moment: kills[number-1], After: int64(orderCount / (len(kills) + 1))}
		}
		end, err := superviseConsumer(ctx, j, func() (bool, error) { return kafka.drained(ctx, name, name, ends) }, &result.seen)
		if err != nil {
			return nil, err
		}
		if result.effects, err = db.effects(ctx); err != nil {
			return nil, err
		}
		entries := grouped(result.entries())
		switch end.Moment {
		case insideTransaction:
			result.kills++
			say("consumer %d killed %s: %s was booked, not committed (ledger: %s)", number, end.Moment, end.Order, entries)
		case beforeOffset:
			result.kills++
			say("consumer %d killed %s: %s is booked and will come again (ledger: %s)", number, end.Moment, end.Order, entries)
		default:
			say("consumer %d drained the topic and stopped (ledger: %s)", number, entries)
			return result, nil
		}
	}
}
