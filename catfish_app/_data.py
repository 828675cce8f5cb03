"""The demo's data: the world's coasts and borders, Natural Earth 1:10m, as line segments.

`scripts/make_world.py` writes the file and describes its layout; `data/README.md` tells whose data
it is.
"""

import lzma
import struct
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

_FILE = Path(__file__).with_name("data") / "world.xz"
_MAGIC = b"L5WORLD1"
_HEADER = struct.Struct("<8s2I4d")
_PLANES = 4  # bytes of one stored number


@attrs.frozen
class _Header:
    arc_count: int
    point_count: int
    scale: tuple[float, float]
    origin: tuple[float, float]

    @property
    def content_size_bytes(self) -> int:
        return _HEADER.size + _PLANES * (self.arc_count + 2 * self.point_count)


def demo_lines() -> npt.NDArray[np.float64]:
    """Return the 472,660 segments as drawn: rows of x0, y0, x1, y1 in degrees.

    Consecutive rows of one coast or border follow its course, so that row i + 1 mostly starts where
    row i ends. Raises ValueError when the shipped file is damaged.
    """
    header, content = _read_content()
    lengths, points = _decode(header, content)
    first = np.ones(header.point_count, dtype=bool)
    first[np.cumsum(lengths) - 1] = False  # the last point of an arc begins no segment
    begin = np.flatnonzero(first)
    return np.concatenate((points[begin], points[begin + 1]), axis=1)


def demo_segments() -> npt.NDArray[np.float64]:
    """Return the bounding rectangles of the segments: rows of xmin, ymin, xmax, ymax in degrees.

    Row i belongs to row i of `demo_lines`. Raises ValueError when the shipped file is damaged.
    """
    lines = demo_lines()
    begin, end = lines[:, :2], lines[:, 2:]
    return np.concatenate((np.minimum(begin, end), np.maximum(begin, end)), axis=1)


def _read_content() -> tuple[_Header, bytes]:
    packed = _FILE.read_bytes()
    try:
        content = lzma.decompress(packed)
    except lzma.LZMAError as error:
        raise _damaged(str(error)) from error
    if len(content) < _HEADER.size:
        raise _damaged("it ends inside its header")
    magic, arcs, points, scale_x, scale_y, origin_x, origin_y = _HEADER.unpack_from(content)
    if magic != _MAGIC:
        raise _damaged(f"it begins with {magic!r} where {_MAGIC!r} belongs")
    header = _Header(arcs, points, (scale_x, scale_y), (origin_x, origin_y))
    if len(content) != header.content_size_bytes:
        raise _damaged(f"it holds {len(content)} bytes, not {header.content_size_bytes}")
    return header, content


def _damaged(reason: str) -> ValueError:
    return ValueError(
        f"catfish_app/data/world.xz is damaged: {reason}; install the package again, or make the "
        "file again with scripts/make_world.py"
    )


def _decode(
    header: _Header, content: bytes
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    lengths = _numbers(content, _HEADER.size, header.arc_count)
    x_offset = _HEADER.size + _PLANES * header.arc_count
    y_offset = x_offset + _PLANES * header.point_count
    quanta = np.stack(
        [
            np.cumsum(_unzigzag(_numbers(content, offset, header.point_count)))
            for offset in (x_offset, y_offset)
        ],
        axis=1,
    )
    points = quanta.astype(np.float64) * np.array(header.scale) + np.array(header.origin)
    return lengths, points


def _numbers(content: bytes, offset: int, count: int) -> npt.NDArray[np.int64]:
    """Read count numbers that are stored as four byte planes from offset on."""
    planes = np.frombuffer(content, dtype=np.uint8, count=_PLANES * count, offset=offset)
    joined = np.ascontiguousarray(planes.reshape(_PLANES, count).T)
    numbers: npt.NDArray[Any] = joined.view("<u4")[:, 0]
    return numbers.astype(np.int64)


def _unzigzag(values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return (values >> 1) ^ -(values & 1)
