"""The machines' kernel: Debian's, taken out of its package (never installed) and kept in a cache.

The cache holds two files: `kernel`, which QEMU boots, and `initrd.gz`, the first file system with
busybox, init.sh and the modules in the order in which they are loaded.
"""

import gzip
import hashlib
import lzma
import os
import re
import shutil
import struct
import subprocess
import tarfile
import tempfile
from pathlib import Path

from ._cpio import Archive
from ._errors import HarnessError, say

HERE = Path(__file__).parent
FORMAT = "1"
"""Goes into the stamp of the cache: another number makes it anew."""

# What they need comes first, by modprobe. One that this kernel has built in, or lacks, is left out:
# a machine that cannot do without it says so as it comes up.
MODULES = (
    *("crc32c_generic", "crc32_generic", "crc32c-intel", "libcrc32c"),
    *("virtio_pci", "virtio_console", "9pnet_virtio", "9p", "overlay"),
    *("virtio_net", "dummy", "veth", "sch_netem"),
    *("ib_uverbs", "rdma_rxe", "rdma_ucm"),
)
MODULE_OPTIONS = {"dummy.ko": "numdummies=0"}
WANTED = re.compile(
    r"(usr/)?lib/modules/[^/]+/(modules\.|kernel/(lib|crypto|fs|net|arch/x86/crypto"
    r"|drivers/(infiniband|net|virtio|char|block))/)|boot/vmlinuz-"
)
SYSTEM_PATH = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))
COMPRESSED = re.compile(r"\.(xz|gz|zst)$")


def prepare(cache: Path, package: Path | None = None, refresh: bool = False) -> tuple[Path, Path]:
    """Return the kernel and the first file system; make them if the cache has none that fit."""
    kernel, initrd, stamp = cache / "kernel", cache / "initrd.gz", cache / "stamp"
    wanted = _stamp(package)
    if not refresh and _read(stamp) == wanted and kernel.exists() and initrd.exists():
        return kernel, initrd
    cache.mkdir(parents=True, exist_ok=True)
    busybox = _static_busybox()
    for tool in ("depmod", "modprobe"):
        if not shutil.which(tool, path=SYSTEM_PATH):
            raise HarnessError(f"{tool} is not installed (Debian: apt-get install kmod)")
    with tempfile.TemporaryDirectory(prefix="softroce-kernel-") as folder:
        tree = Path(folder, "root")
        tree.mkdir()
        found = package or _download(Path(folder))
        say(f"unpacking {found.name}")
        _unpack(found, tree)
        modules = _modules(tree, found.name)
        image = next((tree / "boot").glob("vmlinuz-*")).read_bytes()
        _replace(kernel, _uncompressed(image) or image)
        _replace(initrd, gzip.compress(_first_file_system(busybox, modules), 1))
    _replace(stamp, wanted.encode())
    return kernel, initrd


def _stamp(package: Path | None) -> str:
    script = hashlib.sha256((HERE / "init.sh").read_bytes()).hexdigest()[:16]
    return " ".join((FORMAT, *MODULES, script, str(package or "")))


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None


def _replace(path: Path, content: bytes) -> None:
    """Write a file so that nobody ever sees half of it."""
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(content)
    os.chmod(file.name, 0o644)
    os.replace(file.name, path)


def _output(command: list[str], folder: Path | None = None) -> bytes:
    environment = {**os.environ, "PATH": SYSTEM_PATH, "LC_ALL": "C"}
    try:
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True)
    except FileNotFoundError:
        raise HarnessError(f"{command[0]} is not installed") from None
    if done.returncode != 0:
        said = " / ".join(done.stderr.decode(errors="replace").strip().splitlines()[-3:])
        raise HarnessError(f"{command[0]} failed ({done.returncode}): {said}")
    return done.stdout


def _static_busybox() -> bytes:
    path = shutil.which("busybox")
    content = Path(path).read_bytes() if path else b""
    if not content or b"ld-linux" in content[:4096]:
        found = "is not static" if content else "is not installed"
        raise HarnessError(f"busybox {found} (Debian: apt-get install busybox-static)")
    return content


