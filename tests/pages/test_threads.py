"""Two threads, pages and their checksums: plain, under sanitizers, and with flaws."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.native._handlers import NATIVE, compiler

pytestmark = [pytest.mark.sanitizer, pytest.mark.checkout]

PROGRAM = Path(__file__).parent / "c" / "page_threads.c"
FLAGS = ["-std=gnu11", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"]
VARIANTS = {
    "plain": ["-O2"],
    "address": ["-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    "thread": ["-O1", "-fsanitize=thread"],
}
READERS = ["mapped", "lines", "ascending", "words"]
# What a check is replaced by; how pages are read so that it is missed.
FLAWS = {
    "mapped": (
        "return l5_page_version(page, 0) == version && !(version & 1);",
        "return (void)page, !(version & 1);",
    ),
    "lines": ("return !(other | (first & 1));", "return !(first & 1) | !other;"),
    "ascending": (
        "l5_page_is_whole(copy, lines) && *l5_page_word(copy, 0) == after;",
        "l5_page_is_whole(copy, lines) && (after | 1);",
    ),
    "words": (
        "return before == after && !(before & 1);",
        "return (after | 1) && !(before & 1);",
    ),
}
SAID = re.compile(r"(\d+) read, (\d+) retries, (\d+) wrong, (\d+) writes")


def run(folder: Path, variant: str, header: Path, *arguments: str) -> tuple[int, int, int, int]:
    """Build the program with a header, run it, and return what it counted."""
    program = folder / f"page_threads_{variant}"
    if not program.exists():
        command = [compiler(), *FLAGS, *VARIANTS[variant], f"-I{header}", PROGRAM, "-o", program]
        built = subprocess.run(command, capture_output=True, text=True, check=False)
        assert built.returncode == 0, built.stderr
    done = subprocess.run(
        [program, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "TSAN_OPTIONS": "halt_on_error=1"},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said = SAID.match(done.stdout)
    assert said is not None, done.stdout
    read, retries, wrong, writes = map(int, said.groups())
    return read, retries, wrong, writes


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("page_threads")


@pytest.mark.parametrize("variant", list(VARIANTS))
@pytest.mark.parametrize("reader", READERS)
def test_no_wrong_page(folder: Path, variant: str, reader: str) -> None:
    wanted = 10_000 if variant == "plain" else 2_000
    read, _, wrong, writes = run(folder, variant, NATIVE, reader, str(wanted))
    assert read == wanted
    assert writes > 0
    assert wrong == 0


@pytest.mark.parametrize("reader", READERS)
def test_a_flaw_lets_wrong_pages_pass(tmp_path: Path, reader: str) -> None:
    text = (NATIVE / "l5_page.h").read_text()
    old, new = FLAWS[reader]
    assert text.count(old) == 1, "l5_page.h has changed: where is this check now?"
    (tmp_path / "l5_page.h").write_text(text.replace(old, new))
    read, _, wrong, _ = run(tmp_path, "plain", tmp_path, reader, str(10**9), "until-wrong")
    assert wrong == 1, f"{read} pages, and none of them torn"
