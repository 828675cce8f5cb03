"""What cffi builds from l5/native: functions by name, without types of their own."""

from typing import Any

ffi: Any
lib: Any
