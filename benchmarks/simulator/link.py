"""A link as numbers: how long bytes take to come through.

A token bucket: bytes leave one after the other at the link's rate, after as many as `burst_bytes`
at once; each message, or each read of remote memory, costs the card `verb_s` as well; and all of it
arrives `latency_s` later.  There is no clock here: a simulator gives its own time, the transport
that slows real connections down (`benchmarks.link_model`) gives the machine's.
"""

import attrs


@attrs.frozen
class LinkSpec:
    """What a link can do; the default is no link at all."""

    bytes_per_s: float = float("inf")
    latency_s: float = 0.0
    verb_s: float = 0.0
    burst_bytes: float = 0.0

    def __attrs_post_init__(self) -> None:
        for name, value in attrs.asdict(self).items():
            if not value >= 0.0:
                raise ValueError(f"{name}={value}: expected 0 or more")
        if self.bytes_per_s == 0.0:
            raise ValueError("bytes_per_s=0: nothing would ever arrive")

    def shared(self, clients: int) -> "LinkSpec":
        """Return the part of one of so many that use it all the time."""
        return attrs.evolve(
            self, bytes_per_s=self.bytes_per_s / clients, verb_s=self.verb_s * clients
        )


GBPS = 1e9 / 8
ETHERNET_1G = LinkSpec(1 * GBPS, latency_s=25e-6)
ETHERNET_40G = LinkSpec(40 * GBPS, latency_s=15e-6)
INFINIBAND_100G = LinkSpec(100 * GBPS, latency_s=1.5e-6, verb_s=0.4e-6)


class Pipe:
    """One direction of a link."""

    def __init__(self, spec: LinkSpec) -> None:
        self.spec = spec
        self._saved_s = spec.burst_bytes / spec.bytes_per_s  # what an idle link may have saved up
        self.free_at: float = 0.0
        """When the last byte that was sent is out."""
        self.bytes_sent: int = 0

    def send(self, size_bytes: int, now: float, verbs: int = 1) -> float:
        """Put a message in; return when it has arrived."""
        spec = self.spec
        self.bytes_sent += size_bytes
        begin = max(self.free_at, now - self._saved_s)
        self.free_at = begin + size_bytes / spec.bytes_per_s + verbs * spec.verb_s
        return max(self.free_at, now) + spec.latency_s

    def load(self, since: float, bytes_before: int, now: float) -> float:
        """Return the share of the bandwidth that was used."""
        return (self.bytes_sent - bytes_before) / max(now - since, 1e-12) / self.spec.bytes_per_s
