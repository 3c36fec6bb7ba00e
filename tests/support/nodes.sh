#!/usr/bin/env bash
# Two nodes on one machine: n1 and n2, each with a network namespace and a host name of its own. Needs root.
#   nodes.sh up            makes a bridge with n1 (.1), n2 (.2) and this machine (.254); prints the network, e.g. 198.18.7
#   nodes.sh exec n1 CMD   runs CMD on a node
#   nodes.sh kill n1       ends every process on a node
#   nodes.sh down          ends every process on the nodes, and removes them; also what a broken `up` left
# NODES_ROOT names the folder that holds what it made. Exits 3 with the reason where the machine does not allow it.
set -euo pipefail
root=${NODES_ROOT:?names a folder}
names="n1 n2"

refuse() { echo "nodes.sh: $1: tests on two nodes are skipped." >&2; exit 3; }

# Only one process can make a bridge of a name: the one that made lockstep<i> owns 198.18.<i>.0/24, a range for tests.
claim() {
  local i error
  for i in $(seq 250); do
    if error=$(ip link add "lockstep$i" type bridge 2>&1); then
      echo "$i" > "$root/number"
      return
    fi
    [[ $error == *exists* ]] || refuse "no network can be made here (${error%%$'\n'*})"
  done
  refuse "250 networks are in use"
}

up() {
  [ "$(id -u)" = 0 ] || refuse "network namespaces need root"
  command -v ip nsenter unshare > /dev/null || refuse "ip (iproute2), nsenter or unshare is missing"
  mkdir -p "$root"
  claim
  trap 'down' EXIT
  local i net name
  i=$(cat "$root/number")
  net=198.18.$i
  printf '127.0.0.1 localhost\n%s.254 %s\n%s.1 n1\n%s.2 n2\n' "$net" "$(hostname -s)" "$net" "$net" > "$root/hosts"
  ip addr add "$net.254/24" dev "lockstep$i"
  ip link set "lockstep$i" up
  for name in $names; do
    ip netns add "lockstep$i$name"
    ip link add "ls$i$name" type veth peer name eth0 netns "lockstep$i$name"
    ip link set "ls$i$name" master "lockstep$i" up
    ip -n "lockstep$i$name" addr add "$net.${name#n}/24" dev eth0
    ip -n "lockstep$i$name" link set eth0 up
    ip -n "lockstep$i$name" link set lo up
  done
  (become n1 true) || refuse "no process can be put on a node"
  trap - EXIT
  echo "$net"
}

# nsenter, not `ip netns exec`: that mounts another /sys, without cgroups, and slurmd does not start.
# This process becomes the command, so that signals reach it.
become() {
  local name=$1
  shift
  exec nsenter --net="/run/netns/lockstep$(cat "$root/number")$name" unshare --uts --mount bash -c '
    hostname "$0" && mount --bind "$1" /etc/hosts && mount --bind /dev/null /etc/resolv.conf && shift && exec "$@"' \
    "$name" "$root/hosts" "$@"
}

end() {
  ip netns pids "lockstep$(cat "$root/number")$1" | xargs -r kill -9 2> /dev/null || true
}

down() {
  [ -s "$root/number" ] || return 0
  local i name
  i=$(cat "$root/number")
  for name in $names; do
    [ -e "/run/netns/lockstep$i$name" ] || continue
    end "$name"
    ip netns del "lockstep$i$name"
  done
  [ ! -e "/sys/class/net/lockstep$i" ] || ip link del "lockstep$i"
  rm -f "$root/number" "$root/hosts"
}

case "${1:-}" in
  up) up ;;
  kill) end "$2" ;;
  down) down ;;
  exec) shift; become "$@" ;;
  *) sed -n '2,8s/^# //p' "$0" >&2; exit 2 ;;
esac
