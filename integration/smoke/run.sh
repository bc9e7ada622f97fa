#!/usr/bin/env bash
# Proves the Docker path of the test servers on a machine that reaches no image registry: installs an engine, runs it
# with its data in a folder of its own, makes the images here from this machine's programs, and runs tests of the stack
# against them in Docker mode. Everything it starts is stopped by its process id.
#
# Needs root, Go and package registries. Fails, and never skips, where no engine can run.
set -euo pipefail
cd "$(dirname "$0")"
smoke=$PWD
integration=$smoke/..

# Servers that already run would be used instead of containers.
unset ONCEWARD_TEST_POSTGRES ONCEWARD_TEST_KAFKA ONCEWARD_TEST_PGBOUNCER ONCEWARD_TEST_POSTGRES_VERSION

say() { echo "smoke: $*"; }
fail() {
	echo "smoke: $*" >&2
	exit 1
}

[ "$(id -u)" = 0 ] || fail "starting a Docker engine needs root: run 'make smoke' as root, or 'ONCEWARD_TEST_STACK=docker make test' with an engine of yours"

# The images are made of what Debian's packages bring. RUNLEVEL=1 keeps packages from starting services.
missing=()
for pair in dockerd:docker.io iptables:iptables pgbouncer:pgbouncer; do
	command -v "${pair%%:*}" >/dev/null || missing+=("${pair#*:}")
done
compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null || missing+=(postgresql)
if [ ${#missing[@]} -gt 0 ]; then
	say "installing ${missing[*]}"
	log=$(mktemp)
	{ apt-get update && DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -y --no-install-recommends "${missing[@]}"; } >"$log" 2>&1 </dev/null ||
		fail "apt-get install ${missing[*]} failed: $(cat "$log")"
	rm -f "$log"
fi
command -v dockerd >/dev/null || fail "docker.io is installed, and there is no dockerd"

# Kafka's jars and Java: the stack installs both.
(cd "$integration" && ONCEWARD_TEST_STACK=native go test -count=1 -run '^TestKafkaLibsHoldBrokerAndClients$' ./stack)

work=$(mktemp -d /tmp/onceward-smoke-XXXXXX)
dockerd_pid=
cleanup() {
	status=$?
	trap - EXIT
	if [ -n "$dockerd_pid" ]; then
		kill "$dockerd_pid" 2>/dev/null || true
		wait "$dockerd_pid" 2>/dev/null || true
	fi
	rm -rf "$work" || true
	exit $status
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# No firewall rules, no forwarding: published ports go through Docker's own proxy on the loopback interface.
dockerd --data-root "$work/data" --exec-root "$work/exec" --pidfile "$work/pid" -H "unix://$work/docker.sock" \
	--ip 127.0.0.1 --iptables=false --ip6tables=false --ip-forward=false --ip-masq=false >"$work/dockerd.log" 2>&1 </dev/null &
dockerd_pid=$!
export DOCKER_HOST="unix://$work/docker.sock" DOCKER_BUILDKIT=0
engine_answers() { docker version >/dev/null 2>&1; }
deadline=$((SECONDS + 30))
until engine_answers; do
	kill -0 "$dockerd_pid" 2>/dev/null || fail "the Docker engine ended at once: $(tail -n 20 "$work/dockerd.log")"
	[ $SECONDS -lt $deadline ] || fail "the Docker engine does not answer after 30 s: $(tail -n 20 "$work/dockerd.log")"
	sleep 0.1
done
say "Docker engine $(docker version --format '{{.Server.Version}}') answers"

# carry DIR PROGRAM...: copies programs and the libraries they need to the same paths below DIR.
carry() {
	local root=$1 program
	shift
	for program in "$@"; do
		{
			echo "$program"
			ldd "$program" 2>/dev/null | grep -o '/[^ ]*' || true
		} | while read -r path; do
			[ -e "$root$path" ] || cp -L --parents "$path" "$root"
		done
	done
}

# base ROOT: what every image has, a shell, a place for temporary files and a user for servers that refuse root.
base() {
	mkdir -p "$1/tmp" "$1/etc"
	chmod 1777 "$1/tmp"
	printf 'root:x:0:0::/:/bin/sh\npostgres:x:70:70::/:/bin/sh\n' >"$1/etc/passwd"
	printf 'root:x:0:\npostgres:x:70:\n' >"$1/etc/group"
	carry "$1" /bin/sh
}

build() { # build DIR TAG: an image of DIR/root by DIR's Dockerfile
	docker build --quiet --network none --tag "$2" "$1" >"$work/build.log" 2>&1 || fail "cannot build $2: $(cat "$work/build.log")"
	say "made $2"
}

postgres=$(compgen -G '/usr/lib/postgresql/*' | sort -V | tail -n 1)
major=$(basename "$postgres")
image=$work/postgres
base "$image/root"
mkdir "$image/data"
cp postgres/Dockerfile postgres/entrypoint.sh "$image"
carry "$image/root" "$postgres/bin/initdb" "$postgres/bin/postgres" "$postgres"/lib/plpgsql.so "$postgres"/lib/dict_snowball.so
cp -r --parents "/usr/share/postgresql/$major" /usr/share/zoneinfo "$image/root"
ln -s "$postgres/bin" "$image/root/programs"
build "$image" "postgres:$major-alpine"

java=$(dirname "$(dirname "$(readlink -f "$(command -v java)")")")
kafka=$(sed -n 's/^const kafkaVersion = "\(.*\)"$/\1/p' "$integration/stack/kafka_jars.go")
image=$work/kafka
base "$image/root"
mkdir -p "$image/root/opt/kafka"
cp kafka/Dockerfile "$image"
carry "$image/root" "$java/bin/java" "$java"/lib/*.so "$java"/lib/server/libjvm.so
tar -C "$java" --dereference --exclude=src.zip --exclude=jmods --exclude=ct.sym -cf - lib conf | tar -C "$image/root$java" -xf -
ln -s "$java" "$image/root/java"
cp -r "${ONCEWARD_TEST_CACHE:-/var/cache/onceward-test}/kafka-$kafka/libs" "$image/root/opt/kafka/libs"
build "$image" "apache/kafka:$kafka"

image=$work/pgbouncer
base "$image/root"
cp pgbouncer/Dockerfile pgbouncer/pgbouncer "$image"
carry "$image/root" /bin/sed "$(command -v pgbouncer)"
build "$image" "$(sed -n 's/^const pgBouncerImage = "\(.*\)"$/\1/p' "$integration/stack/pgbouncer_docker.go")"

# Ryuk, testcontainers' reaper, is an image of its own; here the engine ends with the script.
cd "$integration"
ONCEWARD_TEST_STACK=docker ONCEWARD_TEST_POSTGRES_VERSION=$major TESTCONTAINERS_RYUK_DISABLED=true TESTCONTAINERS_HOST_OVERRIDE=127.0.0.1 \
	go test -count=1 -v -timeout 5m -run '^(TestPostgresKeepsPortAndDataOverKillAndStop|TestKafkaServesEveryListener|TestPgBouncerPoolsByTransaction)$' ./stack
say "the Docker path works"
