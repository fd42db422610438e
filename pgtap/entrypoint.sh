#!/bin/sh
# Makes the cluster where there is none, then becomes the server; arguments are server settings.
# POSTGRES_PASSWORD, POSTGRES_USER, POSTGRES_DB and /docker-entrypoint-initdb.d count at the making.
set -eu
user=${POSTGRES_USER:-postgres}
database=${POSTGRES_DB:-$user}

set -- --shared_preload_libraries=pg_cron --cron.database_name="$database" \
    --cron.use_background_workers=on "$@"

if [ ! -s "$PGDATA/PG_VERSION" ]; then
    : "${POSTGRES_PASSWORD:?the password of the role $user}"
    password_file=$(mktemp)
    printf '%s\n' "$POSTGRES_PASSWORD" > "$password_file"
    initdb --username="$user" --pwfile="$password_file" --encoding=UTF8 --no-locale --no-sync \
        --auth-local=trust --auth-host=scram-sha-256
    rm "$password_file"
    echo 'host all all all scram-sha-256' >> "$PGDATA/pg_hba.conf"

    # Nobody meets a half-made cluster: no TCP, and the socket in a folder of its own.
    PGHOST=$(mktemp -d)
    export PGHOST
    pg_ctl start --wait --silent --log=/dev/null \
        --options="--listen_addresses= --unix_socket_directories=$PGHOST"
    if [ "$database" != postgres ]; then
        createdb --username="$user" "$database"
    fi
    for script in /docker-entrypoint-initdb.d/*; do
        case $script in
            *.sh) sh "$script" ;;
            *.sql) psql -X -q -v ON_ERROR_STOP=1 -U "$user" -d "$database" -f "$script" ;;
        esac
    done
    pg_ctl stop --wait --silent --mode=fast
    rm -r "$PGHOST"
    unset PGHOST
fi

exec postgres --listen_addresses='*' "$@"
