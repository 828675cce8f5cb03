"""README.md, docs/*.md and the examples' pages: programs run and print what the page shows,
fragments run on every loop, commands exist."""

import ast
import importlib.util
import inspect
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import pytest

from tests.docs._blocks import SCRIPTS, Block, blocks_of
from tests.docs._setups import PAGES, SETUPS
from tests.docs._shell import Shell, matches

pytestmark = pytest.mark.checkout

ROOT = Path(__file__).parent.parent.parent
ALL_PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "examples").glob("*/README.md")),
]
BLOCKS = {page: blocks_of(page) for page in ALL_PAGES}
NOT_RUN = {"py", "py3", "pycon", "python3", "pytb"}


def pages_with(kind: Any) -> list[Any]:
    """Return, as parameters, the pages that have a block of a kind."""
    return [
        pytest.param(page, id=str(page.relative_to(ROOT)))
        for page in ALL_PAGES
        if any(kind(block) for block in BLOCKS[page])
    ]


def is_program(block: Block) -> bool:
    """Tell whether a block is a file that a console block of its page runs."""
    runs = [other for other in BLOCKS[block.page] if other.word == "run"]
    name = block.file_name
    return name is not None and any(f"python {name}" in other.text for other in runs)


def is_fragment(block: Block) -> bool:
    return block.language == "python" and not is_program(block)


def has_commands(block: Block) -> bool:
    return block.language == "console" or block.language in SCRIPTS


@pytest.fixture
def shell() -> Iterator[Shell]:
    # Not pytest's folder: the path of a Unix socket has at most 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix="l5-docs-"))
    made = Shell(folder)
    try:
        yield made
    finally:
        made.close()
        shutil.rmtree(folder)


# -- running


@pytest.mark.timeout(600)  # a page may start a dozen programs
@pytest.mark.parametrize("page", pages_with(lambda block: block.word == "run"))
def test_programs_print_what_the_page_shows(page: Path, shell: Shell) -> None:
    for block in BLOCKS[page]:
        if is_program(block):
            shell.write(block)
        elif block.word == "run":
            shell.run(block)


@pytest.mark.parametrize("page", pages_with(is_fragment))
def test_fragments_run(page: Path, shell: Shell, anyio_backend: tuple[str, dict[str, Any]]) -> None:
    name, options = anyio_backend
    with ExitStack() as stack:
        portal = stack.enter_context(anyio.from_thread.start_blocking_portal(name, options))
        namespace: dict[str, Any] = {"__name__": "page"}
        opened: set[str] = set()

        def enter(setup: str) -> None:
            if setup and setup not in opened:
                opened.add(setup)
                context = portal.wrap_async_context_manager(SETUPS[setup](shell))
                namespace.update(stack.enter_context(context))

        enter(PAGES.get(page.name, ""))
        for block in filter(is_fragment, BLOCKS[page]):
            enter(block.argument)
            run_fragment(block, shell.localise(block.text), namespace, portal)


def run_fragment(
    block: Block, text: str, namespace: dict[str, Any], portal: anyio.from_thread.BlockingPortal
) -> None:
    source = "\n" * (block.line - 1) + text  # so that a traceback has the page's lines
    code = compile(source, str(block.page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if not code.co_flags & inspect.CO_COROUTINE:
        exec(code, namespace)
        return

    async def run() -> None:
        await eval(code, namespace)

    async def run_until_it_serves() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()

    portal.call(run_until_it_serves if ".serve_forever()" in text else run)


# -- what pages say


@pytest.mark.parametrize("page", pages_with(lambda _: True))
def test_every_block_is_of_a_kind_that_is_checked(page: Path) -> None:
    for block in BLOCKS[page]:
        assert block.language not in NOT_RUN, f"{block}: call it python, so that it is run"
        if block.word == "setup":
            assert block.argument in SETUPS, f"{block}: no setup {block.argument!r}"


@pytest.mark.parametrize("page", pages_with(has_commands))
def test_commands_exist(page: Path) -> None:
    for block in BLOCKS[page]:
        if has_commands(block):
            for command, _ in block.commands:
                check_command(block, shlex.split(command.rstrip("& "), comments=True))


def check_command(block: Block, words: list[str]) -> None:
    while words and re.fullmatch(r"[A-Z_0-9]+=.*", words[0]):
        words = words[1:]
    match words:
        case ["make", *targets]:
            known = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
            wanted = {word for word in targets if "=" not in word}
            assert wanted <= known, f"{block}: make has no target {sorted(wanted - known)}"
        case ["l5", *rest]:
            check_cli(block, "l5._cli", rest)
        case ["catfish", *rest]:
            check_cli(block, "catfish_app._cli", rest)
        case [python, "-m", module, *_] if python.endswith("python"):
            assert importlib.util.find_spec(module), f"{block}: no module {module}"
        case [python, file, *_] if python.endswith("python") and "/" in file:
            assert (ROOT / file).exists(), f"{block}: no file {file}"
        case _:
            pass  # other people's commands


def check_cli(block: Block, module: str, words: list[str]) -> None:
    """Look the subcommand and its options up in the program itself."""
    import typer.main

    app = importlib.import_module(module).app
    group: Any = typer.main.get_command(app)
    if not words or words[0].startswith("-"):
        return
    command = group.commands.get(words[0])
    assert command is not None, f"{block}: no such command: {words[0]}"
    known = {name for parameter in command.params for name in parameter.opts}
    wanted = {word.partition("=")[0] for word in words[1:] if re.match(r"--?[A-Za-z]", word)}
    assert wanted <= known | {"--help"}, f"{block}: {words[0]} has no {sorted(wanted - known)}"


# -- the readers themselves


def test_blocks_are_found_with_their_words(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "text\n<!-- setup: echo -->\n```python\nx = 1\n```\n\n- item\n\n  ````text\n  ```\n  ````\n"
        "\n```python\n# a.py\n```\n<!-- run -->\n```console\n$ one &\nout\n$ two\n```\n"
    )
    found = blocks_of(page)
    assert [(b.language, b.text, b.word, b.argument, b.line) for b in found] == [
        ("python", "x = 1\n", "setup", "echo", 4),
        ("text", "```\n", "", "", 10),
        ("python", "# a.py\n", "", "", 14),
        ("console", "$ one &\nout\n$ two\n", "run", "", 18),
    ]
    assert found[2].file_name == "a.py"
    assert found[3].commands == [("one &", "out\n"), ("two", "")]


def test_an_open_fence_is_an_error(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\nx\n")
    with pytest.raises(ValueError, match="not closed"):
        blocks_of(page)


@pytest.mark.parametrize(
    ("wanted", "printed", "same"),
    [
        ("a b\n", "a b\n", True),
        ("a b\n", "a c\n", False),
        ("a ... d\n", "a b c d\n", True),
        ("a ... d\n", "a b\nc d\n", False),
        ("a\n...\nz\n", "a\nb\nc\nz\n", True),
        ("a\n", "a\nb\n", False),
        ("1.5 (x)\n", "1.5 (x)\n", True),
        ("1.5\n", "125\n", False),
        ("1.5\n", "2.5\n", False),
    ],
)
def test_outputs_are_compared(wanted: str, printed: str, same: bool) -> None:
    assert matches(wanted, printed) is same


def test_figures_may_differ() -> None:
    assert matches("p50 1.5 us; 97,000/s\n", "p50 12 us; 1,234,567/s\n", figures=True)
    assert not matches("p50 1.5 us\n", "p50 none us\n", figures=True)
    assert not matches("p50 1.5 us\n", "p99 1.5 ms\n", figures=True)
