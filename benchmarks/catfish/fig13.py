"""Figure 13: latency of nine searches to one insert."""

from benchmarks.catfish._figure import Figure
from benchmarks.catfish.fig10 import LATENCY
from benchmarks.catfish.fig12 import mixed

main = Figure(13, "Figure 13: latency, 90 % search, 10 % insert", mixed, (LATENCY,)).main
