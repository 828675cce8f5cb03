"""Which interpreter runs this: imported first, so that l5 says no before anything is loaded.

The types of the C core are static, one set for the whole process.  A subinterpreter that shared
them would use objects of another interpreter, and on Python 3.12 the process ends in a crash.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

__all__ = ["gil_missing", "refuse_subinterpreter"]

_MODULES = ("_interpreters", "_xxsubinterpreters")
"""Where CPython says which interpreter is the current one: since 3.13, and before."""


def refuse_subinterpreter() -> None:
    """Raise `ImportError` in a subinterpreter."""
    for name in _MODULES:
        try:
            module: Any = import_module(name)
        except ImportError:
            continue
        if module.get_current() != module.get_main():
            raise ImportError(
                "l5 cannot be used in a subinterpreter, because its C core is one for the whole "
                "process: use a process, or a thread with an event loop of its own"
            )
        return


def gil_missing() -> str | None:
    """Say why the C core is not used without the GIL; None where there is one."""
    enabled = getattr(sys, "_is_gil_enabled", None)
    if enabled is None or enabled():
        return None
    return (
        "this Python runs without the GIL, which the C core relies on to keep a connection to one "
        "thread: start it with PYTHON_GIL=1, or use the socket transports"
    )


refuse_subinterpreter()
