"""Make catfish_app/data/world.xz, the demo's data, from the npm package world-atlas.

    python scripts/make_world.py [--source countries-10m.json] [--output FILE] [--check]

Without --source the package is brought by ``npm pack`` into a temporary folder. The source is
TopoJSON: arcs of quantised points, the first absolute and the others relative to the one before.
Every consecutive pair of an arc's points is one segment. The output is deterministic, byte for
byte, for one version of liblzma; --check compares the decoded content, which does not depend on it.

The file, inside one xz stream, little-endian:

    magic    8 bytes   b"L5WORLD1"
    counts   2 x u32   arcs, points
    scale    2 x f64   degrees in one quantum, x and y
    offset   2 x f64   degrees at quantum zero, x and y
    lengths  arcs x u32, as four byte planes: points of each arc
    x, y     points x u32 each, as four byte planes: zigzag of the difference to the point before
             (the first of an arc differs from the last of the arc before)

A byte plane holds the lowest bytes of all values, then the second bytes, and so on: most high
bytes are zero, so planes pack to a third of what the plain order needs.
"""

import argparse
import json
import lzma
import struct
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import numpy as np

PACKAGE = "world-atlas@2.0.2"
MEMBER = "package/countries-10m.json"
OUTPUT = Path(__file__).parent.parent / "catfish_app" / "data" / "world.xz"
MAGIC = b"L5WORLD1"


def fetch_topology():
    """Bring the package through the ordinary npm client and return its TopoJSON document."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["npm", "pack", "--silent", "--pack-destination", folder, PACKAGE]
        try:
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=folder)
        except FileNotFoundError:
            sys.exit("make_world: npm is missing; install Debian's nodejs and npm, or use --source")
        (archive,) = Path(folder).glob("*.tgz")
        with tarfile.open(archive) as tar:
            member = tar.extractfile(MEMBER)
            if member is None:
                sys.exit(f"make_world: {PACKAGE} holds no file {MEMBER}")
            return json.load(member)


def quantised_points(topology):
    """Return (lengths, points): the points of each arc and all points, relative coordinates."""
    lengths = np.array([len(arc) for arc in topology["arcs"]], dtype=np.int64)
    relative = np.concatenate([np.asarray(arc, dtype=np.int64) for arc in topology["arcs"]])
    starts = np.concatenate(([0], np.cumsum(lengths)[:-1]))
    absolute = np.cumsum(relative, axis=0)
    # Undo, per arc, what the running sum carried in from the arcs before it.
    carried = absolute[starts] - relative[starts]
    absolute -= np.repeat(carried, lengths, axis=0)
    return lengths, np.diff(absolute, axis=0, prepend=0)


def byte_planes(values):
    """Return the lowest bytes of all u32 values, then the second bytes, and so on."""
    return values.astype("<u4").view(np.uint8).reshape(-1, 4).T.tobytes()


def encode(topology):
    """Return the uncompressed content of the data file."""
    lengths, differences = quantised_points(topology)
    zigzag = (differences << 1) ^ (differences >> 63)
    transform = topology["transform"]
    header = MAGIC + struct.pack(
        "<2I4d", len(lengths), len(differences), *transform["scale"], *transform["translate"]
    )
    return b"".join(
        (header, byte_planes(lengths), byte_planes(zigzag[:, 0]), byte_planes(zigzag[:, 1]))
    )


def compress(content):
    """Compress for size; the filter settings are fixed so that the output is reproducible."""
    filters = [
        {"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 4, "lp": 0, "pb": 0}
    ]
    return lzma.compress(content, format=lzma.FORMAT_XZ, check=lzma.CHECK_CRC32, filters=filters)


def main():
    parser = argparse.ArgumentParser(description="Make the demo's data from Natural Earth 1:10m.")
    parser.add_argument("--source", type=Path, help="a countries-10m.json that is already here")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.add_argument("--check", action="store_true", help="compare with the file, write nothing")
    arguments = parser.parse_args()
    if arguments.source is None:
        topology = fetch_topology()
    else:
        topology = json.loads(arguments.source.read_text())
    content = encode(topology)
    if arguments.check:
        if lzma.decompress(arguments.output.read_bytes()) != content:
            sys.exit(
                f"make_world: {arguments.output} differs from its source; run me without --check"
            )
        print(f"{arguments.output} agrees with its source")
        return
    packed = compress(content)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_bytes(packed)
    segments = sum(len(arc) - 1 for arc in topology["arcs"])
    print(f"{arguments.output}: {segments:,} segments in {len(packed):,} bytes")


if __name__ == "__main__":
    main()
