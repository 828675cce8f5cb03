"""Every test that the page on security names exists."""

import ast
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.checkout

ROOT = Path(__file__).parent.parent.parent
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("security*.md")), ids=lambda p: p.name)
def test_named_tests_exist(page: Path) -> None:
    named = NAMED.findall(page.read_text(encoding="utf-8"))
    assert named or page.name != "security.md"
    for path, name in named:
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        functions = {
            node.name
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        assert name in functions, f"{page.name} names {path}::{name}, which does not exist"
