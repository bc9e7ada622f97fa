// Package kafka reads Kafka topics into an inbox.
package kafka
