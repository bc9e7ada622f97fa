// Package quickstart runs the examples against real servers, as a newcomer does.
package quickstart

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/segmentio/kafka-go"

	"github.com/onceward/onceward/integration/stack"
)

func TestMain(m *testing.M) { os.Exit(stack.Main(m)) }

const patience = 3 * time.Minute

func TestQuickstartOnRealServersIsExactlyOnceAndCleansUp(t *testing.T) {
	t.Parallel()
	url, address := stack.Postgres(t), stack.Kafka(t).Addr
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()

	quickstart := exec.CommandContext(ctx, build(t, "quickstart"), "-postgres", url, "-kafka", address)
	output, err := quickstart.CombinedOutput()
	if err != nil {
		t.Fatalf("quickstart: %v\n%s", err, output)
	}
	t.Logf("\n%s", output)
	for _, want := range []string{`kills +4 `, `effects +1,000 `, `lost +0 `, `doubled +0 `} {
		if !regexp.MustCompile(want).Match(output) {
			t.Errorf("the table does not show %q", want)
		}
	}

	var schemas int
	const count = `SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'onceward%'`
	if err := open(t, url).QueryRowContext(ctx, count).Scan(&schemas); err != nil || schemas != 0 {
		t.Errorf("left behind in the database: %d schemas, %v", schemas, err)
	}
	name := regexp.MustCompile(`onceward_quickstart_\w+`).FindString(string(output))
	if name == "" {
		t.Fatal("the output does not name what it creates")
	}
	client := &kafka.Client{Addr: kafka.TCP(address), Timeout: 10 * time.Second, Transport: &kafka.Transport{}}
	metadata, err := client.Metadata(ctx, &kafka.MetadataRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, topic := range metadata.Topics {
		if topic.Name == name {
			t.Errorf("topic %s was left behind", name)
		}
	}
	groups, err := client.ListGroups(ctx, &kafka.ListGroupsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, group := range groups.Groups {
		if group.GroupID == name {
			t.Errorf("group %s was left behind", name)
		}
	}
}

func TestServiceOfTheReadmeBooksOnceAndStopsCleanly(t *testing.T) {
	t.Parallel()
	// A broker of its own: the service's topic has a name that others may use.
	url, address := stack.Postgres(t), stack.NewKafka(t).Addr()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	db := open(t, url)
	if _, err := db.ExecContext(ctx, `CREATE TABLE ledger (order_id text NOT NULL, entry jsonb NOT NULL)`); err != nil {
		t.Fatal(err)
	}
	const orders = 20
	produceTwice(ctx, t, address, orders)

	var log strings.Builder
	service := exec.CommandContext(ctx, build(t, "kafka-postgres"))
	service.Env = append(os.Environ(), "DATABASE_URL="+url, "KAFKA_BROKERS="+address)
	service.Stdout, service.Stderr = &log, &log
	if err := service.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- service.Wait() }()

	drained := waitUntil(ctx, ended, func() bool { return committed(ctx, t, address) >= 2*orders })
	if drained {
		if err := service.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
	} else {
		t.Error("the service did not drain its topic")
		_ = service.Process.Kill()
	}
	if err := <-ended; err != nil {
		t.Errorf("the service ended with %v:\n%s", err, log.String())
	}
	var entries, ids int
	if err := db.QueryRowContext(ctx, `SELECT count(*), count(DISTINCT order_id) FROM ledger`).Scan(&entries, &ids); err != nil {
		t.Fatal(err)
	}
	if entries != orders || ids != orders {
		t.Errorf("%d entries of %d orders, want %d of %d", entries, ids, orders, orders)
	}
}

// TestOrderPipelineShipsEveryOrderOnce kills the whole chain in the midst of its work: what was billed but not published,
// published but not noted, and shipped but not committed all come again, and have one effect. A kill costs the session
// timeout of both groups, so there is one.
func TestOrderPipelineShipsEveryOrderOnce(t *testing.T) {
	t.Parallel()
	url, address := stack.Postgres(t), stack.NewKafka(t).Addr()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	db := open(t, url)
	if _, err := db.ExecContext(ctx, `CREATE TABLE invoice (order_id text NOT NULL, cents bigint NOT NULL)`); err != nil {
		t.Fatal(err)
	}
	if _, err := db.ExecContext(ctx, `CREATE TABLE shipment (order_id text NOT NULL, cents bigint NOT NULL)`); err != nil {
		t.Fatal(err)
	}
	const orders, kills = 300, 1
	produceTwice(ctx, t, address, orders)
	stack.CreateTopic(t, address, "invoices", 1)
	binary := build(t, "order-pipeline")
	shipped := func() (rows, ids int) {
		if err := db.QueryRowContext(ctx, `SELECT count(*), count(DISTINCT order_id) FROM shipment`).Scan(&rows, &ids); err != nil {
			t.Fatal(err)
		}
		return rows, ids
	}

	for life := range kills + 1 {
		var log strings.Builder
		pipeline := exec.CommandContext(ctx, binary)
		pipeline.Env = append(os.Environ(), "DATABASE_URL="+url, "KAFKA_BROKERS="+address)
		pipeline.Stdout, pipeline.Stderr = &log, &log
		if err := pipeline.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- pipeline.Wait() }()
		last := life == kills
		enough := (life + 1) * orders / (kills + 1)
		reached := waitUntil(ctx, ended, func() bool {
			_, ids := shipped()
			return ids >= enough
		})
		if last && reached {
			_ = pipeline.Process.Signal(syscall.SIGTERM)
		} else {
			_ = pipeline.Process.Kill()
		}
		err := <-ended
		if !reached || last && err != nil {
			t.Fatalf("life %d of the pipeline ended with %v:\n%s", life, err, log.String())
		}
	}
	var invoices, billed int
	if err := db.QueryRowContext(ctx, `SELECT count(*), count(DISTINCT order_id) FROM invoice`).Scan(&invoices, &billed); err != nil {
		t.Fatal(err)
	}
	if rows, ids := shipped(); invoices != orders || billed != orders || rows != orders || ids != orders {
		t.Errorf("%d orders: %d invoices of %d, %d shipments of %d; want one each", orders, invoices, billed, rows, ids)
	}
}

