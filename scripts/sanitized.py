"""Run the Python suite on extensions that were built with sanitizers.

    python scripts/sanitized.py [--full] [--leaks] [--thread] [--keep] [PYTEST ARGUMENT ...]
    python scripts/sanitized.py --full -k trio -v

The checkout is copied to a temporary folder and both extensions are built there; every process of
the run, and every child of one, then loads those. Without arguments a chosen part of the suite
runs, short enough for CI; with --full all of it does that makes sense there (`-k trio`: on one
loop, a third of the time), and with arguments what they say.

Reports go to files, one a process, whatever became of the process: the run fails if there is any.
CPython gives back little of its memory as it ends, so of the blocks that LeakSanitizer finds only
those count that were asked for by our own C: directly, or with --leaks through CPython, whose
stacks must be walked by unwind tables (it has no frame pointers), which is slow.

Before the tests, one fault of each kind is made on purpose: it must be found.

--thread uses the thread sanitizer instead. CPython's lock is a pthread mutex, so it is understood;
the two ends of a ring are two mappings, which it takes for different memory.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
LEFT_OUT = shutil.ignore_patterns(
    *(".git", ".venv", "build", "dist", "_build", "__pycache__", "*.so", "*.o", "*.egg-info"),
    *(".hypothesis", ".pytest_cache", ".ruff_cache", "wheelhouse"),
)
# One loop each, as what the sanitizers look at does not know the loop. Programs that are built with
# sanitizers of their own are left out, and so is the test that a crash is CPython's to report: here
# it is the sanitizer's.
WHOLE = "not sanitizer and not bare"
NOT_HERE = f"{WHOLE} and not slow"
TRIO = "trio or not (asyncio or uvloop)"
PARTS = {
    "conformance": ["tests/conformance/test_transports.py", "-k", "SharedMemory and trio"],
    "connection": ["tests/connection", "tests/review", "-k", TRIO],
    "native": ["tests/native/test_service.py", "tests/native/test_service_served.py", "-k", TRIO],
    "pages": ["tests/pages/test_pages.py", "-k", TRIO],
    "tree": ["tests/rtree/test_rtree.py", "tests/catfish/test_handlers.py", "-k", TRIO],
}
LEAK_PARTS = {"leaks": ["tests/review", "tests/native/test_service.py", "-k", TRIO]}
THREAD_PARTS = {
    "threads": ["tests/native", "tests/rtree", "tests/review", "-k", f"({TRIO}) and not arm64"]
}
CRASHES = "tests/review/test_worker_faults.py::test_a_crash_of_a_handler_is_reported"
OURS = re.compile(r" (l5|catfish_app)/native/\w+\.[ch]:")
# Made once when a module is imported and never given back, as CPython's own are.
FOR_LIFE = re.compile(r" in (PyInit__native|l5_install_fast|install)\b")
BLOCK = re.compile(r"^(?:Direct|Indirect) leak of .*?(?=^\s*$)", re.MULTILINE | re.DOTALL)
FAULT = re.compile(
    r"ERROR: AddressSanitizer|runtime error:|WARNING: ThreadSanitizer|DEADLYSIGNAL|fatal error"
)


def library(name):
    """Return the path of a sanitizer's runtime, as the compiler knows it."""
    compiler = shutil.which("gcc")
    if compiler is None:
        sys.exit("sanitized: gcc is missing (Debian: apt-get install gcc)")
    command = [compiler, f"-print-file-name={name}"]
    path = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    if not os.path.isabs(path):
        sys.exit(f"sanitized: {name} is missing; it comes with gcc (Debian: libgcc-12-dev)")
    return os.path.realpath(path)


def build(tree, sanitizers):
    """Build both extensions in the copy."""
    environment = {**os.environ, "CC": "gcc", "L5_SANITIZE": sanitizers}
    command = [
        sys.executable,
        "setup.py",
        "-q",
        "build_ext",
        "--inplace",
        "--force",
        "--parallel=2",
    ]
    done = subprocess.run(command, cwd=tree, env=environment, check=False)
    built = sorted(path.parent.name for path in tree.glob("*/_native*.so"))
    if done.returncode or built != ["catfish_app", "l5"]:
        sys.exit(f"sanitized: the build failed; built: {', '.join(built) or 'nothing'}")


def settings(arguments, tree, reports):
    """Return the environment of a run."""
    log = f"log_path={reports}/report"
    if arguments.thread:
        # The C library gives the memory of an ended thread to the next one, unseen.
        unseen = reports.parent / "suppressions"
        unseen.write_text("race:_dl_deallocate_tls\n")
        how = f"exitcode=0:report_signal_unsafe=0:history_size=4:suppressions={unseen}"
        own = {"TSAN_OPTIONS": f"{log}:{how}"}
        preload = library("libtsan.so")
    else:
        # An error ends the process; a leak does not: it may be CPython's, or a compiler's.
        address = f"{log}:abort_on_error=1:exitcode=0:disable_coredump=1:handle_segv=1"
        walk = f"fast_unwind_on_malloc={int(not arguments.leaks)}:malloc_context_size=12"
        own = {
            "ASAN_OPTIONS": f"{address}:detect_leaks=1:{walk}",
            "UBSAN_OPTIONS": f"{log}:print_stacktrace=1:halt_on_error=1:abort_on_error=1",
            # Without use_tls=0 LeakSanitizer (gcc 12, glibc 2.36) sometimes crashes itself.
            "LSAN_OPTIONS": "use_tls=0:print_suppressions=0",
        }
        # The C++ runtime too, or the sanitizer does not find what throws exceptions.
        preload = f"{library('libasan.so')} {library('libstdc++.so')}"
    return {
        **os.environ,
        **own,
        "LD_PRELOAD": preload,
        "PYTHONMALLOC": "malloc",
        "PYTHONPATH": str(tree),
        "L5_SANITIZED": "1",
    }


