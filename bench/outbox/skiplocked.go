package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward/bench/internal/contest"
	"github.com/onceward/onceward/bench/internal/dbpool"
)

// The outbox that most people write: a table of events to be published, whose
// reader locks a batch, publishes it and deletes it, in one transaction that does not
// wait for the disk.

const createJobsSQL = `
CREATE TABLE outbox_job (
	id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	message_id text NOT NULL,
	topic      text NOT NULL,
	key        bytea,
	payload    bytea,
	headers    json,
	created_at timestamptz NOT NULL DEFAULT clock_timestamp())`

// fillJobsSQL takes the events from our log, so that both sides read the same bytes.
const fillJobsSQL = `
INSERT INTO outbox_job (message_id, topic, key, payload, headers)
SELECT message_id, topic, key, payload, headers FROM onceward.outbox WHERE topic = $1 ORDER BY number`

const takeJobsSQL = `
SELECT id, message_id, topic, key, payload, headers, created_at FROM outbox_job
ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED`

const deleteJobsSQL = `DELETE FROM outbox_job WHERE id = ANY ($1)`

// jobBatch is what our relay reads at a time, too.
const jobBatch = 8000

type job struct {
	id           int64
	messageID    string
	topic        string
	key, payload []byte
	headers      [][2]string
	createdAt    time.Time
}

func (b *bench) createJobs(ctx context.Context) error { return b.exec(ctx, createJobsSQL) }

func (b *bench) readJobs(held bool) func(context.Context, int) (contest.Sample, error) {
	return func(ctx context.Context, _ int) (contest.Sample, error) {
		if err := b.exec(ctx, `TRUNCATE outbox_job`); err != nil {
			return contest.Sample{}, err
		}
		if _, err := b.pool.Exec(ctx, fillJobsSQL, topic); err != nil {
			return contest.Sample{}, fmt.Errorf("fill the table of jobs: %w", err)
		}
		if err := b.exec(ctx, `VACUUM ANALYZE outbox_job`, `CHECKPOINT`); err != nil {
			return contest.Sample{}, err
		}
		release, err := b.hold(ctx, held)
		if err != nil {
			return contest.Sample{}, err
		}
		defer release()
		url, err := b.lazily()
		if err != nil {
			return contest.Sample{}, err
		}
		pool, err := dbpool.Open(ctx, url, 2, nil)
		if err != nil {
			return contest.Sample{}, err
		}
		defer pool.Close()
		sample, err := contest.Measure(func() (int, error) {
			for total := 0; ; {
				n := 0
				err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) (err error) {
					n, err = publishJobs(ctx, tx)
					return err
				})
				if total += n; err != nil || n == 0 {
					return total, err
				}
			}
		})
		if err == nil && sample.Messages != b.events {
			err = fmt.Errorf("%d of %d jobs were published", sample.Messages, b.events)
		}
		return sample, err
	}
}

// publishJobs reads a batch, publishes it to nobody and deletes it.
func publishJobs(ctx context.Context, tx pgx.Tx) (int, error) {
	rows, err := tx.Query(ctx, takeJobsSQL, jobBatch)
	if err != nil {
		return 0, fmt.Errorf("take jobs: %w", err)
	}
	jobs, err := pgx.AppendRows(make([]job, 0, jobBatch), rows, func(row pgx.CollectableRow) (j job, err error) {
		return j, row.Scan(&j.id, &j.messageID, &j.topic, &j.key, &j.payload, &j.headers, &j.createdAt)
	})
	if err != nil || len(jobs) == 0 {
		return 0, err
	}
	ids := make([]int64, len(jobs))
	for i := range jobs {
		ids[i] = jobs[i].id
	}
	if _, err := tx.Exec(ctx, deleteJobsSQL, ids); err != nil {
		return 0, fmt.Errorf("delete jobs: %w", err)
	}
	return len(jobs), nil
}
