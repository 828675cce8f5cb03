"""The methods of the paper's figures, and ours."""

import random

import l5
from benchmarks.simulator.cluster import Method
from benchmarks.simulator.link import ETHERNET_1G, ETHERNET_40G, INFINIBAND_100G, LinkSpec


def server_only(chance: random.Random) -> l5.OffloadPolicy:
    return l5.AlwaysServer()


def client_only(chance: random.Random) -> l5.OffloadPolicy:
    return l5.AlwaysClient()


def algorithm_1(chance: random.Random) -> l5.OffloadPolicy:
    return l5.PaperBackoffPolicy(random=chance.random)


def backoff(chance: random.Random) -> l5.OffloadPolicy:
    return l5.BackoffPolicy(random=chance.random)


def adaptive(chance: random.Random) -> l5.OffloadPolicy:
    return l5.AdaptivePolicy(random=chance.random)


def latency(chance: random.Random) -> l5.OffloadPolicy:
    return l5.LatencyPolicy(random=chance.random)


TCP_1G, TCP_40G = "TCP/IP, 1 Gb/s", "TCP/IP, 40 Gb/s"
FAST, OFFLOADING = "fast messaging, polling", "offloading, node by node"
EVENT, MULTI = "server only, events", "client only, multi-issue"
LITERAL, ADAPTIVE = "adaptive, Algorithm 1", "adaptive"
BY_LATENCY, BY_HEARTBEATS = "adaptive, by latency", "adaptive, by heartbeats"


def all_methods(link: LinkSpec = INFINIBAND_100G) -> list[Method]:
    """Return them, slowest first as a rule."""
    return [
        Method(TCP_1G, ETHERNET_1G, server_only, kernel=True),
        Method(TCP_40G, ETHERNET_40G, server_only, kernel=True),
        Method(FAST, link, server_only, polls=True),
        Method(OFFLOADING, link, client_only, multi_issue=False),
        Method(EVENT, link, server_only),
        Method(MULTI, link, client_only),
        Method(LITERAL, link, algorithm_1),
        Method(BY_LATENCY, link, latency),
        Method(BY_HEARTBEATS, link, backoff),
        Method(ADAPTIVE, link, adaptive),
    ]