def check_loaded(tree, environment):
    """Make sure that what is tested is what was built here."""
    code = (
        "import l5.native, catfish_app._native as c; print(l5.native.lib, c.__file__, l5.__file__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tree, env=environment, capture_output=True, text=True
    )
    if done.returncode or done.stdout.count(str(tree)) < 2:
        sys.exit(f"sanitized: the extensions cannot be loaded\n{done.stdout}{done.stderr}")


ALARMS = {
    # A structure is read from a block that is too short for it.
    "AddressSanitizer: heap-buffer-overflow": """
short = ffi.new("char[8]", bytes([1] * 8))
lib.l5_service_new(ffi.cast("struct l5_service_options *", short), ffi.new("struct l5_service **"))
""",
    # Services are made, and their addresses forgotten.
    "Direct leak": """
options = {"handler": 1, "workers": 1, "request_bytes_max": 1, "stored_bytes_max": 1}
def forget():
    made = ffi.new("struct l5_service **")
    assert lib.l5_service_new(ffi.new("struct l5_service_options *", options), made) == 0
    made[0] = ffi.NULL
for _ in range(5):
    forget()
""",
}


def check_alarms(tree, environment, reports):
    """Make sure that faults are found, by one of each kind that is made on purpose."""
    for expected, code in ALARMS.items():
        program = f"from l5.native import ffi, lib\n{code}"
        subprocess.run(
            [sys.executable, "-c", program], cwd=tree, env=environment, capture_output=True
        )
        found = findings(reports)
        if not any(expected in text for text in found):
            texts = "\n".join(path.read_text(errors="replace") for path in reports.glob("*"))
            sys.exit(f"{texts}\nsanitized: a fault made on purpose was not found: {expected}")
        for path in reports.glob("report*"):
            path.unlink()


def findings(reports):
    """Return the texts of all reports that are about our own C."""
    found = []
    for path in sorted(reports.glob("report*")):
        text = path.read_text(errors="replace")
        if FAULT.search(text):
            found.append(text)
            continue
        blocks = (match.group() for match in BLOCK.finditer(text + "\n\n"))
        found += [block for block in blocks if OURS.search(block) and not FOR_LIFE.search(block)]
    return found


def run_parts(parts, tree, environment, reports):
    """Run pytest once a part; return what went wrong."""
    wrong = []
    for name, chosen in parts.items():
        print(f"== sanitized: {name}: pytest {' '.join(chosen)}", flush=True)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *chosen]
        command += ["--deselect", CRASHES]
        status = subprocess.run(command, cwd=tree, env=environment, check=False).returncode
        if status:
            wrong.append(f"{name}: pytest ended with {status}")
    found = findings(reports)
    for text in found:
        print(text, flush=True)
    if found:
        wrong.append(f"{len(found)} reports, above")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--full", action="store_true", help="the whole suite")
    parser.add_argument("--leaks", action="store_true", help="look for leaks: slow")
    parser.add_argument("--thread", action="store_true", help="the thread sanitizer")
    parser.add_argument("--keep", metavar="FOLDER", help="build there, and keep it")
    arguments, rest = parser.parse_known_args()
    parts = THREAD_PARTS if arguments.thread else LEAK_PARTS if arguments.leaks else PARTS
    parts = {name: ["-m", NOT_HERE, *chosen] for name, chosen in parts.items()}
    if arguments.full:
        parts = {"everything": ["-m", WHOLE, "tests", *rest]}
    elif rest:
        parts = {"chosen": rest}
    with tempfile.TemporaryDirectory(prefix="l5-sanitized-") as folder:
        place = Path(arguments.keep or folder).resolve()
        tree, reports = place / "tree", place / "reports"
        shutil.copytree(ROOT, tree, ignore=LEFT_OUT, symlinks=True, dirs_exist_ok=True)
        shutil.rmtree(reports, ignore_errors=True)
        reports.mkdir()
        # A test's process becomes another user, and imports and reports as that.
        os.chmod(folder, 0o755)
        reports.chmod(0o1777)
        build(tree, "thread" if arguments.thread else "address,undefined")
        environment = settings(arguments, tree, reports)
        check_loaded(tree, environment)
        if not arguments.thread:
            check_alarms(tree, environment, reports)
        wrong = run_parts(parts, tree, environment, reports)
    if wrong:
        sys.exit("sanitized: " + "; ".join(wrong))
    print("sanitized: nothing was found")


if __name__ == "__main__":
    main()
