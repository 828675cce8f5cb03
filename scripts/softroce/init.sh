#!/bin/busybox sh
# The machine's first program, out of the first file system, where only busybox is: load the
# modules, lay a file system in memory over the host's root, and go on there with the agent.
B=/bin/busybox
say() { $B echo "softroce-init: $*" >/dev/kmsg; }
die() { say "$*"; $B sleep 1; $B poweroff -f; }

$B mount -t proc proc /proc
$B mount -t sysfs sysfs /sys
$B mount -t devtmpfs dev /dev
while read -r module options; do
    # shellcheck disable=SC2086
    $B insmod "/lib/mods/$module" $options 2>/dev/null || say "module $module cannot be loaded"
done </lib/mods/order

nine=trans=virtio,version=9p2000.L,msize=512000
$B mkdir -p /run/lower /run/upper /run/new
$B mount -t 9p -o $nine,cache=loose,ro root /run/lower || die "cannot mount the host's root"
$B mount -t tmpfs -o mode=755,size=75% tmpfs /run/upper || die "cannot mount a file system in memory"
$B mkdir /run/upper/files /run/upper/work
$B mount -t overlay -o lowerdir=/run/lower,upperdir=/run/upper/files,workdir=/run/upper/work overlay /run/new ||
    die "cannot lay memory over the host's root"
for folder in proc sys dev run; do
    [ -d /run/new/$folder ] || $B mkdir /run/new/$folder
done
for folder in proc sys dev; do
    $B mount --move /$folder /run/new/$folder
done
$B mount -t tmpfs -o mode=755 tmpfs /run/new/run
$B mkdir -p /run/new/run/softroce/out
$B cp -a /run/job/. /bin/busybox /run/new/run/softroce/
if [ -e /run/job/with-out ]; then
    $B mount -t 9p -o $nine,cache=mmap out /run/new/run/softroce/out || die "cannot mount the output folder"
fi
# The host's sh: busybox's own would put its applets before the programs of the same names.
exec $B chroot /run/new /bin/sh /run/softroce/agent
