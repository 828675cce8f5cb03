"""The rules of the house, read from the source: who imports whom, sizes, clean text.

Each failure says what to do. A rule that must give way gives way here, in an allow list, with its
reason.
"""

import ast
import re
from pathlib import Path

import pytest

from tests._imports import (
    ROOT,
    Import,
    imports,
    imports_of,
    module_name,
    public_names,
    source_files,
    tree,
)

pytestmark = pytest.mark.checkout

APPLICATIONS = ("catfish_app", "cell_app", "nam_app")
USERS = (*APPLICATIONS, "examples", "benchmarks")

PURE = (
    "_address",
    "_errors",
    "_flow",
    "_foreign",
    "_frames",
    "_hello",
    "_offload",
    "_offload_model",
    "_options",
    "_partial",
    "_requests",
    "_selector",
)
IMPURE_MODULES = ("anyio", "asyncio", "select", "selectors", "socket", "ssl", "time", "trio")
# The one exception: our errors are subclasses of anyio's where anyio has a word for it.
ERRORS_OF_ANYIO = re.compile(r"(Error|Failed|WouldBlock|EndOfStream)$")

# The interface to verbs. `_library` stands on it, and the bindings to libibverbs on that.
VERBS = ("_constants", "_errors", "_resource", "_slots", "_values", "verbs")

MODULE_LINES = 400
TEST_MODULE_LINES = 600
FUNCTION_LINES = 60
# path, or path:function -> (most lines, why it is not split)
LONGER: dict[str, tuple[int, str]] = {}


def fail_with(advice: str, found: list[str] | list[Import]) -> None:
    """Fail, naming each place, if anything was found."""
    if found:
        pytest.fail(advice + "\n  " + "\n  ".join(map(str, found)), pytrace=False)


# -- the reader itself


def test_the_reader_sees_every_form_of_import() -> None:
    source = """
import anyio.abc, socket
from . import _stream
from .. import abc
from .._errors import L5Error
from l5 import transports
if TYPE_CHECKING:
    from .unix import UnixTransport
def late():
    import time
"""
    found = imports_of(ROOT / "l5" / "transports" / "tcp.py", ast.parse(source))
    assert [(entry.target, entry.typing_only) for entry in found] == [
        ("anyio.abc", False),
        ("socket", False),
        ("l5.transports._stream", False),
        ("l5.abc", False),
        ("l5._errors", False),
        ("l5.transports", False),
        ("l5.transports.unix", True),
        ("time", False),
    ]
    assert found[0].reaches("anyio") and not found[0].reaches("any", "anyio.ab")


def test_the_reader_finds_the_tree() -> None:
    assert len(source_files("l5")) > 20
    assert len(source_files("catfish_app", suffixes=(".c",))) > 5


# -- directions


def test_l5_knows_no_event_loop_but_in_one_file() -> None:
    found = [
        entry
        for path in source_files("l5")
        if path.name != "_loop.py"
        for entry in imports(path)
        if entry.reaches("asyncio", "trio", "uvloop")
    ]
    fail_with("Use anyio, or what l5/_loop.py offers; l5 runs on any loop:", found)


def test_pure_modules_do_no_io() -> None:
    found = [
        entry
        for name in PURE
        for entry in imports(ROOT / "l5" / f"{name}.py")
        if not entry.typing_only and entry.reaches(*IMPURE_MODULES)
        if not (name == "_errors" and _names_an_error_of_anyio(entry))
    ]
    fail_with("A pure module gets time and bytes as arguments; move the I/O to its caller:", found)


def _names_an_error_of_anyio(entry: Import) -> bool:
    return entry.module == "anyio" and ERRORS_OF_ANYIO.search(entry.name or "") is not None


def test_pure_modules_import_pure_modules_only() -> None:
    pure = tuple(f"l5.{name}" for name in PURE)
    found = [
        entry
        for name in PURE
        for entry in imports(ROOT / "l5" / f"{name}.py")
        if not entry.typing_only and entry.reaches("l5") and not entry.reaches(*pure)
    ]
    fail_with("What a pure module imports at run time must be pure too:", found)


def test_pure_modules_never_await() -> None:
    found = [
        f"l5/{name}.py:{node.lineno}: {type(node).__name__}"
        for name in PURE
        for node in ast.walk(tree(ROOT / "l5" / f"{name}.py"))
        if isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncWith | ast.AsyncFor)
    ]
    fail_with("A pure module neither awaits nor defines coroutines:", found)


def test_transports_do_not_know_each_other() -> None:
    found = [
        entry
        for path in source_files("l5/transports")
        for entry in imports(path)
        if entry.reaches("l5.transports")
        and entry.target not in ("l5.transports", module_name(path))
        and not entry.target.split(".")[2].startswith("_")
    ]
    fail_with("Share through a module of l5/transports that begins with an underscore:", found)


