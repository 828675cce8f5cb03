"""The targets: what each is built from, and how long an input of it may be."""

import attrs

RING = ("l5/native/channel.c", "l5/native/segment.c", "l5/native/wait.c")
SERVICE = tuple(
    f"l5/native/service{part}.c"
    for part in ("", "_frames", "_reply", "_settle", "_wait", "_worker")
)
TREE = tuple(
    f"catfish_app/native/{name}.c"
    for name in (
        *("rt_arena", "rt_bulk", "rt_check", "rt_delete", "rt_insert", "rt_kernel_avx2"),
        *("rt_kernel_avx512", "rt_kernel_portable", "rt_nearest", "rt_search", "rt_split"),
        *("rt_view", "service_handler", "service_load", "service_search"),
    )
)
TREE_MEMORY = tuple(
    f"catfish_app/native/{name}.c"
    for name in (
        *("rt_arena", "rt_bulk", "rt_check", "rt_delete", "rt_foreign", "rt_image", "rt_insert"),
        *("rt_kernel_avx2", "rt_kernel_avx512", "rt_kernel_portable", "rt_nearest", "rt_search"),
        *("rt_split", "rt_view", "rt_walk", "rt_walk_life"),
    )
)


@attrs.frozen
class Target:
    """One fuzz target: a program in `fuzz/c` with these sources, or a module in `fuzz/py`."""

    name: str
    what: str
    sources: tuple[str, ...] = ()
    input_bytes_max: int = 1024

    @property
    def in_c(self) -> bool:
        """Tell whether this is a program in C."""
        return bool(self.sources)


TARGETS = {
    target.name: target
    for target in (
        Target("ring_receive", "the ring's receive side, its memory written by the peer", RING),
        Target("ring_send", "the ring's send side, positions and armed words of any value", RING),
        Target("segment", "memory that a hostile client offers", ("l5/native/segment.c",)),
        Target("stream", "the usual frames of a plain socket, in C", ("l5/native/stream.c",)),
        Target("service", "the native service's half of the protocol", (*RING, *SERVICE)),
        Target("catfish", "the R-tree's requests in C, against a list", TREE, 2048),
        Target("foreign", "a tree in hostile memory, mapped and by reads", TREE_MEMORY),
        Target("image", "a tree's image from a hostile file", TREE_MEMORY),
        Target("frames", "frame headers, Python against C; ERROR payloads"),
        Target("flow", "reassembly and its budgets, against a model"),
        Target("hello", "the handshake's messages"),
        Target("url", "URLs and options", input_bytes_max=512),
        Target("session", "a session: frames in any order"),
        Target("wire", "a tree server's answers, as its client reads them"),
        Target("handlers", "the R-tree's requests, Python against C"),
    )
}
