"""Machines with an RDMA device, for hosts that have none.

    python -m scripts.softroce -- rdma link
    python -m scripts.softroce --nodes 2 --peer 'python server.py' -- python client.py

A command runs in one or two emulated machines (QEMU; no KVM, no root, nothing loaded into the
host's kernel) under Debian's own kernel, whose Soft-RoCE driver makes an RDMA device of a network
card.

        host                                             machine 0            (machine 1)
    softroce ── QEMU ── virtio ports: out, err, control ── agent ── COMMAND
       │          ├──── 9p, read-only: the host's root ─── / (an overlay in memory above it)
       │          ├──── 9p: --out ─────────────────────── $SOFTROCE_OUT
       │          └──── network card ── socket pair ────── eth0, rxe0 ═══════ rxe0, eth0
       └── cache: kernel and first file system, made once from Debian's package

    _cpio.py      the archive format of a first file system (initramfs)
    _kernel.py    the kernel and its modules out of Debian's package, kept in the cache
    init.sh       first program in the machine: loads modules, mounts the host's root
    agent.sh      brings up network and device, runs the command, tells how it ended
    _machine.py   one machine: QEMU, its streams, its control lines
    _run.py       a run of one or two machines, with its time limits
    _options.py   the command line

The machine sees the host's programs under their own paths and may write anywhere: what it writes
is lost at the end, but for what it puts into $SOFTROCE_OUT. docs/testing.md tells the rest.
"""
