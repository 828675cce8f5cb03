# Inside the machine, on the host's root: bring up the network card and the RDMA device, run the job,
# tell how it ended. Three virtio ports lead to the host: out and err carry the job's streams,
# control carries one line an event (UP seconds, EXIT status seconds, FAIL words).
# shellcheck shell=sh disable=SC1091,SC2154
B=/run/softroce/busybox
. /run/softroce/config
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
for port in /sys/class/virtio-ports/*; do
    read -r name <"$port/name" && eval "port_$name=/dev/${port##*/}"
done
exec 9>"$port_control"
uptime() { $B cut -d' ' -f1 /proc/uptime; }
fail() { echo "FAIL $*" >&9; $B sleep 1; $B poweroff -f; $B sleep 60; }

$B mkdir -p /dev/pts /dev/shm
$B mount -t devpts devpts /dev/pts 2>/dev/null
$B mount -t tmpfs -o mode=1777 tmpfs /dev/shm || fail "no /dev/shm"
[ -e /dev/fd ] || $B ln -s /proc/self/fd /dev/fd
if [ ! -e /dev/stdin ]; then
    $B ln -s /proc/self/fd/0 /dev/stdin
    $B ln -s /proc/self/fd/1 /dev/stdout
    $B ln -s /proc/self/fd/2 /dev/stderr
fi
$B hostname "softroce$NODE"
$B mount -t cgroup2 cgroup2 /sys/fs/cgroup 2>/dev/null

ip link set lo up || fail "ip (Debian: iproute2) does not run here"
if [ "$NODES" = 1 ]; then
    ip link add eth0 type dummy || fail "no dummy network card"
fi
ip link set eth0 mtu "$MTU" || fail "no eth0 with an MTU of $MTU"
ip addr add "$SUBNET.$((NODE + 1))/24" dev eth0
echo 0 >/proc/sys/net/ipv6/conf/eth0/accept_dad
ip link set eth0 up
rdma link add rxe0 type rxe netdev eth0 2>/run/softroce/rxe.err ||
    fail "rdma link add: $($B head -n1 /run/softroce/rxe.err)"
state=/sys/class/infiniband/rxe0/ports/1/state
tries=0
until [ -e $state ] && $B grep -q ACTIVE $state; do
    tries=$((tries + 1))
    [ $tries -gt 100 ] && fail "rxe0 never became active"
    $B usleep 50000
done
# Nobody makes device nodes here: put those of verbs and of rdma_cm where libibverbs looks for them.
$B mkdir -p /dev/infiniband
for node in /sys/class/infiniband_verbs/uverbs* /sys/class/misc/rdma_cm; do
    [ -e "$node/dev" ] || continue
    IFS=: read -r major minor <"$node/dev"
    [ -e "/dev/infiniband/${node##*/}" ] ||
        $B mknod -m 666 "/dev/infiniband/${node##*/}" c "$major" "$minor"
done
ulimit -l unlimited
ulimit -c 0
ulimit -n 65536 2>/dev/null
echo "UP $(uptime)" >&9

# A port can be open only once, so the job gets pipes.
$B mkfifo /run/softroce/o /run/softroce/e
$B cat </run/softroce/o >"$port_out" &
copies_out=$!
$B cat </run/softroce/e >"$port_err" &
copies_err=$!
/bin/sh /run/softroce/job 9>&- </dev/null >/run/softroce/o 2>/run/softroce/e
status=$?
# What the job left running may hold the pipes open: wait a little, no longer.
tries=0
while [ $tries -lt 20 ] && { kill -0 $copies_out || kill -0 $copies_err; } 2>/dev/null; do
    tries=$((tries + 1))
    $B usleep 50000
done
$B sync
echo "EXIT $status $(uptime)" >&9
$B poweroff -f
