"""Figure 11: latency of searches alone."""

from benchmarks.catfish._figure import Figure
from benchmarks.catfish.fig10 import LATENCY, searches

main = Figure(11, "Figure 11: latency, 100 % search", searches, (LATENCY,)).main
