#!/bin/sh
# Entry point of the stand-in for the image postgres: an empty volume becomes a cluster, and the mounted scripts are run.
set -eu
export PGDATA=/var/lib/postgresql/18/docker
if [ "$(id -u)" = 0 ]; then
    mkdir -p "$PGDATA"
    chown -R postgres /var/lib/postgresql
    chmod 700 "$PGDATA"
    exec setpriv --reuid postgres --regid postgres --clear-groups "$0" "$@"
fi
if [ ! -e "$PGDATA/PG_VERSION" ]; then
    umask 077
    printf '%s\n' "$POSTGRES_PASSWORD" > /tmp/password
    # shellcheck disable=SC2086 # several arguments
    initdb --username postgres --pwfile /tmp/password --auth-host scram-sha-256 --auth-local trust $POSTGRES_INITDB_ARGS
    rm /tmp/password
    echo 'host all all all scram-sha-256' >> "$PGDATA/pg_hba.conf"
    pg_ctl start --wait --options "-c listen_addresses= -c unix_socket_directories=/tmp"
    for script in /docker-entrypoint-initdb.d/*.sql; do
        psql --host /tmp --username postgres --dbname postgres --file "$script"
    done
    pg_ctl stop --wait --mode fast
fi
exec "$@" -c "listen_addresses=*" -c unix_socket_directories=/tmp
