"""Stand-ins for rea02, which is not to be had: 1,888,012 rectangles of streets, in its order.

``streets``: towns of log-normal size, each a rotated grid of short segments.  ``shores``: segments
of the full-resolution coastlines of GSHHG in the Americas, which come with Debian's package
gmt-gshhg-full (the extra `bench` brings netCDF4, which reads them).  ``world``: all coasts and
borders of Natural Earth, which is part of `catfish_app`.  All are cut into sub-regions of about
20,000, which come in random order; within one the rows go from north to south and each from west
to east.  Queries are squares around random places of the data that find 50 to 150 each.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.catfish._figure import left_out
from benchmarks.catfish._served import QUERIES, Data
from catfish_app import RTree
from catfish_app._data import demo_segments

COUNT = 1_888_012
REGION = 20_000
GSHHG = Path("/usr/share/gmt-gshhg/binned_GSHHS_f.nc")
NORTH_AMERICA = (180.0, 310.0, 5.0)
"""East of, west of, north of; degrees east."""
SOURCES = ("shores", "streets", "world")
WORLD = "Natural Earth"
Rects = np.ndarray


class Missing(Exception):
    """Data that is not installed; the text says what to do."""


def sources(full: bool, quick: bool) -> Iterator[Data]:
    """Make the stand-ins that can be had, smaller ones unless `full`."""
    count = COUNT if full else 20_000 if quick else COUNT // 8
    try:
        yield made("shorelines (GSHHG)", shores(GSHHG)[:count], seed=2)
    except Missing as error:
        left_out("shorelines", error)
    yield made("synthetic streets", streets(count), seed=1)
    yield made(WORLD, demo_segments()[:count], seed=3)


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
    """Return the segments of the coastlines of the Americas north of 5 N; or `Missing`."""
    if not path.exists():
        raise Missing(f"{path} is not there: apt-get install gmt-gshhg-full")
    try:
        import netCDF4  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError as error:
        raise Missing("netCDF4 is not installed: it is of the extra `bench`") from error
    with netCDF4.Dataset(path) as data:
        data.set_auto_mask(False)
        of = data.variables
        return segments(
            of["Id_of_first_segment_in_a_bin"][:].astype(np.int64),
            of["N_segments_in_a_bin"][:].astype(np.int64),
            of["Embedded_npts_levels_exit_entry_for_a_segment"][:].astype(np.int64) >> 9,
            of["Relative_longitude_from_SW_corner_of_bin"][:].astype(np.uint16),
            of["Relative_latitude_from_SW_corner_of_bin"][:].astype(np.uint16),
        )


def segments(
    first: np.ndarray, count: np.ndarray, points: np.ndarray, x: np.ndarray, y: np.ndarray
) -> Rects:
    """Join the points of each polyline; bins are degrees, row by row from the north pole.

    A bin has `count` polylines from `first` on, a polyline so many `points`, and a point its place
    in the bin, in parts of 65535.
    """
    filled = np.flatnonzero(count)
    bins = np.empty(len(points), np.int64)
    bins[np.concatenate([np.arange(first[b], first[b] + count[b]) for b in filled])] = np.repeat(
        filled, count[filled]
    )
    line = np.repeat(np.arange(len(points)), points)
    cell = bins[line]
    places = np.stack([cell % 360 + x / 65535.0, 89 - cell // 360 + y / 65535.0], axis=1)
    west, east, south = NORTH_AMERICA
    joined = np.flatnonzero(line[1:] == line[:-1])
    one, other = places[joined], places[joined + 1]
    low, high = np.minimum(one, other), np.maximum(one, other)
    inside = (low[:, 0] > west) & (low[:, 0] < east) & (low[:, 1] > south)
    rects = np.hstack([low[inside], high[inside]])
    return rects[np.argsort(rects[:, 0], kind="stable")][:COUNT]


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
