package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/onceward/onceward/inbox"
	"github.com/onceward/onceward/store/postgres"
	"github.com/onceward/onceward/store/sqlite"
)

// location says where the database is: a SQLite file, or a schema in PostgreSQL.
type location struct {
	File   string `json:"file"`
	URL    string `json:"url"`
	Schema string `json:"schema"`
}

func (l location) String() string {
	if l.URL == "" {
		return "SQLite at " + l.File
	}
	return "PostgreSQL, schema " + l.Schema
}

// database is the shop's own database, with Onceward's tables beside the
// ledger: only then can one transaction hold the claim and the entry.
type database struct {
	location

	store inbox.Store[*sql.Tx]
	db    *sql.DB
	close func() error

	// ledger has no unique constraint: a doubled entry would be there to see.
	createLedger, insertEntry, countEntries string
}

// openDatabase connects. SQLite creates Onceward's tables by that, PostgreSQL
// has Migrate for it.
func openDatabase(ctx context.Context, at location) (*database, error) {
	d := &database{location: at}
	ledger := "ledger"
	if at.URL == "" {
		store, err := sqlite.Open(ctx, at.File)
		if err != nil {
			return nil, err
		}
		d.store, d.db, d.close = store, store.DB(), store.Close
	} else {
		config, err := parsePostgresURL(at.URL)
		if err != nil {
			return nil, err
		}
		d.db = stdlib.OpenDB(*config)
		if err := ping(ctx, d.db); err != nil {
			return nil, errors.Join(fmt.Errorf("-postgres can't be used: %w", err), d.db.Close())
		}
		d.store, d.close = postgres.NewSQL(d.db, postgres.WithSchema(at.Schema)), d.db.Close
		ledger = pgx.Identifier{at.Schema, ledger}.Sanitize()
	}
	d.createLedger = `CREATE TABLE ` + ledger + ` (order_id text NOT NULL, customer text NOT NULL, cents bigint NOT NULL)`
	d.insertEntry = `INSERT INTO ` + ledger + ` (order_id, customer, cents) VALUES ($1, $2, $3)`
	d.countEntries = `SELECT order_id, count(*) FROM ` + ledger + ` GROUP BY order_id`
	return d, nil
}

func ping(ctx context.Context, db *sql.DB) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return db.PingContext(ctx)
}

// createDatabase makes what a run needs: a file in a folder of its own, or a
// schema of that name. remove undoes it.
func createDatabase(ctx context.Context, postgresURL, name string) (_ *database, err error) {
	at := location{URL: postgresURL, Schema: name}
	if postgresURL == "" {
		folder, err := os.MkdirTemp("", "onceward-quickstart-")
		if err != nil {
			return nil, fmt.Errorf("making a folder for SQLite: %w", err)
		}
		at = location{File: filepath.Join(folder, "shop.db")}
	}
	d, err := openDatabase(ctx, at)
	if err != nil {
		return nil, errors.Join(err, at.removeFolder())
	}
	if err := d.create(ctx); err != nil {
		return nil, errors.Join(err, d.remove(ctx))
	}
	return d, nil
}

func (d *database) create(ctx context.Context) error {
	if store, ok := d.store.(*postgres.SQLStore); ok {
		if err := store.Migrate(ctx); err != nil {
			return err
		}
	}
	if _, err := d.db.ExecContext(ctx, d.createLedger); err != nil {
		return fmt.Errorf("creating the ledger: %w", err)
	}
	return nil
}

// effects counts the entries of each order.
func (d *database) effects(ctx context.Context) (map[string]int, error) {
	rows, err := d.db.QueryContext(ctx, d.countEntries)
	if err != nil {
		return nil, fmt.Errorf("counting the ledger: %w", err)
	}
	defer rows.Close()
	effects := map[string]int{}
	for rows.Next() {
		var id string
		var n int
		if err := rows.Scan(&id, &n); err != nil {
			return nil, fmt.Errorf("counting the ledger: %w", err)
		}
		effects[id] = n
	}
	return effects, rows.Err()
}

// remove closes the database and removes what createDatabase made, also when
// ctx has ended.
func (d *database) remove(ctx context.Context) error {
	if d.URL == "" {
		return errors.Join(d.close(), d.removeFolder())
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 15*time.Second)
	defer cancel()
	_, err := d.db.ExecContext(ctx, `DROP SCHEMA IF EXISTS `+pgx.Identifier{d.Schema}.Sanitize()+` CASCADE`)
	if err != nil {
		err = fmt.Errorf("removing schema %s (please do it by hand): %w", d.Schema, err)
	}
	return errors.Join(err, d.close())
}

func (l location) removeFolder() error {
	if l.File == "" {
		return nil
	}
	return os.RemoveAll(filepath.Dir(l.File))
}

// parsePostgresURL never quotes the URL, which has the password in it, and
// neither the errors of the parsers, which quote it.
func parsePostgresURL(text string) (*pgx.ConnConfig, error) {
	const form = "postgres://USER:PASSWORD@HOST:PORT/DATABASE"
	scheme, _, found := strings.Cut(text, "://")
	if !found {
		return nil, fmt.Errorf("-postgres is not a URL: give %s", form)
	}
	if scheme != "postgres" && scheme != "postgresql" {
		return nil, fmt.Errorf("-postgres is a URL of another kind: give %s", form)
	}
	if _, err := url.Parse(text); err != nil {
		return nil, fmt.Errorf("-postgres can't be read as a URL: write special characters of the password as %%XX, and the port as a number: %s", form)
	}
	config, err := pgx.ParseConfig(text)
	if err != nil {
		return nil, fmt.Errorf("-postgres has a part that can't be right: look at the port, and behind the \"?\" (such as sslmode): %s", form)
	}
	return config, nil
}
