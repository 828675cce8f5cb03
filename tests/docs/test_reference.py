"""The reference pages list what exists, with the defaults and bounds that hold."""

import re
import tomllib
from pathlib import Path
from typing import Any

import attrs
import pytest

import l5

pytestmark = pytest.mark.checkout

ROOT = Path(__file__).parent.parent.parent
OPTIONS = (ROOT / "docs/options.md").read_text(encoding="utf-8")
DESIGN = (ROOT / "docs/design.md").read_text(encoding="utf-8")
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
FIELDS = {field.name: field for field in attrs.fields(l5.ListenOptions)}


def option_rows() -> list[list[str]]:
    """Return the rows of the tables of options: short name, long name, default, bounds, text."""
    rows = [line.strip("| ").split("|") for line in OPTIONS.splitlines() if line.startswith("| `")]
    cells = [[cell.strip(" `") for cell in row] for row in rows]
    return [row for row in cells if len(row) == 5]


def meaning(text: str) -> Any:
    """Return the value that a cell stands for, or its text if it is none."""
    number, _, unit = text.partition(" ")
    if unit in UNITS:
        return int(number) * UNITS[unit]
    if unit in ("s", "ms", "day"):
        return float(number) * {"s": 1.0, "ms": 0.001, "day": 86400.0}[unit]
    if text in ("true", "false"):
        return text == "true"
    return int(text) if text.isdigit() else text


def test_every_option_is_listed_once() -> None:
    names = [row[1] or row[0] for row in option_rows()]
    assert sorted(names) == sorted(FIELDS)


@pytest.mark.parametrize("row", [pytest.param(row, id=row[0]) for row in option_rows()])
def test_options_have_the_defaults_that_are_listed(row: list[str]) -> None:
    default = meaning(row[2])
    if not isinstance(default, str):
        waits = ("hello_timeout", "connect_timeout")  # tests' own are longer: see `_patience`
        options = l5.ListenOptions(**{name: FIELDS[name].default for name in waits})
        assert getattr(options, row[1] or row[0]) == default


@pytest.mark.parametrize(
    "row", [pytest.param(row, id=row[0]) for row in option_rows() if "," in row[3]]
)
def test_options_have_the_bounds_that_are_listed(row: list[str]) -> None:
    name = row[1] or row[0]
    if name == "token":
        return  # its bounds are lengths
    low, high = (meaning(part.strip()) for part in row[3].split(","))
    for value in (low, high):
        # An option may have to fit another one: only its own bounds are looked at.
        FIELDS[name].converter(value)  # type: ignore[misc,operator]
    for value in (low - 1, high + 1):
        with pytest.raises(l5.AddressError):
            FIELDS[name].converter(value)  # type: ignore[misc,operator]


def test_every_error_is_listed() -> None:
    errors = {
        name
        for name in l5.__all__
        if isinstance(value := getattr(l5, name), type) and issubclass(value, Exception)
    }
    assert errors == set(re.findall(r"`l5\.(\w+)`", OPTIONS.partition("## Errors")[2])) & set(
        l5.__all__
    )


def test_every_dependency_has_its_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = [*project["build-system"]["requires"], *project["project"]["dependencies"]]
    for extra in project["project"]["optional-dependencies"].values():
        wanted += extra
    names = {re.split(r"[\[<>=;\s]", text)[0] for text in wanted} - {"l5net"}
    missing = sorted(name for name in names if f"**{name}**" not in DESIGN)
    assert not missing, f"docs/design.md says of each dependency why it is there; not of {missing}"


def test_pairs_of_orderings_are_listed() -> None:
    page = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md"))
    named: set[str] = set()
    for path in (ROOT / "l5/native").glob("*.[ch]"):
        if path.name != "_native.c":
            named |= set(re.findall(r"pairs with: ([A-Z]+)", path.read_text()))
    assert named and all(f"**{name}**" in page for name in named), named


@pytest.mark.parametrize("page", ["shared-memory.md", "design.md", "pages.md"])
def test_names_of_functions_and_files_exist(page: str) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    code = "".join(
        path.read_text(encoding="utf-8")
        for path in [*(ROOT / "l5").rglob("*.py"), *(ROOT / "l5/native").glob("*.[ch]")]
    )
    for path in set(re.findall(r"`((?:l5|catfish_app|tests|docs)/[\w./-]+)`", text)):
        assert (ROOT / path).exists(), f"{page} names {path}, which does not exist"
    for function in set(re.findall(r"`(\w+)\(\)`", text)):
        assert re.search(rf"\b{function}\(", code), f"{page} names {function}()"


def test_the_readme_has_the_figures_that_performance_has() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    kept = (ROOT / "docs/performance.md").read_text(encoding="utf-8").splitlines()
    rows = [line.strip("|\n").split("|")[1:] for line in readme.splitlines() if " / " in line]
    rows = [[cell.strip() for cell in row] for row in rows if len(row) == 4]
    assert len(rows) > 5
    for row in rows:
        assert any(all(f"| {cell} |" in line for cell in row) for line in kept), row
