"""`examples/native_service` and docs/native-services.md, which quotes it."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream

import l5

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "native_service"

pytestmark = [
    pytest.mark.checkout,
    pytest.mark.skipif(not l5.native.available, reason=l5.native.reason),
]


def test_the_document_quotes_the_example() -> None:
    document = (ROOT / "docs" / "native-services.md").read_text()
    blocks = re.findall(r"^```c\n(.*?)^```$", document, re.DOTALL | re.MULTILINE)
    assert (EXAMPLE / "histogram.c").read_text() in blocks


def test_the_document_names_what_exists() -> None:
    document = (ROOT / "docs" / "native-services.md").read_text()
    header = Path(l5.NativeService.include_dir(), "l5_handler.h").read_text()
    names = set(re.findall(r"\bl5_\w+(?=\()", document))
    assert len(names) >= 5
    assert names <= set(re.findall(r"\bl5_\w+(?=\()", header))


@pytest.mark.anyio
async def test_the_example_runs(tmp_path: Path) -> None:
    runpy.run_path(str(EXAMPLE / "build.py"))["build"](tmp_path)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT), str(tmp_path)))}
    text = tmp_path / "text"
    text.write_bytes(b"abracadabra" * 30_000)  # longer than a segment
    server = [sys.executable, str(EXAMPLE / "server.py"), f"l5+unix://{tmp_path}/h.sock"]
    async with await anyio.open_process(server, env=environment, stderr=None) as running:
        try:
            assert running.stdout is not None
            line = await BufferedByteReceiveStream(running.stdout).receive_until(b"\n", 1000)
            client = [sys.executable, str(EXAMPLE / "client.py"), line.decode(), str(text)]
            ran = await anyio.run_process(client, env=environment, stderr=None)
        finally:
            running.terminate()
    assert ran.stdout.decode().split() == [
        *("over", "shm:", "'a'", "150000", "'b'", "60000", "'r'", "60000"),
        *("'c'", "30000", "'d'", "30000"),
    ]


C_SOURCE = """#include <l5_handler.h>
int handle(void *state, const struct l5_request *request, struct l5_reply *reply);
int handle(void *state, const struct l5_request *request, struct l5_reply *reply)
{
    return state ? -EINVAL : l5_reply_append(reply, request->data, request->size);
}
"""


@pytest.mark.parametrize("language", [["-xc", "-std=c11"], ["-xc++", "-std=c++11"]])
def test_the_header_is_c_and_cxx(language: list[str], tmp_path: Path) -> None:
    source = tmp_path / "handler.c"
    source.write_text(C_SOURCE)
    flags = ["-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only"]
    include = f"-I{l5.NativeService.include_dir()}"
    subprocess.run([os.environ.get("CC", "cc"), *language, *flags, include, source], check=True)
