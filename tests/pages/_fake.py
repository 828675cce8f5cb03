"""A region in this process's memory, whose reads do what a test wants."""

from collections.abc import Callable, Sequence

Span = tuple[int, int]


class FakeRegion:
    """What a `PageReader` needs; `before_read(span)` is called before each span is copied."""

    def __init__(self, memory: bytearray, *, mapped: bool = False, one_sided: bool = False) -> None:
        self.memory = memory
        self.size_bytes = len(memory)
        self.one_sided = one_sided
        self.mapped = mapped
        self.calls: list[list[Span]] = []
        self.before_read: Callable[[Span], object] = lambda span: None
        self.copy: Callable[[int, int], bytes] = lambda o, n: bytes(self.memory[o : o + n])

    @property
    def mapping(self) -> memoryview | None:
        return memoryview(self.memory).toreadonly() if self.mapped else None

    def read_now(self, offset: int, length: int) -> bytes:
        self.before_read((offset, length))
        return self.copy(offset, length)

    async def read_many(self, spans: Sequence[Span]) -> list[bytes]:
        self.calls.append(list(spans))
        return [self.read_now(*span) for span in spans]
