package wire_test

import (
	"context"
	"io"
	"net"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/onceward/onceward/bench/internal/wire"
)

// A server that answers whatever it reads with one byte per write it saw.
func dialEcho(t *testing.T, meter *wire.Meter) (client, server net.Conn) {
	t.Helper()
	client, server = net.Pipe()
	t.Cleanup(func() { _ = client.Close(); _ = server.Close() })
	counted, err := meter.Dial(func(context.Context, string, string) (net.Conn, error) { return client, nil })(t.Context(), "tcp", "")
	if err != nil {
		t.Fatal(err)
	}
	return counted, server
}

// exchange writes the parts one after the other and then reads one answer.
func exchange(t *testing.T, client, server net.Conn, parts ...[]byte) {
	t.Helper()
	total := 0
	for _, p := range parts {
		total += len(p)
	}
	done := make(chan error, 1)
	go func() {
		if _, err := io.CopyN(io.Discard, server, int64(total)); err != nil {
			done <- err
			return
		}
		_, err := server.Write([]byte{'Z'})
		done <- err
	}()
	for _, p := range parts {
		if _, err := client.Write(p); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := client.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func encode(t *testing.T, messages ...pgproto3.FrontendMessage) []byte {
	t.Helper()
	var buf []byte
	for _, m := range messages {
		var err error
		if buf, err = m.Encode(buf); err != nil {
			t.Fatal(err)
		}
	}
	return buf
}

func TestStatementsAndRoundTripsAreCountedHoweverTheWritesAreCut(t *testing.T) {
	t.Parallel()
	var meter wire.Meter
	client, server := dialEcho(t, &meter)

	exchange(t, client, server, encode(t, &pgproto3.StartupMessage{ProtocolVersion: pgproto3.ProtocolVersion30, Parameters: map[string]string{"user": "QQEE"}}))
	if got := meter.Count(); got.Statements != 0 || got.RoundTrips != 1 {
		t.Fatalf("after startup: %+v, want no statements and one round trip", got)
	}
	before := meter.Count()

	pipeline := encode(t,
		&pgproto3.Query{String: "begin"},
		&pgproto3.Parse{Query: "select EQ"}, &pgproto3.Bind{}, &pgproto3.Execute{}, &pgproto3.Sync{},
		&pgproto3.Bind{}, &pgproto3.Execute{}, &pgproto3.Sync{})
	var bytewise [][]byte
	for i := range pipeline {
		bytewise = append(bytewise, pipeline[i:i+1])
	}
	exchange(t, client, server, bytewise...)
	exchange(t, client, server, encode(t, &pgproto3.Query{String: "commit"}))

	got := meter.Count().Minus(before)
	if got.Statements != 4 || got.RoundTrips != 2 {
		t.Errorf("%+v, want 4 statements in 2 round trips", got)
	}
	if got.Read != 2 {
		t.Errorf("%d bytes read, want 2", got.Read)
	}
}
