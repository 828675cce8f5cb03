"""Read the imports of the repository's modules from their source, without importing them."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
NOT_OURS = {"__pycache__", "build", "_build", ".venv", "dist"}


@dataclass(frozen=True)
class Import:
    """One imported module, and the name taken from it if there is one."""

    path: Path
    line: int
    module: str
    name: str | None
    typing_only: bool  # under `if TYPE_CHECKING:`, so it never happens at run time

    def __str__(self) -> str:
        where = f"{self.path.relative_to(ROOT)}:{self.line}"
        if self.name is None:
            return f"{where}: import {self.module}"
        return f"{where}: from {self.module} import {self.name}"

    def reaches(self, *packages: str) -> bool:
        """Tell whether this imports one of these modules or something inside it."""
        target = self.target
        return any(target == package or target.startswith(package + ".") for package in packages)

    @property
    def target(self) -> str:
        """The module that is imported; `from package import module` imports the module."""
        if self.name is not None and is_module(f"{self.module}.{self.name}"):
            return f"{self.module}.{self.name}"
        return self.module


def source_files(*folders: str, suffixes: tuple[str, ...] = (".py",)) -> list[Path]:
    """List the files below these folders of the repository that are written by hand."""
    return sorted(
        path
        for folder in folders
        for path in (ROOT / folder).rglob("*")
        if path.suffix in suffixes
        and path.is_file()
        and not NOT_OURS & set(path.relative_to(ROOT).parts)
        and not path.name.startswith("_native")
    )


def module_name(path: Path) -> str:
    """Return the dotted name under which a file of the repository is imported."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def is_module(name: str) -> bool:
    """Tell whether the repository holds a module of this dotted name."""
    path = ROOT.joinpath(*name.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


@cache
def imports(path: Path) -> tuple[Import, ...]:
    """Return all imports of a file, at whatever depth they stand."""
    return imports_of(path, tree(path))


def imports_of(path: Path, module: ast.Module) -> tuple[Import, ...]:
    """Return all imports of a module's source as if it stood at this path."""
    return tuple(_walk(path, module, typing_only=False))


def _walk(path: Path, node: ast.AST, *, typing_only: bool) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield Import(path, node.lineno, alias.name, None, typing_only)
    elif isinstance(node, ast.ImportFrom):
        module = _absolute(path, node)
        for alias in node.names:
            yield Import(path, node.lineno, module, alias.name, typing_only)
    elif isinstance(node, ast.If) and _is_type_checking(node.test):
        for child in node.body:
            yield from _walk(path, child, typing_only=True)
        for child in node.orelse:
            yield from _walk(path, child, typing_only=typing_only)
    else:
        for child in ast.iter_child_nodes(node):
            yield from _walk(path, child, typing_only=typing_only)


def _absolute(path: Path, node: ast.ImportFrom) -> str:
    if node.level == 0:
        return node.module or ""
    package = list(path.relative_to(ROOT).parts[:-1])
    package = package[: len(package) - (node.level - 1)]
    return ".".join([*package, node.module] if node.module else package)


def _is_type_checking(test: ast.expr) -> bool:
    return ast.unparse(test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def public_names(path: Path) -> frozenset[str]:
    """Return what a module's `__all__` lists, from its source."""
    for node in tree(path).body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            return frozenset(ast.literal_eval(node.value))  # pyright: ignore
    raise AssertionError(f"{path.relative_to(ROOT)} has no literal __all__; add one")