// build compiles one of the examples.
func build(t *testing.T, name string) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), name)
	output, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "github.com/onceward/onceward/examples/"+name).CombinedOutput()
	if err != nil {
		t.Fatalf("go build: %v\n%s", err, output)
	}
	return binary
}

func open(t *testing.T, url string) *sql.DB {
	t.Helper()
	db, err := sql.Open("pgx", url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// produceTwice makes the service's topic with one partition and sends every order twice.
func produceTwice(ctx context.Context, t *testing.T, address string, orders int) {
	t.Helper()
	stack.CreateTopic(t, address, "orders", 1)
	writer := &kafka.Writer{Addr: kafka.TCP(address), Topic: "orders", RequiredAcks: kafka.RequireAll, BatchTimeout: 5 * time.Millisecond}
	defer writer.Close()
	var messages []kafka.Message
	for range 2 {
		for i := range orders {
			messages = append(messages, kafka.Message{
				Value:   fmt.Appendf(nil, `{"cents": %d}`, 100+i),
				Headers: []kafka.Header{{Key: "onceward-id", Value: fmt.Appendf(nil, "order-%d", i)}},
			})
		}
	}
	if err := writer.WriteMessages(ctx, messages...); err != nil {
		t.Fatal(err)
	}
}

// committed is how far the service's group has got, 0 before it exists.
func committed(ctx context.Context, t *testing.T, address string) int64 {
	t.Helper()
	client := &kafka.Client{Addr: kafka.TCP(address), Timeout: 10 * time.Second}
	response, err := client.OffsetFetch(ctx, &kafka.OffsetFetchRequest{GroupID: "ledger", Topics: map[string][]int{"orders": {0}}})
	if err != nil {
		t.Log(err)
		return 0
	}
	for _, p := range response.Topics["orders"] {
		return p.CommittedOffset
	}
	return 0
}

// waitUntil waits for done, and gives up when the service or the context has ended.
func waitUntil(ctx context.Context, ended <-chan error, done func() bool) bool {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return false
		}
		if len(ended) > 0 {
			return false
		}
	}
	return true
}