def test_toolboxes_do_not_know_transports() -> None:
    found = [
        entry
        for path in source_files("l5/shm", "l5/rdma", "l5/regions", "l5/native")
        for entry in imports(path)
        if entry.reaches("l5.transports", "l5._connect", "l5._serve", "l5._session")
    ]
    fail_with("A toolbox serves its transport and knows nothing above itself:", found)


def test_only_the_registry_finds_transports() -> None:
    found = [
        entry
        for path in source_files("l5")
        if not path.is_relative_to(ROOT / "l5" / "transports")
        for entry in imports(path)
        if entry.reaches("l5.transports") and not entry.typing_only
        if len(entry.target.split(".")) > 2 and not entry.target.split(".")[2].startswith("_")
    ]
    fail_with("Transports come by the entry points l5.transports, ours too:", found)


def test_l5_knows_no_application() -> None:
    found = [
        entry
        for path in source_files("l5")
        for entry in imports(path)
        if entry.reaches(*USERS, "tests", "scripts")
    ]
    fail_with("l5 is below the applications and must not import them:", found)


def test_applications_do_not_know_each_other() -> None:
    found = [
        entry
        for application in APPLICATIONS
        for path in source_files(application)
        for entry in imports(path)
        if entry.reaches(*(set(USERS) - {application}), "tests", "scripts")
    ]
    fail_with("An application imports no other; move what they share into l5:", found)


def test_users_import_public_names_only() -> None:
    public = public_names(ROOT / "l5" / "__init__.py")
    found = [
        entry
        for path in source_files(*USERS)
        for entry in imports(path)
        if entry.reaches("l5") and not _is_public(entry, public)
    ]
    fail_with(
        "Use `import l5`, `from l5 import NAME`, l5.abc, l5.blocking or l5.testing; no more is:",
        found,
    )


def _is_public(entry: Import, public: frozenset[str]) -> bool:
    if entry.reaches("l5.testing"):
        return not any(part.startswith("_") for part in entry.target.split("."))
    if entry.target in ("l5.rdma", "l5.rdma.verbs"):  # who measures verbs needs them bare
        return "benchmarks" in entry.path.parts
    if entry.module == "l5":
        return entry.name is None or entry.name in public | {"abc", "blocking", "testing"}
    return entry.module in ("l5.abc", "l5.blocking", "l5.integrations.prometheus")


def test_users_reach_no_private_attribute_of_l5() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}: l5.{node.attr}"
        for path in source_files(*USERS)
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "l5"
        and node.attr.startswith("_")
        and not node.attr.startswith("__")
    ]
    fail_with("Names with an underscore belong to l5; ask for a public one:", found)


def test_nothing_imports_verbs_before_it_is_asked_to() -> None:
    """What opens a library or a device is imported by name, in one place, when it is chosen."""
    backends = ("l5.rdma._cverbs", "l5.rdma._pyverbs", "l5.rdma._simulated")
    found = [
        entry
        for path in source_files("l5", *USERS)
        if not path.name.startswith(("_cverbs", "_pyverbs", "_simulated"))
        for entry in imports(path)
        if entry.reaches(*backends) and not entry.typing_only
    ]
    fail_with("Only l5/rdma/_discover.py loads a backend, and not before it is asked for:", found)


def test_the_interface_of_verbs_knows_no_backend_and_no_mailbox() -> None:
    below = (*VERBS, "_library")
    found = [
        entry
        for name in below
        for entry in imports(ROOT / "l5" / "rdma" / f"{name}.py")
        if entry.reaches("l5")
        and not entry.reaches("l5._errors", *(f"l5.rdma.{one}" for one in VERBS))
        and not (name == "_slots" and entry.reaches("l5.native", "l5._fast"))
    ]
    fail_with("The interface is below what implements and what uses it:", found)


def test_backends_of_verbs_know_the_interface_only() -> None:
    interface = (*VERBS, "_library")
    found = [
        entry
        for path in source_files("l5/rdma")
        for kind in ("_cverbs", "_pyverbs", "_simulated")
        if path.name.startswith(kind)
        for entry in imports(path)
        if entry.reaches("l5")
        and not entry.target.startswith(f"l5.rdma.{kind}")
        and not entry.reaches("l5._errors", *(f"l5.rdma.{one}" for one in interface))
        if entry.target not in ("l5.rdma", "l5._fast", "l5._native", "l5.native")
    ]
    fail_with(
        "A backend implements l5/rdma/verbs.py and knows neither its users nor others:", found
    )


