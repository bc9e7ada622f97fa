package kafka_test

import (
	"crypto/tls"
	"crypto/x509"
	"testing"

	"github.com/segmentio/kafka-go/sasl"
	"github.com/segmentio/kafka-go/sasl/plain"
	"github.com/segmentio/kafka-go/sasl/scram"

	"github.com/onceward/onceward/integration/stack"
)

// wayIn is how a broker is reached.
type wayIn struct {
	addr string
	tls  *tls.Config
	sasl sasl.Mechanism
}

// waysIn are all the listeners of a broker that want TLS or SASL, by kafka-go's own types.
func waysIn(t *testing.T, broker stack.Broker) map[string]wayIn {
	t.Helper()
	sha256 := scramOf(t, scram.SHA256, broker.User, broker.Password)
	sha512 := scramOf(t, scram.SHA512, broker.User, broker.Password)
	simple := plain.Mechanism{Username: broker.User, Password: broker.Password}
	trusted := &tls.Config{RootCAs: broker.CA}
	return map[string]wayIn{
		"TLS":   {broker.TLS, trusted, nil},
		"PLAIN": {broker.SASL, nil, simple}, "SCRAM-SHA-256": {broker.SASL, nil, sha256}, "SCRAM-SHA-512": {broker.SASL, nil, sha512},
		"TLS-PLAIN": {broker.SASLTLS, trusted, simple}, "TLS-SCRAM-SHA-256": {broker.SASLTLS, trusted, sha256},
		"TLS-SCRAM-SHA-512": {broker.SASLTLS, trusted, sha512},
	}
}

// wrongPassword must stand in no error.
const wrongPassword = "wrong-secret"

// closedWay is one that leads nowhere, and what the error says then.
type closedWay struct {
	wayIn

	want string
}

// closedWays are those that any client is told of by the real cause.
func closedWays(t *testing.T, broker stack.Broker) map[string]closedWay {
	t.Helper()
	trusted := &tls.Config{RootCAs: broker.CA}
	wrong := plain.Mechanism{Username: broker.User, Password: wrongPassword}
	scramWrong := scramOf(t, scram.SHA256, broker.User, wrongPassword)
	return map[string]closedWay{
		"refused":        {wayIn{addr: closedPort(t)}, "nothing listens there"},
		"unknown host":   {wayIn{addr: "nowhere.invalid:9092"}, "host name is unknown"},
		"password":       {wayIn{addr: broker.SASL, sasl: wrong}, "refused the user or the password"},
		"scram password": {wayIn{addr: broker.SASL, sasl: scramWrong}, "refused the user or the password"},
		"TLS password":   {wayIn{addr: broker.SASLTLS, tls: trusted, sasl: wrong}, "refused the user or the password"},
		"no SASL":        {wayIn{addr: broker.SASL}, "may want TLS or SASL"},
		"no TLS":         {wayIn{addr: broker.TLS}, "may want TLS or SASL"},
		"unasked TLS":    {wayIn{addr: broker.Addr, tls: trusted}, "TLS"},
		"unknown CA":     {wayIn{addr: broker.TLS, tls: &tls.Config{RootCAs: x509.NewCertPool()}}, "certificate is not trusted"},
	}
}

func scramOf(t *testing.T, algorithm scram.Algorithm, user, password string) sasl.Mechanism {
	t.Helper()
	mechanism, err := scram.Mechanism(algorithm, user, password)
	if err != nil {
		t.Fatal(err)
	}
	return mechanism
}
