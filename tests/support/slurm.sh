#!/usr/bin/env bash
# A real SLURM on this machine, for tests: nodes n1 and n2, partitions low (default) and high, which preempts low.
#   slurm.sh install     installs Debian's packages where they are missing and it may
#   slurm.sh up          starts it; prints the line to put in your shell
#   slurm.sh down        ends it, also what a broken `up` left
# SLURM_ROOT names the folder that holds all it writes. As root, where the machine allows it, every node has its own
# network and host name (nodes.sh); else both are this machine.
# With SLURM_ACCOUNTING=yes it has a data base that sacct reads, and forgets jobs after seconds; without it sacct fails.
# Exits 3 with the reason where there can be no SLURM.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
PATH=$PATH:/usr/sbin:/sbin
cpus=8 memory_mib=16000 gpus=2 # of each node, on paper
accounting=${SLURM_ACCOUNTING:-}

refuse() { echo "slurm.sh: $1: the SLURM tests are skipped." >&2; exit 3; }

install() {
  local name missing="" names="slurmctld slurmd squeue munged ip ss"
  local packages="slurmctld slurmd slurm-client munge iproute2"
  if [ -n "$accounting" ]; then
    names+=" slurmdbd mariadbd mariadb mariadb-install-db"
    packages+=" slurmdbd mariadb-server-core mariadb-client-core"
  fi
  for name in $names; do command -v "$name" > /dev/null || missing+=" $name"; done
  [ -n "$missing" ] || return 0
  [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null || refuse "not here:$missing"
  local apt="apt-get -qq -o DPkg::Lock::Timeout=300"
  export DEBIAN_FRONTEND=noninteractive
  { timeout 120 $apt update && timeout 300 $apt install -y --no-install-recommends $packages; } > /dev/null ||
    refuse "apt-get cannot install $packages here"
}

within() { # seconds command...: until it holds
  local end=$((SECONDS + $1))
  until "${@:2}" 2> /dev/null; do
    [ $SECONDS -lt $end ] || return 1
    sleep 0.1
  done
}

is_networked() { [ -s "$NODES_ROOT/number" ]; }
controller_answers() { timeout 30 scontrol ping | grep -q "is UP"; }
nodes_are_idle() { [ "$(timeout 30 sinfo --noheader --Node --partition=low --states=idle | wc -l)" = 2 ]; }
has_no_jobs() { [ -z "$(timeout 30 squeue --noheader)" ]; }
# a zombie has ended, also where nobody asks for its code
is_ended() { ! grep -q '^State:.[^ZX]' "/proc/$1/status"; }

free_ports() { # five in a row, below those that the kernel hands out
  local first
  first=$((17000 + $(cksum <<< "$root" | cut -d' ' -f1) % 2000 * 5))
  while ss -Hltn | grep -Eq ":($first|$((first + 1))|$((first + 2))|$((first + 3))|$((first + 4))) "; do
    first=$((first + 5))
  done
  echo "$first"
}

write_conf() { # network; empty: both nodes are this machine
  local me host port n address=127.0.0.1 name
  me=$(id -un) host=$(hostname -s) port=$(free_ports)
  [ -z "$1" ] || address=$1.254
  cat > "$root/slurm.conf" << CONF
ClusterName=lockstep
SlurmctldHost=$host($address)
SlurmctldPort=$port
SlurmUser=$me
SlurmdUser=$me
AuthType=auth/munge
# a requeued job waits for cred_expire to pass, by default 120 s
AuthInfo=socket=$root/run/munge.sock,cred_expire=5
StateSaveLocation=$root/state
SlurmdSpoolDir=$root/spool/%n
SlurmctldPidFile=$root/run/slurmctld.pid
SlurmdPidFile=$root/run/slurmd-%n.pid
SlurmctldLogFile=$root/log/slurmctld.log
SlurmdLogFile=$root/log/slurmd-%n.log
# neither systemd nor cgroups; more cores than there are
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=$((memory_mib / cpus))
GresTypes=gpu
# looks often, for tests; waits long, for the machine may be busy
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1
KillWait=60
OverTimeLimit=0
SlurmctldTimeout=30
SlurmdTimeout=15
MessageTimeout=30
ReturnToService=2
MinJobAge=$([ -n "$accounting" ] && echo 2 || echo 3600)
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
CONF
  for n in 1 2; do
    name="NodeHostname=$host NodeAddr=127.0.0.1"
    [ -z "$1" ] || name="NodeHostname=n$n NodeAddr=$1.$n"
    mkdir -p "$root/spool/n$n" "$root/devices/n$n"
    echo "NodeName=n$n $name Port=$((port + n)) CPUs=$cpus RealMemory=$memory_mib Gres=gpu:$gpus" >> "$root/slurm.conf"
    # a GPU is a device file; the number its name ends with comes in CUDA_VISIBLE_DEVICES
    for ((i = 0; i < gpus; i++)); do ln -sf /dev/null "$root/devices/n$n/gpu$i"; done
    echo "NodeName=n$n Name=gpu File=$root/devices/n$n/gpu[0-$((gpus - 1))]" >> "$root/gres.conf"
  done
  cat >> "$root/slurm.conf" << CONF
PartitionName=low Nodes=n[1-2] Default=YES MaxTime=INFINITE PriorityTier=1 PreemptMode=REQUEUE GraceTime=0
PartitionName=high Nodes=n[1-2] MaxTime=INFINITE PriorityTier=10 PreemptMode=OFF
CONF
  [ -z "$accounting" ] || write_accounting "$host" $((port + 3)) $((port + 4))
  # slurmd asks for cgroups it does not use; before 24.05 it does not know "disabled"
  echo "CgroupPlugin=$([[ $(slurmd -V) > "slurm-wlm 24.05" ]] && echo disabled || echo cgroup/v1)" > "$root/cgroup.conf"
}

write_accounting() { # host, port of slurmdbd, port of the data base
  cat >> "$root/slurm.conf" << CONF
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort=$2
AccountingStoragePass=$root/run/munge.sock
CONF
  (umask 077 && cat > "$root/slurmdbd.conf" << CONF
DbdHost=$1
DbdAddr=127.0.0.1
DbdPort=$2
SlurmUser=$(id -un)
AuthType=auth/munge
AuthInfo=socket=$root/run/munge.sock
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort=$3
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm
PidFile=$root/run/slurmdbd.pid
LogFile=$root/log/slurmdbd.log
CONF
  )
}

sql() { mariadb --no-defaults --socket="$root/run/mariadbd.sock" --user="$(id -un)" "$@"; }
accounts_answer() { timeout 30 sacctmgr --immediate --noheader list cluster > /dev/null; }

start_accounting() {
  local port
  port=$(sed -n 's/^StoragePort=//p' "$root/slurmdbd.conf")
  mariadb-install-db --no-defaults --datadir="$root/db" --user="$(id -un)" --auth-root-authentication-method=socket \
    --auth-root-socket-user="$(id -un)" --skip-test-db > "$root/log/mariadb.log"
  mariadbd --no-defaults --user="$(id -un)" --datadir="$root/db" --socket="$root/run/mariadbd.sock" \
    --bind-address=127.0.0.1 --port="$port" --pid-file="$root/run/mariadbd.pid" \
    --innodb-buffer-pool-size=64M >> "$root/log/mariadb.log" 2>&1 < /dev/null &
  within 120 sql --execute="CREATE USER slurm@'%' IDENTIFIED BY 'slurm'; GRANT ALL ON slurm.* TO slurm@'%'" ||
    { echo "slurm.sh: the data base does not answer" >&2; exit 1; }
  slurmdbd
  within 120 accounts_answer || { echo "slurm.sh: slurmdbd does not answer" >&2; exit 1; }
  sacctmgr --immediate add cluster lockstep > "$root/log/sacctmgr.log"
}

start_node() {
  if is_networked; then "$here/nodes.sh" exec "$1" slurmd -N "$1"; else slurmd -N "$1"; fi
}

up() {
  install
  if [ -s "$root/run/slurmctld.pid" ] && nodes_are_idle; then
    echo "export SLURM_CONF=$SLURM_CONF"
    return
  fi
  down
  mkdir -p "$root"/{state,spool,log,run,munge}
  chmod 700 "$root/munge"
  rm -f "$root/gres.conf"
  trap 'down; tail -n 5 "$root"/log/*.log "$root/munge/munged.log" >&2' EXIT
  write_conf "$("$here/nodes.sh" up || true)"
  (umask 077 && head -c 1024 /dev/urandom > "$root/munge/key")
  munged --force --key-file="$root/munge/key" --socket="$root/run/munge.sock" --pid-file="$root/run/munged.pid" \
    --log-file="$root/munge/munged.log" --seed-file="$root/munge/seed"
  [ -z "$accounting" ] || start_accounting
  slurmctld
  within 120 controller_answers || { echo "slurm.sh: slurmctld does not answer" >&2; exit 1; }
  start_node n1
  start_node n2
  within 120 nodes_are_idle || { echo "slurm.sh: the nodes do not answer" >&2; exit 1; }
  trap - EXIT
  echo "export SLURM_CONF=$SLURM_CONF"
}

end() { # the process of a pid file: asked, then made to
  local pid
  pid=$(cat "$root/run/$1.pid" 2> /dev/null) || return 0
  rm -f "$root/run/$1.pid"
  # numbers are used again
  [ "$(cat "/proc/$pid/comm" 2> /dev/null)" = "${1%%-*}" ] || return 0
  kill "$pid" || true
  within "$2" is_ended "$pid" || kill -9 "$pid" || true
}

kill_node() {
  if is_networked; then "$here/nodes.sh" kill "$1"; else end "slurmd-$1" 0; fi
}

down() {
  if [ -s "$root/run/slurmctld.pid" ] && ! is_networked; then
    timeout 5 scancel --user="$(id -un)" && within 5 has_no_jobs || true
  fi
  kill_node n1
  kill_node n2
  end slurmctld 5
  end slurmdbd 5
  end mariadbd 5
  end munged 5
  "$here/nodes.sh" down
}

if [ "${1:-}" = install ]; then install; exit; fi
root=${SLURM_ROOT:?names a folder}
export SLURM_CONF=$root/slurm.conf NODES_ROOT=$root/nodes
case "${1:-}" in
  up) up ;;
  down) down ;;
  *) sed -n '2,9s/^# //p' "$0" >&2; exit 2 ;;
esac
