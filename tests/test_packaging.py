"""What an installation holds: extensions, headers, types, data, entry points and scripts."""

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import entry_points, version
from importlib.util import find_spec
from pathlib import Path

import pytest

from scripts.requirements import requirements

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TRANSPORTS = ("inproc", "shm", "tcp", "unix")
UNWANTED = (".c", ".o", ".pyc")


def run(*command: str, folder: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **environment},
        text=True,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=540,
    )


def package_folder(name: str) -> Path:
    spec = find_spec(name)
    assert spec is not None and spec.origin is not None, f"{name} is not installed"
    return Path(spec.origin).parent


def test_the_installed_version_is_this_one() -> None:
    assert version("l5net") == PROJECT["version"]


@pytest.mark.parametrize("name", TRANSPORTS)
def test_every_transport_comes_by_its_entry_point(name: str) -> None:
    from l5.abc import Transport

    (found,) = entry_points(group="l5.transports", name=name)
    assert issubclass(found.load(), Transport)


@pytest.mark.parametrize("package", ["l5", "catfish_app"])
def test_types_and_extension_are_there(package: str) -> None:
    folder = package_folder(package)
    assert (folder / "py.typed").is_file()
    assert find_spec(f"{package}._native") is not None


def test_the_public_headers_are_there() -> None:
    assert (package_folder("l5") / "native" / "l5_handler.h").is_file()


@pytest.mark.parametrize(
    "module", ["l5", "catfish_app", pytest.param("l5 ping", id="l5-ping"), "catfish_app serve"]
)
def test_command_lines_explain_themselves(module: str) -> None:
    name, *rest = module.split()
    done = run(sys.executable, "-m", name, *rest, "--help")
    assert done.returncode == 0, done.stderr
    assert "Usage" in done.stdout or "usage" in done.stdout


@pytest.mark.parametrize("script", ["l5", "catfish"])
def test_console_scripts_load(script: str) -> None:
    (found,) = entry_points(group="console_scripts", name=script)
    assert callable(found.load())


def test_extras_refer_to_known_extras() -> None:
    everything = requirements(PROJECT, PROJECT["optional-dependencies"])
    assert not [name for name in everything if name.startswith("l5net")]
    assert set(PROJECT["dependencies"]) <= set(everything)
    assert "numpy>=1.26" in requirements(PROJECT, ["demo"])
    with pytest.raises(SystemExit, match="no extra 'nothing'"):
        requirements(PROJECT, ["nothing"])


@pytest.mark.checkout
def test_an_unknown_sanitizer_is_refused(tmp_path: Path) -> None:
    command = (sys.executable, "setup.py", "build_ext", "--build-lib", str(tmp_path))
    done = run(*command, L5_SANITIZE="adress")
    assert done.returncode != 0
    assert "unknown sanitizer adress; use some of address" in done.stderr


@pytest.mark.checkout
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_wheel_holds_all_and_nothing_else(tmp_path: Path) -> None:
    # From a copy, so that the checkout's own build is left alone and its leftovers are not seen.
    source = tmp_path / "source"
    source.mkdir()
    for name in ("l5", "catfish_app"):
        ignore = shutil.ignore_patterns("*.so", "*.o", "_native.c", "__pycache__")
        shutil.copytree(ROOT / name, source / name, ignore=ignore)
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "LICENSE", "README.md"):
        shutil.copy(ROOT / name, source)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    wheel = (*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path))
    built = run(*wheel, str(source))
    assert built.returncode == 0, built.stderr
    (archive,) = tmp_path.glob("l5net-*.whl")
    names = zipfile.ZipFile(archive).namelist()
    tops = {name.split("/")[0] for name in names}
    assert tops == {"l5", "catfish_app", f"l5net-{PROJECT['version']}.dist-info"}
    assert not [name for name in names if name.endswith(UNWANTED)]
    for wanted in ("l5/py.typed", "catfish_app/py.typed", "catfish_app/data/world.xz"):
        assert wanted in names
    for package in ("l5", "catfish_app"):
        assert [name for name in names if name.startswith(f"{package}/_native.")]
    target = tmp_path / "installed"
    done = run(*pip, "install", "--no-deps", "--no-index", "--target", str(target), str(archive))
    assert done.returncode == 0, done.stderr
    program = "import l5, l5.native, catfish_app; print(l5.__file__, l5.native.available)"
    done = run(sys.executable, "-c", program, folder=tmp_path, PYTHONPATH=str(target))
    assert done.stdout.split() == [str(target / "l5" / "__init__.py"), "True"], done.stderr
