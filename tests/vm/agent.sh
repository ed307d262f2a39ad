# SPDX-License-Identifier: LGPL-2.1-or-later
# shellcheck shell=dash
# Second half of the test VM's first process: the network, the soft RDMA device, and one loop for each channel to the
# host (a virtio-serial port), which runs the commands that come in.
#
# A channel's first line is "ready" or "failed: WHY". A request is one line, "TOKEN SCRIPT" with the script in base64. The
# answer is the script's output as it comes, and "TOKEN STATUS\n": the token is random, so no output ends too early. The
# script is the leader of a session of its own, which is killed as soon as the script ends.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
b=/run/vm/busybox
cd /

# The kernel command line's rdmamig.NAME=VALUE.
parameter() {
    local word
    for word in $($b cat /proc/cmdline); do
        case $word in rdmamig."$1"=*) echo "${word#*=}" ;; esac
    done
}

set_up() {
    $b hostname "vm-$(parameter name)" &&
        $b ip link set lo up &&
        if [ -e /sys/class/net/eth0 ]; then
            device=eth0 && $b ip link set eth0 mtu 4500 up
        else
            # An MTU of 9000 gives an active path MTU of 4096. The kernel names the other end veth0.
            device=vetha && $b ip link add vetha type veth &&
                $b ip link set vetha mtu 9000 up && $b ip link set veth0 mtu 9000 up
        fi &&
        $b ip address add "$(parameter address)" dev "$device" &&
        rdma link add rxe0 type rxe netdev "$device"
}

# Kills what is left of a session. Not by process group: a program may have made new ones.
kill_session() { # LEADER
    local stat line
    for stat in /proc/[0-9]*/stat; do
        read -r line <"$stat" || continue
        # After the name in parentheses, which may hold anything: state, parent, group, session.
        # shellcheck disable=SC2086
        set -- "$1" ${line##*) }
        [ "$5" != "$1" ] || kill -KILL "${line%% *}"
    done 2>/dev/null
}

serve() { # DEVICE GREETING
    exec 3<>"/dev/$1" || exit
    echo "$2" >&3
    job=/run/vm/job-$1
    while IFS= read -r line <&3; do
        token=${line%% *}
        echo "${line#* }" | $b base64 -d >"$job"
        {
            # shellcheck disable=SC2016 # for that shell
            $b setsid $b sh -c 'echo $$ >"$0.pid"; exec /bin/sh "$0"' "$job" </dev/null
            echo $? >"$job.status"
            kill_session "$($b cat "$job.pid")"
            $b rm "$job.pid" # who wants to kill the next one waits for its own
        } 2>&1 3>&- | $b cat >&3
        printf '%s %s\n' "$token" "$($b cat "$job.status")" >&3
    done
}

# shellcheck disable=SC3045 # busybox has it
ulimit -l unlimited
# shellcheck disable=SC3045
ulimit -n 65536
greeting=ready
error=$(set_up 2>&1) || greeting="failed: $(echo "$error" | $b tr '\n' ' ')"
for port in /sys/class/virtio-ports/*; do
    serve "${port##*/}" "$greeting" &
done
wait
