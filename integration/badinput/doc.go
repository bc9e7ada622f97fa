// Package badinput feeds the product what it must not choke on: ids that are missing, huge or binary, payloads beyond every
// default, handlers that misbehave, servers that are not there.
//
// Every test follows one rule. The bad thing ends in a clear error or in a dead letter that holds every byte, nothing is
// lost, and the message behind it in the partition has its effect. Everything runs end to end, on Kafka and PostgreSQL.
package badinput
