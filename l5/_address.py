"""Addresses: what a URL means, checked, and written back the same way.

    l5://host:port            TCP, upgrades itself           l5s://host:port   the same under TLS
    l5+unix:///path           Unix socket, upgrades itself   l5+unix://@name   abstract name
    l5+tcp://host:port        TCP and nothing else
    l5+shm:///path | //@name | //host:port                   shared memory or an error
    l5+rdma://host:port       RDMA or an error
    l5+inproc://name          within this process
    l5+NAME://...             a transport of another package

Nothing here resolves a name or opens anything; a wrong URL raises AddressError and nothing else.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Mapping
from urllib.parse import quote, unquote_to_bytes

import attrs

from l5._errors import AddressError
from l5._options import PLUGIN_PREFIX, check_query

DEFAULT_PORT = 7471
URL_CHARS_MAX = 2048
_SOCKET_PATH_BYTES_MAX = 107  # sun_path holds 108, one of them for the NUL

# What each scheme of ours is: (the location's form, the transport demanded).
_FORMS: dict[str, tuple[str, str | None]] = {
    "l5": ("host", None),
    "l5s": ("host", None),
    "l5+tcp": ("host", "tcp"),
    "l5+rdma": ("host", "rdma"),
    "l5+unix": ("path", None),
    "l5+shm": ("either", "shm"),
    "l5+inproc": ("name", "inproc"),
}
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")
_HOST = re.compile(r"[A-Za-z0-9_.\-\u0080-\U0010ffff]{1,253}")
_ZONE = re.compile(r"[A-Za-z0-9_.\-]{1,32}")
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_SECRETS = re.compile(r"(?<=://)[^/@][^#]*(?=@)|(?<=[?&]token=)[^&#]*", re.IGNORECASE)
_SAFE = "/-._~"


@attrs.frozen(kw_only=True)
class Address:
    """Where to connect or listen, and under which terms; made by ``parse``."""

    scheme: str
    """Such as ``l5`` or ``l5+unix``, in lower case."""

    host: str | None = None
    """A host's name or number, an IPv6 address without its brackets."""

    port: int | None = None

    path: str | None = None
    """A Unix socket's absolute path, or ``@name`` for an abstract one."""

    name: str | None = None
    """The name of an in-process listener."""

    tls: bool = False

    options: Mapping[str, str] = attrs.field(factory=dict[str, str], hash=False)
    """The query as text; ``l5._options`` gives it meaning."""

    @property
    def bootstrap(self) -> str:
        """Name the transport on which the connection begins."""
        form = _FORMS.get(self.scheme, ("", None))[0]
        if form in ("", "name"):
            return self.scheme.removeprefix("l5+")
        return "tcp" if self.path is None else "unix"

    @property
    def demanded(self) -> str | None:
        """Name the transport without which connecting fails; None takes the best there is."""
        form, demanded = _FORMS.get(self.scheme, ("", None))
        return demanded if form else self.scheme.removeprefix("l5+")

    @property
    def location(self) -> str:
        """Write the part between ``//`` and ``?``, ready to be shown."""
        if self.name is not None:
            return _quote(self.name)
        if self.host is None:
            path = self.path or ""
            return "@" + _quote(path[1:]) if path.startswith("@") else _quote(path)
        host = f"[{self.host.replace('%', '%25')}]" if ":" in self.host else self.host
        port = "" if self.port is None else f":{self.port}"
        return host + port + _quote(self.path or "")

    @property
    def url(self) -> str:
        """Write the address so that ``parse`` gives an equal one."""
        return self._write(self.options)

    @property
    def redacted(self) -> str:
        """Write the address for logs: options that only a plugin understands may be secrets."""
        hide = {k: "***" if k.startswith(PLUGIN_PREFIX) else v for k, v in self.options.items()}
        return self._write(hide)

    def _write(self, options: Mapping[str, str]) -> str:
        pairs = (f"{_quote(k)}={quote(v, safe=_SAFE + ',*')}" for k, v in options.items())
        query = "&".join(pairs)
        return f"{self.scheme}://{self.location}" + (f"?{query}" if query else "")

    def __str__(self) -> str:
        return self.url


def parse(url: str, known_schemes: Collection[str], *, allow_port_zero: bool = False) -> Address:
    """Read a URL; ``known_schemes`` are whole schemes such as ``l5+unix``.

    Port 0, which lets the system choose, makes sense for listening only and is then allowed.
    Raises AddressError, which says what is wrong and what would be right.
    """
    _check_text(url)
    scheme, separator, rest = url.partition("://")
    scheme = scheme.lower()
    if not separator or not _SCHEME.fullmatch(scheme):
        raise _error(url, "it has no scheme; write l5://host:port or l5+unix:///path")
    if scheme not in known_schemes:
        known = ", ".join(f"{s}://" for s in sorted(known_schemes)) or "none (is l5 installed?)"
        raise _error(url, f"unknown scheme {scheme!r}; known are {known}")
    location, _, query = rest.partition("?")
    options = _parse_query(url, query)
    form = _FORMS.get(scheme, ("generic", None))[0]
    bare = _parse_location(url, scheme, form, location, allow_port_zero)
    address = attrs.evolve(bare, tls=scheme == "l5s", options=options)
    only_rdma = set(options.get("transports", "").split(",")) == {"rdma"}
    if address.tls and only_rdma:
        raise _error(url, "l5s:// upgrades to local shared memory only, never to rdma; use l5://")
    return address


def _error(url: str, problem: str) -> AddressError:
    shown = _SECRETS.sub("***", url)
    if len(shown) > 120:
        shown = shown[:120] + "..."
    return AddressError(f"bad URL {shown!r}: {problem}")


