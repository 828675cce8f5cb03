"""Stand-ins for rea02, which is not to be had: 1,888,012 rectangles of streets, in its order.

``streets``: towns of log-normal size, each a rotated grid of short segments.  ``shores``: segments
of the full-resolution coastlines of GSHHG in the Americas, where Debian's package gmt-gshhg-full is
installed (and netCDF4).  Both are cut into sub-regions of about 20,000, which come in random order;
within one the rows go from north to south and each from west to east.  Queries are squares around
random places of the data that find 50 to 150 each.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.catfish._figure import left_out
from benchmarks.catfish._served import QUERIES, Data
from catfish_app import RTree

COUNT = 1_888_012
REGION = 20_000
GSHHG = Path("/usr/share/gmt-gshhg/binned_GSHHS_f.nc")
NORTH_AMERICA = (180.0, 310.0, 5.0)
"""East of, west of, north of; degrees east."""
Rects = np.ndarray


def sources(full: bool, quick: bool) -> Iterator[tuple[str, Data]]:
    """Make the stand-ins that can be had, smaller ones unless `full`."""
    count = COUNT if full else 20_000 if quick else COUNT // 8
    yield "streets", made("rea02: synthetic streets", streets(count), seed=1)
    if not GSHHG.exists():
        left_out("rea02: shorelines", f"{GSHHG} (Debian: gmt-gshhg-full) is not installed")
        return
    try:
        found = shores(GSHHG)
    except ModuleNotFoundError as error:
        left_out("rea02: shorelines", f"{error.name} is not installed")
        return
    yield "shores", made("rea02: shorelines", found[:count], seed=2)


def made(name: str, rects: Rects, seed: int) -> Data:
    """Scale to the unit square, put into the order of rea02, and find queries."""
    random = np.random.default_rng(seed)
    low, high = rects[:, :2].min(axis=0), rects[:, 2:].max(axis=0)
    scaled = (rects - np.tile(low, 2)) / np.tile(high - low, 2)
    rows = np.ascontiguousarray(scaled[in_regions(scaled, random)])
    inserts = rows[random.integers(0, len(rows), QUERIES)]
    return Data(name, rows, queries(rows, random), inserts)


def streets(count: int, seed: int = 1) -> Rects:
    """Return the segments of towns."""
    random = np.random.default_rng(seed)
    found: list[Rects] = []
    total = 0
    while total < count:
        centre = random.random(2)
        size = int(min(4e4, random.lognormal(7, 1.5))) + 20
        at = random.normal(0, np.sqrt(size) * 6e-5, (size, 2))
        at = centre + np.round(at / 1.2e-4) * 1.2e-4
        angle = random.choice([0, np.pi / 2], size) + random.normal(0, 0.15)
        length = random.gamma(3, 4e-5, size)[:, None]
        to = at + np.stack([np.cos(angle), np.sin(angle)], axis=1) * length
        inside = (np.minimum(at, to).min(axis=1) >= 0) & (np.maximum(at, to).max(axis=1) <= 1)
        found.append(np.hstack([np.minimum(at, to), np.maximum(at, to)])[inside])
        total += len(found[-1])
    return np.vstack(found)[:count]


def shores(path: Path) -> Rects:
    """Return the segments of the coastlines of the Americas north of 5 N."""
    import netCDF4  # pyright: ignore[reportMissingImports]

    data = netCDF4.Dataset(path)
    data.set_auto_mask(False)
    of = data.variables
    first = of["Id_of_first_segment_in_a_bin"][:]
    count = of["N_segments_in_a_bin"][:].astype(int)
    points = of["Embedded_npts_levels_exit_entry_for_a_segment"][:] >> 9
    x = of["Relative_longitude_from_SW_corner_of_bin"][:].astype(np.uint16)
    y = of["Relative_latitude_from_SW_corner_of_bin"][:].astype(np.uint16)
    bin_of = np.empty(len(points), int)
    for number in np.flatnonzero(count):
        bin_of[first[number] : first[number] + count[number]] = number
    segment = np.repeat(np.arange(len(points)), points)
    cell = bin_of[segment]
    places = np.stack([cell % 360 + x / 65535.0, 89 - cell // 360 + y / 65535.0], axis=1)
    joined = segment[1:] == segment[:-1]
    one, other = places[:-1][joined], places[1:][joined]
    rects = np.hstack([np.minimum(one, other), np.maximum(one, other)])
    west, east, south = NORTH_AMERICA
    inside = (rects[:, 0] > west) & (rects[:, 0] < east) & (rects[:, 1] > south)
    return rects[inside][np.argsort(rects[inside][:, 0])][:COUNT]


def in_regions(rects: Rects, random: np.random.Generator) -> np.ndarray:
    """Return the order: sub-regions at random, their rows north to south, west to east."""
    centres = (rects[:, :2] + rects[:, 2:]) / 2
    regions = [np.arange(len(rects))]
    while len(regions) < max(1, round(len(rects) / REGION)):
        regions.sort(key=len)
        largest = regions.pop()
        along = int(np.ptp(centres[largest], axis=0).argmax())
        ordered = largest[np.argsort(centres[largest, along])]
        regions += [ordered[: len(ordered) // 2], ordered[len(ordered) // 2 :]]
    order: list[np.ndarray] = []
    for number in random.permutation(len(regions)):
        members = regions[number]
        north = centres[members, 1]
        rows = int(np.sqrt(len(members)))
        band = np.floor((north.max() - north) / (np.ptp(north) + 1e-12) * rows)
        order.append(members[np.lexsort((centres[members, 0], band))])
    return np.concatenate(order)


def queries(rects: Rects, random: np.random.Generator, count: int = QUERIES) -> Rects:
    """Return squares around places of the data, each grown until it finds 50 to 150."""
    tree = RTree.bulk(rects)
    wanted = random.integers(50, 151, count)
    centre = rects[random.integers(0, len(rects), count), :2]
    low, high = np.full(count, 1e-6), np.full(count, 0.2)
    for _ in range(22):
        half = np.sqrt(low * high)
        offsets, _ids = tree.search_many(
            np.hstack([centre - half[:, None], centre + half[:, None]])
        )
        few = np.diff(offsets.astype(np.int64)) < wanted
        low, high = np.where(few, half, low), np.where(few, high, half)
    return np.hstack([centre - high[:, None], centre + high[:, None]])
