package sqlite_test

import (
	"bufio"
	"context"
	"database/sql"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/idempotency"
	"github.com/onceward/onceward/store/sqlite"
)

// childPath is the environment variable that makes the test binary the other
// process on the database it names.
const childPath = "ONCEWARD_SQLITE_TEST_CHILD"

func claim(key string) []idempotency.Claim {
	return []idempotency.Claim{{Scope: "test", Key: key, Retention: time.Hour}}
}

// beTheOtherProcess commits "done", holds "held" open until it is killed, and
// says so in between.
func beTheOtherProcess(path string) {
	ctx := context.Background()
	store, err := sqlite.Open(ctx, path)
	if err == nil {
		effect := func(ctx context.Context, tx *sql.Tx, name string) error {
			_, err := tx.ExecContext(ctx, `INSERT INTO effect (name) VALUES (?)`, name)
			return err
		}
		err = store.Atomic(ctx, claim("done"), func(ctx context.Context, tx *sql.Tx, _ []idempotency.Verdict) error {
			return effect(ctx, tx, "done")
		})
		if err == nil {
			err = store.Atomic(ctx, claim("held"), func(ctx context.Context, tx *sql.Tx, _ []idempotency.Verdict) error {
				if err := effect(ctx, tx, "held"); err != nil {
					return err
				}
				fmt.Fprintln(os.Stdout, "holding")
				select {}
			})
		}
	}
	fmt.Fprintln(os.Stdout, "failed:", err)
	os.Exit(1)
}

func TestKilledProcessKeepsWhatItCommittedAndFreesWhatItHeld(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	child := exec.CommandContext(t.Context(), os.Args[0])
	child.Env = append(os.Environ(), childPath+"="+d.path)
	output, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(output).ReadString('\n')
	if err != nil || strings.TrimSpace(line) != "holding" {
		t.Fatalf("the other process says %q, %v", line, err)
	}

	// While it lives it has the lock, and we are told so.
	impatient := d.open(t, 50*time.Millisecond)
	err = impatient.Atomic(t.Context(), claim("held"), nothing)
	wantIs(t, err, idempotency.ErrInProgress)

	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait()

	store := d.open(t, time.Minute)
	for key, want := range map[string]idempotency.Verdict{"done": idempotency.Duplicate, "held": idempotency.Fresh} {
		err := store.Atomic(t.Context(), claim(key), func(_ context.Context, _ *sql.Tx, verdicts []idempotency.Verdict) error {
			if verdicts[0] != want {
				t.Errorf("%s: %v, want %v", key, verdicts[0], want)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if done, held := d.CountEffects(t, "done"), d.CountEffects(t, "held"); done != 1 || held != 0 {
		t.Errorf("%d effects of what was committed, %d of what was held", done, held)
	}
}
