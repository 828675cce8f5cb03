"""Fenced blocks of a Markdown page, and what the page says about them.

An HTML comment directly above a fence, which no reader sees, tells how a block is run:

    <!-- setup: echo -->   the name of an entry of `_setups.py`; open to the end of the page
    <!-- run -->           (console) run these commands and compare what they print
    <!-- run: figures -->  the same, but numbers may differ

A Python block whose first line is ``# name.py`` is a file, if a console block runs it. All others
are run as they stand, with ``await`` allowed, one after the other in one namespace.
"""

import re
from pathlib import Path

import attrs

SCRIPTS = ("bash", "sh", "shell")
_FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,}|~{3,})(?P<info>[^`]*)$")
_COMMENT = re.compile(r"^ *<!-- (?P<word>setup|run)(?:: (?P<argument>\S+))? -->$")
_FILE_NAME = re.compile(r"^# (?P<name>[\w-]+\.py)$")


@attrs.frozen
class Block:
    """One fenced block."""

    page: Path
    line: int
    """Of its first line of text, from 1."""
    language: str
    text: str
    word: str = ""
    argument: str = ""

    @property
    def file_name(self) -> str | None:
        """The file that a Python block is, if it is one."""
        match = _FILE_NAME.match(self.text.partition("\n")[0])
        return match["name"] if match and self.language == "python" else None

    @property
    def commands(self) -> list[tuple[str, str]]:
        """The commands of a console block or script, each with the output that is shown."""
        if self.language in SCRIPTS:
            return [(line, "") for line in self.text.splitlines() if line.strip(" #")]
        found: list[tuple[str, str]] = []
        for line in self.text.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], ""))
            elif found:
                command, output = found[-1]
                found[-1] = (command, f"{output}{line}\n")
        return found

    def __str__(self) -> str:
        return f"{self.page.parent.name}/{self.page.name}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    """Return the fenced blocks of a page in order."""
    found: list[Block] = []
    lines = page.read_text(encoding="utf-8").splitlines()
    index = 0
    while index < len(lines):
        opening = _FENCE.match(lines[index])
        if opening is None:
            index += 1
            continue
        first = index + 1
        last = _end(lines, first, opening["fence"], page)
        indent = len(opening["indent"])
        comment = _COMMENT.match(lines[index - 1]) if index else None
        found.append(
            Block(
                page=page,
                line=first + 1,
                language=opening["info"].strip(),
                text="".join(f"{line[indent:]}\n" for line in lines[first:last]),
                word=comment["word"] if comment else "",
                argument=(comment["argument"] or "") if comment else "",
            )
        )
        index = last + 1
    return found


def _end(lines: list[str], first: int, fence: str, page: Path) -> int:
    for index in range(first, len(lines)):
        text = lines[index].strip()
        if text.startswith(fence) and not text.strip(fence[0]):
            return index
    raise ValueError(f"{page}:{first}: this fence is not closed")
