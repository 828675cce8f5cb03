"""The fuzz targets: the corpus runs clean, and they do find what is wrong."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fuzz import _build, _run
from fuzz._targets import TARGETS
from fuzz.py import session
from l5._errors import RemoteProtocolError
from l5._frames import Flag, Kind

ROOT = _build.ROOT
pytestmark = [pytest.mark.checkout, pytest.mark.sanitizer]

# target -> (file, what stands there, what a careless author had written)
BROKEN_C = {
    "ring_receive": (
        "l5/native/channel.c",
        "word < L5_HEADER_BYTES || word > (uint64_t)channel->rx_limit + L5_HEADER_BYTES",
        "word < L5_HEADER_BYTES",
    ),
    "ring_send": (
        "l5/native/channel.c",
        "if (read - channel->tx_read_cached > used || (read & (L5_ALIGN - 1)))",
        "if (read & (L5_ALIGN - 1))",
    ),
    "stream": ("l5/native/stream.c", "if (size > bytes - L5_HEADER_BYTES || ", "if ("),
    "segment": ("l5/native/segment.c", "F_SEAL_FUTURE_WRITE | F_SEAL_SEAL", "F_SEAL_SEAL"),
    "service": (
        "l5/native/service_settle.c",
        "connection->credits_due -= inbound->credit_due;\n    free(inbound)",
        "free(inbound)",
    ),
    "catfish": (
        "catfish_app/native/service_handler.c",
        "if (call->size != ROW_BYTES)\n        return service_bad_size(call);\n    rc = rt_insert",
        "rc = rt_insert",
    ),
    "foreign": (
        "catfish_app/native/rt_walk.c",
        "node < walk->remote->reach ? table_at(walk, node) : NULL",
        "table_at(walk, node)",
    ),
    "image": (
        "catfish_app/native/rt_check.c",
        'if (index >= header->used)\n        return broken(check, "node',
        'if (index == header->capacity)\n        return broken(check, "node',
    ),
}
BROKEN_PYTHON = {
    "frames": ("l5/_frames.py", "size_bytes < DEADLINE.size", "size_bytes < DEADLINE.size - 1"),
    "hello": ("l5/_hello.py", "except (ValueError, TypeError,", "except (TypeError,"),
    "url": (
        "l5/_address.py",
        'except ValueError:\n            raise _error(url, f"{host!r} is not an IPv4',
        'except KeyError:\n            raise _error(url, f"{host!r} is not an IPv4',
    ),
    "session": ("l5/_arrivals.py", "if window.handling > window.handling_max", "if 0"),
}
# An input that once broke a target, and the fix that it stands for.
FIXED = {
    "empty-answer-without-buffer": (
        "l5/native/service_reply.c",
        "bytes ? out->data + out->sent : NULL",
        "out->data + out->sent",
    ),
    "extend-by-nothing": (
        "l5/native/l5_handler.h",
        "reply->data ? l5_reply_reserve(reply, bytes) : reply->grow(reply, bytes)",
        "l5_reply_reserve(reply, bytes)",
    ),
}


def need(name: str) -> None:
    reason = _run.why_not(TARGETS[name])
    if reason:
        pytest.skip(reason)


def changed(file: str, old: str, new: str) -> str:
    text = (ROOT / file).read_text()
    assert text.count(old) == 1, f"{file} no longer has {old!r} once: what is broken here now?"
    return text.replace(old, new)


@pytest.mark.parametrize("language", ["c", "python"])
def test_the_corpus_runs_clean(language: str) -> None:
    names = [target.name for target in TARGETS.values() if target.in_c is (language == "c")]
    if language == "c":
        need(names[0])
    command = [sys.executable, "-m", "fuzz", "corpus", *names]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    ran = {line.split()[0]: int(line.split()[1]) for line in done.stdout.splitlines()}
    assert sorted(ran) == sorted(names)
    assert min(ran.values()) >= 5


def test_the_corpus_is_small() -> None:
    inputs = [path for target in TARGETS.values() for path in _run.inputs(target)]
    assert len(inputs) < 1000
    assert sum(path.stat().st_size for path in inputs) < 300_000


@pytest.mark.parametrize("name", BROKEN_C)
def test_a_broken_build_in_c_is_found(name: str, tmp_path: Path) -> None:
    need(name)
    file, old, new = BROKEN_C[name]
    program = _build.build(TARGETS[name], {file: changed(file, old, new)})
    folders = [str(tmp_path), str(_run.CORPUS / name)]
    report = _run.fuzz(TARGETS[name], 60, program=program, folders=folders)
    assert report.crash is not None, report.line
    report.crash.unlink()
    with pytest.raises(_run.Failed, match="is an input that breaks it"):
        _run.checked(report)


@pytest.mark.parametrize("name", BROKEN_PYTHON)
def test_broken_python_is_found(name: str, tmp_path: Path) -> None:
    need(name)
    for package in ("l5", "catfish_app", "fuzz"):
        leave = shutil.ignore_patterns("__pycache__", "*.o", "data", "corpus")
        shutil.copytree(ROOT / package, tmp_path / package, ignore=leave)
    file, old, new = BROKEN_PYTHON[name]
    (tmp_path / file).write_text(changed(file, old, new))
    (tmp_path / "found").mkdir()
    folders = [str(tmp_path / "found"), str(_run.CORPUS / name)]
    report = _run.fuzz(TARGETS[name], 60, folders=folders, cwd=tmp_path)
    assert report.crash is not None, report.line
    report.crash.unlink()


@pytest.mark.parametrize("name", FIXED)
def test_what_was_found_once_would_be_found_again(name: str, tmp_path: Path) -> None:
    need("service")
    file, old, new = FIXED[name]
    target = TARGETS["service"]
    text = changed(file, old, new)
    if file.endswith(
        ".h"
    ):  # headers are not among the sources: it goes in front of one that uses it
        user = "fuzz/c/service.c"
        uses = '#include "service.h"'
        files = {user: (ROOT / user).read_text().replace(uses, f"{text}\n{uses}", 1)}
    else:
        files = {file: text}
    program = _build.build(target, files)
    with pytest.raises(_run.Failed, match="runtime error"):
        _run.replay(target, [_run.REGRESSIONS / "service" / name], program)


def test_a_deadline_in_the_middle_of_a_request_breaks_a_session() -> None:
    """The C of a native service refuses it as well."""
    world = session._World(server=True)
    piece = (int(Kind.REQUEST), int(Flag.MORE), 7, bytes(9))
    late = (int(Kind.REQUEST), int(Flag.DEADLINE), 7, bytes(9))
    world.channel.arriving += [piece, late]
    world.session.on_ready()
    assert isinstance(world.session.error, RemoteProtocolError)
    assert "deadline in the middle of request 7" in str(world.session.error)
    world.check()


def test_a_run_that_did_nothing_is_a_failure() -> None:
    report = _run.Report("url", 3, 30, 30, 40, 0, None, "")
    with pytest.raises(_run.Failed, match="hardly ran"):
        _run.checked(report)
