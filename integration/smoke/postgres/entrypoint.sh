#!/bin/sh
# Like the official image's: makes the cluster at the first start, then becomes the server.
set -e
data=/var/lib/postgresql/data
if [ ! -s "$data/PG_VERSION" ]; then
	initdb -D "$data" -U postgres -A "${POSTGRES_HOST_AUTH_METHOD:?}" -E UTF8 --locale=C --no-sync
	echo "host all all all $POSTGRES_HOST_AUTH_METHOD" >>"$data/pg_hba.conf"
fi
exec "$@" -D "$data" -c listen_addresses='*' -c unix_socket_directories=
