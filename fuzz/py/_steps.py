"""An input as a program: one byte names a step, its operands follow; at the end all is zero."""


class Steps:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def __bool__(self) -> bool:
        return self._at < len(self._data)

    def number(self, size_bytes: int = 1) -> int:
        return int.from_bytes(self.take(size_bytes), "little")

    def take(self, size_bytes: int) -> bytes:
        taken = self._data[self._at : self._at + size_bytes]
        self._at += size_bytes
        return taken

    def rest(self) -> bytes:
        return self.take(len(self._data))
