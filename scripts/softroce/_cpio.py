"""Write archives in the format that Linux unpacks as its first file system (cpio, "newc").

The kernel unpacks several archives that follow each other, so that a run's own files can be
appended to the archive that all runs share.
"""

import stat


class Archive:
    """Files, folders and device nodes, in the order in which they are added."""

    def __init__(self) -> None:
        self._parts = bytearray()
        self._count = 0
        self._folders: set[str] = set()

    def add_folder(self, path: str) -> None:
        """Add a folder and those above it, if they are not there yet."""
        parts = path.strip("/").split("/")
        for depth in range(1, len(parts) + 1):
            folder = "/".join(parts[:depth])
            if folder not in self._folders:
                self._folders.add(folder)
                self._add(folder, stat.S_IFDIR | 0o755)

    def add_file(self, path: str, content: bytes, mode: int = 0o644) -> None:
        """Add a file and the folders above it."""
        self._add_parents(path)
        self._add(path, stat.S_IFREG | mode, content)

    def add_character_device(self, path: str, major: int, minor: int) -> None:
        """Add a device node, which needs no root: it is only a line in the archive."""
        self._add_parents(path)
        self._add(path, stat.S_IFCHR | 0o600, device=(major, minor))

    def finish(self) -> bytes:
        """Return the whole archive."""
        self._add("TRAILER!!!", 0)
        self._align(512)
        return bytes(self._parts)

    def _add_parents(self, path: str) -> None:
        if "/" in path:
            self.add_folder(path.rpartition("/")[0])

    def _add(
        self, path: str, mode: int, content: bytes = b"", device: tuple[int, int] = (0, 0)
    ) -> None:
        self._count += 1
        name = path.encode() + b"\0"
        inode, owner, group, links, time, check = self._count, 0, 0, 1, 0, 0
        fields = (inode, mode, owner, group, links, time, len(content), 0, 0, *device, len(name))
        self._parts += b"070701" + b"".join(b"%08x" % field for field in (*fields, check))
        self._parts += name
        self._align(4)
        self._parts += content
        self._align(4)

    def _align(self, size: int) -> None:
        self._parts += bytes(-len(self._parts) % size)
