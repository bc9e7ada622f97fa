// Package stack gives tests real servers: PostgreSQL, Apache Kafka and PgBouncer.
//
// A test binary that uses it says so once:
//
//	func TestMain(m *testing.M) { os.Exit(stack.Main(m)) }
//
// and its tests ask for what they need:
//
//	url := stack.Postgres(t)           // a fresh, empty database on the shared server
//	broker := stack.Kafka(t)           // the shared broker and its listeners
//	topic := stack.Topic(t, broker.Addr, 4)
//	pg := stack.NewPostgres(t)         // a server of the test's own: pg.Kill(), pg.Start()
//	k := stack.NewKafka(t)             // a broker of the test's own
//	url = stack.PgBouncer(t, url, nil) // the same database through PgBouncer
//
// A shared server starts when the first test asks for it and stops when Main returns. Its version and where it
// came from are printed once.
//
// # Where servers come from
//
// ONCEWARD_TEST_STACK picks: "native" runs the programs of this machine and installs the missing ones (Debian's
// packages, Kafka's jars by Maven), "docker" runs containers. Unset, each service uses Docker if an engine answers and
// has or can pull the service's image, else it is native. Servers that already run are used instead with
// ONCEWARD_TEST_POSTGRES (URL of a superuser's connection), ONCEWARD_TEST_KAFKA (host:port, plain text) and
// ONCEWARD_TEST_PGBOUNCER (host:port); NewPostgres and NewKafka start servers of their own even then, since a test
// that kills a server must not kill yours. ONCEWARD_TEST_POSTGRES_VERSION (14 to 18) picks PostgreSQL's major version.
//
// A service that cannot be had fails the test and says what to run. Nothing is ever skipped.
//
// # Life of a server
//
//	absent --start--> starting --ready--> running --Stop (asks)----> stopped --Start--> starting
//	                      |                  |-----Kill (SIGKILL)--> stopped
//	                      |                  '-----Main returns, or this process dies--> absent
//	                      '--exits, or not ready in time--> the test fails with the end of the server's log
//
// Stop, Kill and Start keep ports and data. What happens when this process ends without Main's cleanup (a panic, a
// timeout, a signal, kill -9): a watchdog process holds the read end of a pipe; when the pipe closes it kills the native
// servers and removes their folders. Containers are removed by testcontainers' own reaper.
//
// Ports lie below the range the kernel gives to outgoing connections and are reserved among test binaries, so a server
// that is down keeps its port. Everything listens on the loopback interface only.
package stack