def _download(folder: Path) -> Path:
    """Fetch the package of the kernel that Debian's linux-image-amd64 stands for."""
    depends = _output(
        ["apt-cache", "depends", "--no-recommends", "--no-suggests", "linux-image-amd64"]
    )
    names = re.findall(r"Depends: (linux-image-[0-9]\S*)", depends.decode())
    if not names:
        raise HarnessError(
            "apt knows no linux-image-amd64: run `apt-get update`, or give --kernel-deb with the "
            "file of a Debian kernel package"
        )
    say(f"downloading {names[0]} (about 70 MB, once)")
    _output(["apt-get", "-q", "-o", "Acquire::Retries=3", "download", names[0]], folder)
    return next(folder.glob("linux-image-*.deb"))


def _unpack(package: Path, tree: Path) -> None:
    """Take the kernel, and the modules that may be wanted, out of a package."""
    command = ["dpkg-deb", "--fsys-tarfile", str(package)]
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
    except FileNotFoundError:
        raise HarnessError("dpkg-deb is not installed (Debian: apt-get install dpkg)") from None
    with process:
        try:
            with tarfile.open(fileobj=process.stdout, mode="r|") as files:
                for member in files:
                    name = member.name.lstrip("./")
                    content = files.extractfile(member) if member.isreg() else None
                    if content is None or not WANTED.match(name) or ".." in name.split("/"):
                        continue
                    path = tree / name.removeprefix("usr/")
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(content.read())
        except tarfile.TarError:
            raise HarnessError(f"dpkg-deb cannot read {package}") from None
    if process.returncode or not (tree / "boot").is_dir() or not (tree / "lib/modules").is_dir():
        raise HarnessError(f"{package} holds no kernel")


def _modules(tree: Path, package: str) -> list[Path]:
    """Return the modules' files in the order in which they must be loaded."""
    version = next((tree / "lib/modules").iterdir()).name
    _output(["depmod", "-b", str(tree), version])
    order: list[Path] = []
    for name in MODULES:
        shown = ["modprobe", "-S", version, "-d", str(tree), "-C", "/dev/null", "--show-depends"]
        try:
            lines = _output([*shown, name]).decode().splitlines()
        except HarnessError:
            if name == "rdma_rxe":
                raise HarnessError(f"{package} has no module rdma_rxe") from None
            continue
        for line in lines:
            path = Path(line.split()[1])
            if line.startswith("insmod ") and path not in order:
                order.append(path)
    return order


def _first_file_system(busybox: bytes, modules: list[Path]) -> bytes:
    archive = Archive()
    for folder in ("bin", "proc", "sys", "dev", "lib/mods", "run"):
        archive.add_folder(folder)
    archive.add_character_device("dev/console", 5, 1)
    archive.add_character_device("dev/null", 1, 3)
    archive.add_file("bin/busybox", busybox, 0o755)
    archive.add_file("init", (HERE / "init.sh").read_bytes(), 0o755)
    order = ""
    for path in modules:
        name = COMPRESSED.sub("", path.name)
        archive.add_file(f"lib/mods/{name}", _module(path))
        order += f"{name} {MODULE_OPTIONS.get(name, '')}".rstrip() + "\n"
    archive.add_file("lib/mods/order", order.encode())
    return archive.finish()


def _module(path: Path) -> bytes:
    if path.suffix == ".xz":
        return lzma.decompress(path.read_bytes())
    if path.suffix == ".gz":
        return gzip.decompress(path.read_bytes())
    if path.suffix == ".zst":
        return _output(["zstd", "-dc", str(path)])
    return path.read_bytes()


def _uncompressed(image: bytes) -> bytes | None:
    """Return the kernel proper inside a bzImage if QEMU can boot it so, else None.

    Unpacking it under emulation would be much of a boot. QEMU enters it by the address in its Xen
    note XEN_ELFNOTE_PHYS32_ENTRY (18); the fields are those of Linux's x86 boot protocol.
    """
    if image[0x202:0x206] != b"HdrS":
        return None
    setup_sectors = image[0x1F1] or 4
    offset, size = struct.unpack_from("<II", image, 0x248)
    begin = (setup_sectors + 1) * 512 + offset
    payload = image[begin : begin + size]
    try:
        if payload.startswith(b"\xfd7zXZ\0"):
            # Its length follows it, which is not a part of the format.
            kernel = lzma.LZMADecompressor(lzma.FORMAT_XZ).decompress(payload)
        elif payload.startswith(b"\x1f\x8b"):
            kernel = gzip.decompress(payload[:-4])
        else:
            return None
    except (lzma.LZMAError, OSError, EOFError):
        return None
    note = struct.pack("<III", 4, 8, 18) + b"Xen\0"
    return kernel if kernel.startswith(b"\x7fELF") and note in kernel else None
