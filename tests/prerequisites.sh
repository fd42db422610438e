#!/bin/sh
# Brings what the tests need beside Python: Debian's PostgreSQL with pgTAP, pg_cron and
# plpgsql_check, and pg_prove. As root it installs what is missing; others learn what to run.
set -eu
command -v apt-get > /dev/null || exit 0

version=$(find /usr/lib/postgresql -path '*/bin/postgres' 2> /dev/null | cut -d / -f 5 | sort -n | tail -n 1)
if [ -z "$version" ]; then
    [ "$(id -u)" -ne 0 ] || apt-get update --quiet --quiet
    version=$(apt-cache depends postgresql | sed -n 's/^ *Depends: postgresql-\([0-9]*\)$/\1/p')
fi

missing=
for package in "postgresql-$version" "postgresql-$version-cron" "postgresql-$version-pgtap" \
    "postgresql-$version-plpgsql-check" libtap-parser-sourcehandler-pgtap-perl; do
    dpkg-query --show --showformat '${Status}' "$package" 2> /dev/null | grep -q 'ok installed' ||
        missing="$missing $package"
done
[ -n "$missing" ] || exit 0

if [ "$(id -u)" -ne 0 ]; then
    echo "for all tests, run: sudo apt-get install --no-install-recommends$missing"
    exit 0
fi
echo "installing Debian's packages$missing"

# A server package makes and starts a cluster of its own, which nobody here asked for.
settings=/etc/postgresql-common/createcluster.d
mkdir -p "$settings"
trap 'rm -f "$settings/pgoutbox.conf"' EXIT
echo 'create_main_cluster = false' > "$settings/pgoutbox.conf"

apt-get update --quiet --quiet
# shellcheck disable=SC2086
DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet --quiet --no-install-recommends $missing > /dev/null
