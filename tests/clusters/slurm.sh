#!/usr/bin/env bash
# A SLURM of one node on loopback: munged, slurmctld and slurmd, all of it in one folder.
#   tests/clusters/slurm.sh start FOLDER    # prints the line to be sourced; as root; does nothing if it runs already
#   tests/clusters/slurm.sh stop FOLDER     # cancels all jobs, ends the daemons, removes the folder
# Needs slurm-wlm and munge (apt-get install --no-install-recommends slurm-wlm munge). Nothing in /etc is touched.
set -euo pipefail
verb=$1
mkdir -p "$2"
folder=$(cd "$2" && pwd)
export SLURM_CONF=$folder/slurm.conf
PATH=$PATH:/usr/sbin

alive() { [ -s "$folder/$1.pid" ] && kill -0 "$(cat "$folder/$1.pid")" 2>/dev/null; }

end() {
    if alive "$1"; then
        kill "$(cat "$folder/$1.pid")"
        for _ in $(seq 100); do alive "$1" || return 0; sleep 0.1; done
        kill -9 "$(cat "$folder/$1.pid" 2>/dev/null)" 2>/dev/null || true
    fi
}

port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

start() {
    alive slurmd && return
    chmod 755 "$folder"
    mkdir -p "$folder/state" "$folder/spool"
    host=$(hostname -s)
    head -c 1024 /dev/urandom >"$folder/munge.key"
    chmod 600 "$folder/munge.key"
    cat >"$SLURM_CONF" <<CONF
ClusterName=cehm
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
# A requeued job waits for its credential to end, by default two minutes.
AuthInfo=socket=$folder/munge.sock,cred_expire=5
CredType=cred/munge
# Loopback only.
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SlurmctldPort=$(port)
SlurmdPort=$(port)
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.log
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
ReturnToService=2
KillWait=10
MinJobAge=300
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
# Four jobs at a time, however few cores there are.
SlurmdParameters=config_overrides
NodeName=$host NodeAddr=127.0.0.1 CPUs=4 RealMemory=16000 State=UNKNOWN
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONF
    munged --force --socket="$folder/munge.sock" --key-file="$folder/munge.key" --pid-file="$folder/munged.pid" \
        --log-file="$folder/munged.log" --seed-file="$folder/munge.seed" >/dev/null 2>&1
    slurmctld
    slurmd
    for _ in $(seq 300); do
        [ "$(sinfo --noheader --format=%t 2>/dev/null)" = idle ] && return
        sleep 0.1
    done
    tail -n 20 "$folder"/*.log >&2
    exit 1
}

stop() {
    if alive slurmctld; then
        scancel --user="$(id -un)" || true
        for _ in $(seq 150); do [ -z "$(squeue --noheader)" ] && break; sleep 0.1; done
    fi
    for daemon in slurmd slurmctld munged; do end "$daemon"; done
    rm -rf "$folder"
}

case $verb in
    start) start && echo "export SLURM_CONF=$SLURM_CONF" ;;
    stop) stop ;;
    *) sed -n 2,5p "$0" >&2 && exit 2 ;;
esac
