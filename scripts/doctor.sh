#!/bin/sh
# Say in a sentence what this machine lacks for a build, and which Debian package brings it.
# Usage: scripts/doctor.sh PYTHON
set -u

python=${1:-python3}

lack() {
    echo "make: $1" >&2
    exit 1
}

command -v "$python" >/dev/null 2>&1 ||
    lack "there is no $python; install Python 3.11 or newer (Debian 12: apt-get install python3 python3-venv python3-dev), or name one: make PYTHON=/path/to/python3"

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    lack "$("$python" --version 2>&1) is too old, l5 needs Python 3.11 or newer; name another one: make PYTHON=/path/to/python3.12"

"$python" -c 'import venv, ensurepip' >/dev/null 2>&1 ||
    lack "$python cannot make virtual environments; install its venv package (Debian: apt-get install python3-venv)"

compiler=${CC:-cc}
command -v "${compiler%% *}" >/dev/null 2>&1 ||
    lack "there is no C compiler ($compiler); install one (Debian: apt-get install gcc libc6-dev)"

echo '#include <stdio.h>' | $compiler -E - >/dev/null 2>&1 ||
    lack "$compiler finds no C library headers; install them (Debian: apt-get install libc6-dev)"

include=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
[ -f "$include/Python.h" ] ||
    lack "$python has no headers ($include/Python.h is missing); install them (Debian: apt-get install python3-dev)"