def test_only_one_file_imports_pyverbs() -> None:
    found = [
        entry
        for path in source_files("l5", *USERS)
        if path.name != "_pyverbs.py"
        for entry in imports(path)
        if entry.reaches("pyverbs")
    ]
    fail_with("Only l5/rdma/_pyverbs.py imports pyverbs:", found)


def test_nothing_unpickles() -> None:
    found = [
        entry
        for path in source_files("l5", *USERS)
        for entry in imports(path)
        if entry.reaches("pickle", "marshal", "shelve", "dill", "cloudpickle")
    ]
    fail_with("A peer's bytes are never unpickled; use msgspec:", found)


# -- sizes


def test_modules_are_small() -> None:
    sizes = {
        **{path: MODULE_LINES for path in source_files("l5", *USERS, "scripts", "fuzz")},
        **{
            path: MODULE_LINES
            for path in source_files("l5", *APPLICATIONS, "fuzz", suffixes=(".c", ".h"))
        },
        **{path: TEST_MODULE_LINES for path in source_files("tests")},
    }
    found: list[str] = []
    for path, usual in sizes.items():
        name = str(path.relative_to(ROOT))
        lines = len(path.read_text(encoding="utf-8").splitlines())
        most = LONGER.get(name, (usual, ""))[0]
        if lines > most:
            found.append(f"{name} has {lines} lines, {most} are allowed")
    fail_with("Split it by what it does, or give a reason in LONGER of this file:", found)


def test_functions_are_small() -> None:
    found: list[str] = []
    for path in source_files("l5", *USERS, "scripts", "fuzz"):
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                name = f"{path.relative_to(ROOT)}:{node.name}"
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                most = LONGER.get(name, (FUNCTION_LINES, ""))[0]
                if lines > most:
                    found.append(
                        f"{name} (line {node.lineno}) has {lines} lines, {most} are allowed"
                    )
    fail_with("Split it by what it does, or give a reason in LONGER of this file:", found)


def test_exceptions_are_still_needed() -> None:
    for name, (most, reason) in LONGER.items():
        look_at_exception(name, most, reason)


def look_at_exception(name: str, most: int, reason: str) -> None:
    path = ROOT / name.partition(":")[0]
    assert path.is_file(), f"{name} is gone; remove its entry from LONGER"
    assert len(reason) > 20, f"{name}: give the reason in words"
    if ":" not in name:
        lines = len(path.read_text(encoding="utf-8").splitlines())
        assert lines > MODULE_LINES, f"{name} fits again; remove its entry from LONGER"
        assert lines > most * 0.6, f"{name} has {lines} lines; lower its limit of {most}"


# -- clean text

TEXTS = (".c", ".cfg", ".h", ".md", ".py", ".pyi", ".sh", ".toml", ".yml")
USUAL_ROOTS = {
    "api",  # of URLs
    "bin",
    "dev",
    "etc",
    "lib",
    "opt",
    "path",
    "proc",
    "run",
    "srv",
    "static",  # of URLs
    "sys",
    "tmp",
    "usr",
    "var",
}
ABSOLUTE_PATH = re.compile(r"""(?<![\w/.:@~\\)}\]*>-])/([a-z][\w.-]{2,})/[\w.-]+""")
UNFINISHED = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X|HA" + r"CK)\b")
TRACKER = re.compile(r"\b(issue|ticket)\s+#?\d+", re.IGNORECASE)


def texts() -> list[Path]:
    """List the texts of the repository that people read."""
    folders = source_files("l5", *USERS, "docs", "scripts", "fuzz", "tests", ".ci", suffixes=TEXTS)
    top = [path for path in ROOT.iterdir() if path.suffix in TEXTS or path.name == "Makefile"]
    return [*folders, *top, ROOT / ".ci" / "run"]


def lines_matching(pattern: re.Pattern[str]) -> list[tuple[str, re.Match[str]]]:
    """Return (place and line, match) for each match in the texts."""
    return [
        (f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}", match)
        for path in texts()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        for match in pattern.finditer(line)
    ]


def test_no_path_of_one_machine() -> None:
    found = [place for place, match in lines_matching(ABSOLUTE_PATH) if match[1] not in USUAL_ROOTS]
    fail_with("A path that only one machine has does not belong into the repository:", found)


def test_nothing_is_left_unfinished() -> None:
    found = [place for place, _ in lines_matching(UNFINISHED)]
    fail_with("Finish it, or leave it out and say so in the documentation:", found)


def test_texts_stand_for_themselves() -> None:
    found = [place for place, _ in lines_matching(TRACKER)]
    fail_with("Say what is meant instead of citing a number in a tracker:", found)
