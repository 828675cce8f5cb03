"""The workload of the Catfish paper (section V): 2,000,000 small rectangles in the unit square.

Data: edges uniform in (0, 1e-4]. Queries and insertions at a scale: edges uniform in (0, scale], or
for "pl" in (0, t] with t drawn from the power law t**-0.99 on (1e-5, 0.01]. Insertions are skewed:
they crowd, by a power law, at the corners.
"""

from pathlib import Path

import numpy as np

SCALES = ("1e-05", "0.01", "pl")
Rects = np.ndarray


def data(count: int) -> Rects:
    random = np.random.default_rng(1)
    edges = random.random((count, 2)) * 1e-4
    low = random.random((count, 2))
    return np.hstack([low, low + edges])


def queries(scale: str, count: int, seed: int = 2) -> Rects:
    random = np.random.default_rng(seed)
    edges = _edges(random, scale, count)
    low = random.random((count, 2))
    return np.hstack([low, low + edges])


def inserts(scale: str, count: int, seed: int = 3) -> Rects:
    random = np.random.default_rng(seed)
    low = _power_law(random, 2 * count, 0.5, 1.0).reshape(count, 2)
    low = np.where(random.integers(0, 2, (count, 2)).astype(bool), 1 - low, low)
    return np.hstack([low, low + _edges(random, scale, count)])


def write(folder: Path, count: int, query_count: int) -> None:
    """Write data.f64, and q_SCALE.f64 and i_SCALE.f64 for each scale, as the C loops read them."""
    folder.mkdir(parents=True, exist_ok=True)
    data(count).tofile(folder / "data.f64")
    for scale in SCALES:
        queries(scale, query_count).tofile(folder / f"q_{scale}.f64")
        inserts(scale, query_count).tofile(folder / f"i_{scale}.f64")


def _edges(random: np.random.Generator, scale: str, count: int) -> Rects:
    largest = _power_law(random, count, 1e-5, 1e-2)[:, None] if scale == "pl" else float(scale)
    return largest * (1 - random.random((count, 2)))


def _power_law(random: np.random.Generator, count: int, low: float, high: float) -> Rects:
    s = 1 - 0.99
    return (low**s + random.random(count) * (high**s - low**s)) ** (1 / s)
