"""Print what the named extras of pyproject.toml require, in the form of a requirements file.

    python scripts/requirements.py test lint

The project's own requirements are included; references from one extra to others are followed.
"""

import re
import sys
import tomllib
from pathlib import Path

PYPROJECT = Path(__file__).parent.parent / "pyproject.toml"
OWN_EXTRAS = re.compile(r"^l5net\[([\w,\s-]+)\]$")


def requirements(project, extras):
    """Return the requirements of the project with these extras, sorted, each once."""
    known = project["optional-dependencies"]
    found = set(project["dependencies"])
    pending = list(extras)
    seen = set()
    while pending:
        extra = pending.pop()
        if extra in seen:
            continue
        seen.add(extra)
        if extra not in known:
            sys.exit(f"requirements: no extra {extra!r}; there are {', '.join(sorted(known))}")
        for requirement in known[extra]:
            own = OWN_EXTRAS.match(requirement)
            if own:
                pending.extend(name.strip() for name in own.group(1).split(","))
            else:
                found.add(requirement)
    return sorted(found)


def main():
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    print("\n".join(requirements(project, sys.argv[1:])))


if __name__ == "__main__":
    main()
