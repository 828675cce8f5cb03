"""The demo's data: complete, stable, refused when damaged, and made by the shipped script."""

import hashlib
import lzma
from pathlib import Path

import numpy as np
import pytest

from catfish_app import _data
from scripts import make_world

SEGMENTS = 472_660
LINES_SHA256 = "bf51f5a10bc9c4187f7afac39d6e9a2e884c4b7a630ab2064514a403557ebe80"
PACKED_LIMIT_BYTES = 2_000_000

TOPOLOGY = {
    "arcs": [[[5, 9], [1, -3], [0, 0]], [[0, 4000], [70000, -4000]], [[-2, -2], [1, 1], [1, 1]]],
    "transform": {"scale": [0.5, 0.25], "translate": [-10.0, 20.0]},
}
TOPOLOGY_LINES = [
    [-7.5, 22.25, -7.0, 21.5],
    [-7.0, 21.5, -7.0, 21.5],
    [-10.0, 1020.0, 34990.0, 20.0],
    [-11.0, 19.5, -10.5, 19.75],
    [-10.5, 19.75, -10.0, 20.0],
]


def test_every_segment_is_there() -> None:
    lines = _data.demo_lines()
    assert lines.shape == (SEGMENTS, 4)
    assert lines.dtype == np.float64
    digest = hashlib.sha256(np.ascontiguousarray(lines, dtype="<f8").tobytes()).hexdigest()
    assert digest == LINES_SHA256


def test_segments_are_the_rectangles_of_the_lines() -> None:
    lines, segments = _data.demo_lines(), _data.demo_segments()
    assert segments.shape == (SEGMENTS, 4)
    np.testing.assert_array_equal(segments[:, 0], lines[:, [0, 2]].min(axis=1))
    np.testing.assert_array_equal(segments[:, 1], lines[:, [1, 3]].min(axis=1))
    np.testing.assert_array_equal(segments[:, 2], lines[:, [0, 2]].max(axis=1))
    np.testing.assert_array_equal(segments[:, 3], lines[:, [1, 3]].max(axis=1))


def test_coordinates_are_on_the_globe() -> None:
    segments = _data.demo_segments()
    assert np.isfinite(segments).all()
    assert np.abs(segments[:, [0, 2]]).max() <= 180
    assert np.abs(segments[:, [1, 3]]).max() <= 90


def test_the_file_is_small() -> None:
    assert _data._FILE.stat().st_size < PACKED_LIMIT_BYTES


def write_world(path: Path, content: bytes) -> None:
    path.write_bytes(make_world.compress(content))


def test_the_script_and_the_reader_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "world.xz"
    write_world(file, make_world.encode(TOPOLOGY))
    monkeypatch.setattr(_data, "_FILE", file)
    assert _data.demo_lines().tolist() == TOPOLOGY_LINES


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: b"", "ends inside its header"),
        (lambda content: b"L5WORLD2" + content[8:], "begins with b'L5WORLD2'"),
        (lambda content: content[:-1], "bytes, not"),
        (lambda content: content + b"\0", "bytes, not"),
    ],
)
def test_damaged_content_is_refused(
    change, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "world.xz"
    write_world(file, change(make_world.encode(TOPOLOGY)))
    monkeypatch.setattr(_data, "_FILE", file)
    with pytest.raises(ValueError, match=f"damaged: it .*{message}|{message}") as caught:
        _data.demo_segments()
    assert "scripts/make_world.py" in str(caught.value)


@pytest.mark.parametrize("keep", [0, 1, 40, -1])
def test_a_cut_file_is_refused(keep: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "world.xz"
    file.write_bytes(make_world.compress(make_world.encode(TOPOLOGY))[:keep])
    monkeypatch.setattr(_data, "_FILE", file)
    with pytest.raises(ValueError, match="is damaged"):
        _data.demo_lines()


def test_packing_is_reproducible() -> None:
    content = make_world.encode(TOPOLOGY)
    assert make_world.compress(content) == make_world.compress(content)
    assert lzma.decompress(make_world.compress(content)) == content