def _check_text(url: object) -> None:
    if not isinstance(url, str):
        raise AddressError(f"a URL is text, not {type(url).__name__}")
    if len(url) > URL_CHARS_MAX:
        raise _error(url, f"it is longer than {URL_CHARS_MAX} characters")
    if not url.isprintable() or any(c.isspace() for c in url):
        raise _error(url, "it has a space or a control character; write those as %20 and so on")
    if "#" in url:
        raise _error(url, "it has a fragment; write a literal # as %23")


def _quote(text: str) -> str:
    return quote(text, safe=_SAFE, errors="surrogateescape")


def _unquote(url: str, text: str) -> str:
    if _BAD_ESCAPE.search(text):
        raise _error(url, "a % is not followed by two hexadecimal digits; write it as %25")
    # As os.fsdecode does: a path need not be UTF-8, and comes back byte for byte.
    decoded = unquote_to_bytes(text).decode("utf-8", "surrogateescape")
    if "\0" in decoded:
        raise _error(url, "%00 cannot stand in a path or a name")
    return decoded


def _parse_query(url: str, query: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for pair in filter(None, query.split("&")):
        raw_name, equals, raw_value = pair.partition("=")
        if not equals:
            raise _error(url, f"option {raw_name!r} has no value; write {raw_name}=...")
        name, value = _unquote(url, raw_name), _unquote(url, raw_value)
        if not (name + value).isprintable():  # nor UTF-8, if it was not
            raise _error(url, f"option {raw_name!r} holds what cannot be printed")
        if name in options:
            raise _error(url, f"option {name!r} is given twice")
        options[name] = value
    try:
        check_query(options)
    except AddressError as error:
        raise _error(url, str(error)) from None
    return options


def _parse_location(url: str, scheme: str, form: str, location: str, zero: bool) -> Address:
    if form == "name":
        name = _unquote(url, location)
        if not name:
            raise _error(url, "the name is missing; write l5+inproc://name")
        return Address(scheme=scheme, name=name)
    if form == "path" or (form != "host" and location.startswith(("/", "@"))):
        path = _parse_path(url, scheme, location, limited=form != "generic")
        return Address(scheme=scheme, path=path)
    authority, slash, path = location.partition("/")
    if "@" in (location if form != "generic" else authority):
        raise _error(
            url, "credentials do not belong in a URL; pass the secret as the keyword token="
        )
    host, port = _parse_authority(url, authority, zero)
    if form == "generic":
        rest = _unquote(url, slash + path) or None
        return Address(scheme=scheme, host=host, port=port, path=rest)
    if path:
        raise _error(url, f"a path, /{path}, means nothing after a host and a port")
    return Address(scheme=scheme, host=host, port=DEFAULT_PORT if port is None else port)


def _parse_path(url: str, scheme: str, location: str, *, limited: bool) -> str:
    path = _unquote(url, location)
    if not location.startswith(("/", "@")):
        raise _error(
            url,
            f"the path must be absolute, with three slashes, {scheme}:///run/db.sock,"
            f" or an abstract name, {scheme}://@name",
        )
    if path == "@" or (limited and path.endswith("/") and path[0] == "/"):
        raise _error(url, "the name of the socket is missing")
    size = len(path.encode("utf-8", "surrogateescape"))
    if limited and size > _SOCKET_PATH_BYTES_MAX:
        raise _error(
            url, f"a socket's path has at most {_SOCKET_PATH_BYTES_MAX} bytes, this one has {size}"
        )
    return path


def _parse_authority(url: str, authority: str, zero: bool) -> tuple[str, int | None]:
    if authority.startswith("["):
        inner, bracket, tail = authority[1:].partition("]")
        if not bracket or tail[:1] not in ("", ":"):
            raise _error(url, "the brackets round the IPv6 address are wrong; write [::1]:7471")
        return _parse_ipv6(url, inner), _parse_port(url, tail, zero)
    host, colon, tail = authority.partition(":")
    if ":" in tail:
        raise _error(url, "an IPv6 address stands in brackets, such as [::1]:7471")
    return _parse_host(url, host), _parse_port(url, colon + tail, zero)


def _parse_ipv6(url: str, text: str) -> str:
    number, percent, zone = text.partition("%")
    if zone.startswith("25") and len(zone) > 2:  # RFC 6874 writes the % itself as %25
        zone = zone[2:]
    try:
        shortest = str(ipaddress.IPv6Address(number))
    except ValueError:
        raise _error(url, f"{number!r} is not an IPv6 address") from None
    if percent and not _ZONE.fullmatch(zone):
        raise _error(url, f"{zone!r} is not the zone of an IPv6 address, such as eth0")
    return f"{shortest}%{zone}" if percent else shortest


def _parse_host(url: str, host: str) -> str:
    if not host:
        raise _error(url, "the host is missing; to listen everywhere write 0.0.0.0 or [::]")
    if not _HOST.fullmatch(host):
        raise _error(url, f"{host[:80]!r} is not the name of a host")
    if re.fullmatch(r"[0-9.]+", host):
        try:
            return str(ipaddress.IPv4Address(host))
        except ValueError:
            raise _error(url, f"{host!r} is not an IPv4 address") from None
    return host.lower() if host.isascii() else host


def _parse_port(url: str, tail: str, zero: bool) -> int | None:
    if not tail:
        return None
    text = tail[1:]
    good = text.isascii() and text.isdigit() and len(text) <= 5 and int(text) <= 65535
    if not good:
        raise _error(url, f"the port is a number from 1 to 65535, not {text[:80]!r}")
    if int(text) == 0 and not zero:
        raise _error(url, "port 0 is for listening only; say which port to connect to")
    return int(text)
