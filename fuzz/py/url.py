"""URLs and their options: an AddressError, or an address that prints as one that is equal."""

from collections.abc import Callable

from l5._address import URL_CHARS_MAX, Address, parse
from l5._errors import AddressError
from l5._options import ListenOptions, Options

SCHEMES = ("l5", "l5s", "l5+tcp", "l5+unix", "l5+shm", "l5+rdma", "l5+inproc", "l5+other")
READERS: tuple[Callable[[dict[str, str]], Options], ...] = (
    Options.from_mapping,
    ListenOptions.from_mapping,
)


def _parsed(url: str) -> Address | None:
    addresses: list[Address | None] = []
    for zero in (False, True):
        try:
            addresses.append(parse(url, SCHEMES, allow_port_zero=zero))
        except AddressError as error:
            assert str(error)
            addresses.append(None)
    assert addresses[0] is None or addresses[0] == addresses[1]
    return addresses[1]


def _options(query: dict[str, str]) -> None:
    for read in READERS:
        try:
            options = read(query)
        except AddressError as error:
            assert str(error)
            continue
        assert options.initial_credit_bytes >= 1
        assert options.segment_bytes * 4 <= options.ring_bytes


def one_input(data: bytes) -> None:
    url = data[1:].decode("utf-8", "surrogateescape" if data[:1] > b"\x80" else "replace")
    address = _parsed(url)
    if address is None:
        return
    for form in (address.url, str(address)):
        # Escapes make it longer: what was just short enough may no longer be.
        assert len(form) > URL_CHARS_MAX or _parsed(form) == address, form
        assert form.isascii() or not url.isascii()
    assert address.bootstrap and address.redacted and address.location is not None
    assert address.demanded is None or address.demanded
    _options(dict(address.options))
