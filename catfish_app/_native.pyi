"""What cffi builds; its declarations are those of `native/*.h`."""

from typing import Any

ffi: Any
lib: Any
