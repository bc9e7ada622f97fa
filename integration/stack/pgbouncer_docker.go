package stack

import (
	"net/url"

	"github.com/testcontainers/testcontainers-go"
)

const pgBouncerImage = "edoburu/pgbouncer:v1.24.1-p1"

// pgBouncerImagePort is where PgBouncer listens inside its container.
const pgBouncerImagePort = 6432

// dockerPgBouncer describes a container that reaches the server by its address among the containers.
func dockerPgBouncer(port int, server string, user *url.Userinfo, settings map[string]string) *container {
	const config = "/etc/pgbouncer/onceward.ini"
	ini := pgBouncerConfig("0.0.0.0", pgBouncerImagePort, server, user, true, settings)
	return &container{
		image: pgBouncerImage,
		ports: map[int]int{pgBouncerImagePort: port},
		options: []testcontainers.ContainerCustomizer{
			testcontainers.WithEntrypoint("pgbouncer"),
			testcontainers.WithCmd(config),
			testcontainers.WithFiles(file(config, []byte(ini))),
		},
	}
}
