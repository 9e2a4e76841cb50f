#!/usr/bin/env bash
# A Grid Engine of one host: sge_qmaster and sge_execd, all of it in one folder.
#   tests/clusters/sge.sh start FOLDER    # prints the lines to be sourced; as root; does nothing if it runs already
#   tests/clusters/sge.sh stop FOLDER     # deletes all jobs, ends the daemons, removes the folder
# Needs gridengine-master, gridengine-exec and gridengine-client (apt-get install --no-install-recommends). The cell
# that these packages make is not touched. Both daemons listen on all interfaces, on free ports: Grid Engine has no
# setting for that. localhost is the only administrative and submit host.
set -euo pipefail
verb=$1
mkdir -p "$2"
folder=$(cd "$2" && pwd)
settings=$folder/settings
master=qmaster/qmaster.pid
execd=execd/localhost/execd.pid
PATH=$PATH:/usr/sbin
if [ -e "$settings" ]; then . "$settings"; fi

pid() { cat "$folder/$1" 2>/dev/null; }

alive() { [ -n "$(pid "$1")" ] && kill -0 "$(pid "$1")" 2>/dev/null; }

ports() {
    python3 -c 'import socket; two = [socket.create_server(("127.0.0.1", 0)) for _ in "me"]
print(*(s.getsockname()[1] for s in two))'
}

start() {
    alive $execd && return
    chmod 755 "$folder"
    mkdir -p "$folder/cell/common" "$folder/qmaster/job_scripts" "$folder/spool" "$folder/execd"
    for part in bin lib util utilbin; do ln -sfn "/var/lib/gridengine/$part" "$folder/$part"; done
    read -r first second <<<"$(ports)"
    cat >"$settings" <<LINES
export SGE_ROOT=$folder
export SGE_CELL=cell
export SGE_QMASTER_PORT=$first
export SGE_EXECD_PORT=$second
LINES
    . "$settings"
    # Whatever this machine's name resolves to, it is localhost here.
    echo "localhost $(hostname) $(hostname -f)" >"$folder/cell/common/host_aliases"
    echo localhost >"$folder/cell/common/act_qmaster"
    sed -e 's|^admin_user .*|admin_user none|' -e "s|^spooling_params .*|spooling_params $folder/spool|" \
        -e "s|^qmaster_spool_dir .*|qmaster_spool_dir $folder/qmaster|" \
        /usr/share/gridengine/default-bootstrap >"$folder/cell/common/bootstrap"
    # Root may hand in jobs, and states are told at once.
    sed -e "s|^execd_spool_dir .*|execd_spool_dir $folder/execd|" -e 's|^\(min_.id\) .*|\1 0|' \
        -e 's|^load_report_time .*|load_report_time 00:00:01|' -e 's|^mailer .*|mailer /bin/true|' \
        /usr/share/gridengine/default-configuration >"$folder/configuration"
    tool=/usr/lib/gridengine
    "$tool/spoolinit" berkeleydb libspoolb "$folder/spool" init >/dev/null
    "$tool/spooldefaults" configuration "$folder/configuration" >/dev/null
    "$tool/spooldefaults" complexes /usr/share/gridengine/util/resources/centry >/dev/null
    "$tool/spooldefaults" usersets /usr/share/gridengine/util/resources/usersets >/dev/null
    "$tool/spooldefaults" managers root >/dev/null
    sge_qmaster
    for _ in $(seq 100); do qconf -sh >/dev/null 2>&1 && break; sleep 0.1; done
    qconf -as localhost >/dev/null 2>&1
    # Jobs get the environment of the daemon: as little as on a node.
    env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin SGE_ROOT="$SGE_ROOT" SGE_CELL="$SGE_CELL" SGE_EXECD_PORT="$second" \
        SGE_QMASTER_PORT="$first" sge_execd
    qconf -ssconf | sed -e 's|^schedule_interval .*|schedule_interval 0:0:1|' -e 's|^\(flush_.*_sec\) .*|\1 1|' \
        -e 's|^job_load_adjustments .*|job_load_adjustments NONE|' >"$folder/scheduler"
    qconf -Msconf "$folder/scheduler" >/dev/null 2>&1
    # Four jobs at a time, however few cores there are and whatever else they do. A csh, in which the script of a job
    # for bash would fail.
    qconf -sq | sed -e 's|^qname .*|qname debug|' -e 's|^hostlist .*|hostlist localhost|' -e 's|^slots .*|slots 4|' \
        -e 's|^load_thresholds .*|load_thresholds NONE|' -e 's|^pe_list .*|pe_list NONE|' \
        -e 's|^shell .*|shell /bin/csh|' -e "s|^tmpdir .*|tmpdir $folder|" >"$folder/queue"
    for _ in $(seq 300); do
        # An execution host is known once its daemon has reported.
        if qconf -sql >/dev/null 2>&1 || qconf -Aq "$folder/queue" >/dev/null 2>&1; then
            # Without a sixth column: no state that keeps jobs out.
            [ "$(qstat -f -q debug | awk '$1 == "debug@localhost" {print NF}')" = 5 ] && return
        fi
        sleep 0.1
    done
    tail -n 20 "$folder"/*/messages "$folder"/*/*/messages >&2
    exit 1
}

stop() {
    if alive $master; then
        qdel -u '*' >/dev/null 2>&1 || true
        for _ in $(seq 150); do [ -z "$(qstat -u '*')" ] && break; sleep 0.1; done
    fi
    # What they would save goes with the folder; asked to end, sge_qmaster takes ten seconds.
    for daemon in $execd $master; do if alive "$daemon"; then kill -9 "$(pid "$daemon")"; fi; done
    rm -rf "$folder"
}

case $verb in
    start) start && cat "$settings" ;;
    stop) stop ;;
    *) sed -n 2,7p "$0" >&2 && exit 2 ;;
esac
