#!/bin/sh
# Installs what the trials need of Debian's packages. It needs root, and does nothing where all are
# there. Their services are not started, and do not start at boot: the trials start their own.
set -eu

services="slurmctld:slurmctld slurmd:slurmd slurm-client: munge:munge openssh-server:ssh openssh-client:"
packages="" units=""
for pair in $services; do
    package=${pair%%:*}
    dpkg-query --show --showformat '${Status}' "$package" 2>/dev/null | grep -q "ok installed" && continue
    packages="$packages $package"
    units="$units ${pair#*:}"
done
[ -n "$packages" ] || exit 0

fail() {
    echo "trials of deployments: $*" >&2
    echo "Those that need no package: examples/deploy/command_line.py and kube_cluster.py" >&2
    exit 1
}
command -v apt-get >/dev/null || fail "not installed, for there is no apt-get here:$packages"
[ "$(id -u)" = 0 ] || fail "run this as root first: apt-get install$packages"

policy=/usr/sbin/policy-rc.d # asked before a package starts a service
if [ ! -e "$policy" ]; then
    trap 'rm -f "$policy"' EXIT
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod +x "$policy"
fi
echo "trials of deployments: installing$packages"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq || fail "apt-get update failed"
# shellcheck disable=SC2086
apt-get install -qq --no-install-recommends $packages >/dev/null || fail "not installed:$packages"
for unit in $units; do
    ! command -v systemctl >/dev/null || systemctl --quiet disable "$unit"
done
