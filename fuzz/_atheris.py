"""Run one target in Python under atheris: `FUZZ_TARGET=url python -m fuzz._atheris [options]`.

The options are libFuzzer's. The name is not among them, because merging starts this again.
"""

import importlib
import logging
import os
import shlex
import sys

import atheris

# What is fuzzed is instrumented while it is imported; all else stays as fast as it was.
INSTRUMENTED = ["l5", "catfish_app", "fuzz.py"]


def main() -> None:
    name = os.environ["FUZZ_TARGET"]
    logging.disable(logging.CRITICAL)  # a session logs what its peer did wrong: each time
    with atheris.instrument_imports(include=INSTRUMENTED):  # pyright: ignore
        target = importlib.import_module(f"fuzz.py.{name}")
    # Merging runs this as a command of the shell, in a process of its own.
    sys.argv[0] = f"{shlex.quote(sys.executable)} {shlex.quote(__file__)}"
    atheris.Setup(sys.argv, target.one_input, internal_libfuzzer=True)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
