"""URLs mean what the documentation says, come back unchanged, and fail with advice."""

import pickle
import string

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from l5._address import DEFAULT_PORT, URL_CHARS_MAX, Address, parse
from l5._errors import AddressError

KNOWN = frozenset({"l5", "l5s", "l5+tcp", "l5+unix", "l5+shm", "l5+rdma", "l5+inproc", "l5+custom"})


def at(url: str, **how: bool) -> Address:
    return parse(url, KNOWN, **how)


@pytest.mark.parametrize(
    ("url", "host", "port", "bootstrap", "demanded"),
    [
        ("l5://db.internal:7471", "db.internal", 7471, "tcp", None),
        ("l5://db.internal", "db.internal", DEFAULT_PORT, "tcp", None),
        ("l5://db.internal:80/", "db.internal", 80, "tcp", None),
        ("L5://DB.Internal:80", "db.internal", 80, "tcp", None),
        ("l5://10.0.0.1:1", "10.0.0.1", 1, "tcp", None),
        ("l5://[::1]:65535", "::1", 65535, "tcp", None),
        ("l5://[0:0::0001]", "::1", DEFAULT_PORT, "tcp", None),
        ("l5://[fe80::1%25eth0]:5", "fe80::1%eth0", 5, "tcp", None),
        ("l5://[fe80::1%eth0]:5", "fe80::1%eth0", 5, "tcp", None),
        ("l5://b\u00fccher.example:5", "b\u00fccher.example", 5, "tcp", None),
        ("l5s://db:1", "db", 1, "tcp", None),
        ("l5+tcp://db:1", "db", 1, "tcp", "tcp"),
        ("l5+rdma://db:1", "db", 1, "tcp", "rdma"),
        ("l5+shm://db:1", "db", 1, "tcp", "shm"),
        ("l5+shm://db", "db", DEFAULT_PORT, "tcp", "shm"),
        ("l5+custom://db:1", "db", 1, "custom", "custom"),
        ("l5+custom://db", "db", None, "custom", "custom"),
    ],
)
def test_hosts(url: str, host: str, port: int | None, bootstrap: str, demanded: str | None) -> None:
    address = at(url)
    assert (address.host, address.port) == (host, port)
    assert (address.path, address.name) == (None, None)
    assert (address.bootstrap, address.demanded) == (bootstrap, demanded)
    assert address.tls == url.startswith("l5s:")
    assert at(address.url) == address


@pytest.mark.parametrize(
    ("url", "path", "bootstrap", "demanded"),
    [
        ("l5+unix:///run/db.sock", "/run/db.sock", "unix", None),
        ("l5+unix:///run/a%20b%3Fc%23d%25", "/run/a b?c#d%", "unix", None),
        ("l5+unix:///run/%FF", "/run/\udcff", "unix", None),
        ("l5+unix:///run/caf\u00e9", "/run/caf\u00e9", "unix", None),
        ("l5+unix://@db", "@db", "unix", None),
        ("l5+unix://@a/b@c:1", "@a/b@c:1", "unix", None),
        ("l5+shm:///run/db.sock", "/run/db.sock", "unix", "shm"),
        ("l5+shm://@db", "@db", "unix", "shm"),
        ("l5+custom:///a/b/", "/a/b/", "custom", "custom"),
        ("l5+custom://@a", "@a", "custom", "custom"),
    ],
)
def test_paths(url: str, path: str, bootstrap: str, demanded: str | None) -> None:
    address = at(url)
    assert (address.host, address.port, address.name) == (None, None, None)
    assert address.path == path
    assert (address.bootstrap, address.demanded) == (bootstrap, demanded)
    assert at(address.url) == address


def test_inproc_has_a_name() -> None:
    address = at("l5+inproc://a%20b/c")
    assert (address.name, address.host, address.path) == ("a b/c", None, None)
    assert (address.bootstrap, address.demanded) == ("inproc", "inproc")
    assert at(address.url) == address


def test_a_plugin_keeps_authority_and_path() -> None:
    address = at("l5+custom://h:9/a%20b/c?x-key=1")
    assert (address.host, address.port, address.path) == ("h", 9, "/a b/c")
    assert address.url == "l5+custom://h:9/a%20b/c?x-key=1"


def test_options_are_kept_as_text() -> None:
    address = at("l5://h:1?transports=shm,tcp&ring=1MiB&x-note=a%26b%3D%2B+")
    assert address.options == {"transports": "shm,tcp", "ring": "1MiB", "x-note": "a&b=++"}
    assert at(str(address)) == address


def test_redacted_hides_what_only_a_plugin_understands() -> None:
    address = at("l5://h:1?ring=1MiB&x-key=secret")
    assert address.redacted == "l5://h:1?ring=1MiB&x-key=***"
    assert "secret" in address.url


def test_port_zero_is_for_listening() -> None:
    assert at("l5://127.0.0.1:0", allow_port_zero=True).port == 0
    with pytest.raises(AddressError, match="listening only"):
        at("l5://127.0.0.1:0")


def test_location_is_what_a_message_shows() -> None:
    assert at("l5://[::1]:1?ring=1MiB").location == "[::1]:1"
    assert at("l5+unix://@x").location == "@x"
    assert at("l5+unix:///x").location == "/x"
    assert at("l5+inproc://x").location == "x"


def test_an_address_is_a_value() -> None:
    one, two = at("l5://h:1?ring=1MiB"), at("l5://H:1/?ring=1MiB")
    assert one == two and hash(one) == hash(two)
    assert pickle.loads(pickle.dumps(one)) == one
    assert attrs.evolve(one, port=2).url == "l5://h:2?ring=1MiB"
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        one.port = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        ("", "no scheme"),
        ("h:1", "no scheme"),
        ("l5:h", "no scheme"),
        ("l5+unix:/run/x", "no scheme"),
        ("://h", "no scheme"),
        ("l+5!://h", "no scheme"),
        ("http://h", "unknown scheme 'http'; known are l5://, l5[+]custom://"),
        ("l5+ucx://h", "unknown scheme 'l5\\+ucx'"),
        ("l5://", "host is missing"),
        ("l5://:1", "host is missing"),
        ("l5://h:", "port is a number"),
        ("l5://h:x", "port is a number"),
        ("l5://h:-1", "port is a number"),
        ("l5://h:65536", "port is a number"),
        ("l5://h:000001", "port is a number"),
        ("l5://h:\u0661", "port is a number"),
        ("l5://::1", "in brackets"),
        ("l5://::1:7471", "in brackets"),
        ("l5://[::1", "brackets"),
        ("l5://[::1]7471", "brackets"),
        ("l5://[::g]:1", "not an IPv6 address"),
        ("l5://[1.2.3.4]:1", "not an IPv6 address"),
        ("l5://[fe80::1%]:1", "zone"),
        ("l5://[fe80::1%a b]:1", "space"),
        ("l5://[fe80::1%e!]:1", "zone"),
        ("l5://1.2.3:1", "not an IPv4 address"),
        ("l5://1.2.3.256:1", "not an IPv4 address"),
        ("l5://a!b:1", "not the name of a host"),
        ("l5://a%41:1", "not the name of a host"),
        ("l5://" + "a" * 254, "not the name of a host"),
        ("l5://h:1/db", "a path, /db, means nothing"),
        ("l5+unix://run/x", "three slashes, l5\\+unix:///run/db.sock"),
        ("l5+unix://", "three slashes"),
        ("l5+unix://%40x", "three slashes"),
        ("l5+unix:///", "name of the socket is missing"),
        ("l5+unix:///run/", "name of the socket is missing"),
        ("l5+unix://@", "name of the socket is missing"),
        ("l5+unix:///a%00b", "%00"),
        ("l5+unix:///a%zz", "two hexadecimal digits"),
        ("l5+unix:///a%4", "two hexadecimal digits"),
        ("l5+unix:///" + "a" * 107, "at most 107 bytes, this one has 108"),
        ("l5+unix:///" + "\u00e9" * 54, "at most 107 bytes, this one has 109"),
        ("l5+inproc://", "name is missing"),
        ("l5+custom://", "host is missing"),
        ("l5://user:hunter2@h:1", "credentials.*token="),
        ("l5://user:hunt/er2@h:1", "credentials.*token="),
        ("l5+custom://user:hunter2@h:1", "credentials.*token="),
        ("l5+shm://user:hunter2@h:1", "credentials.*token="),
        ("l5://h:1?token=hunter2", "keyword token="),
        ("l5://h:1?insecure=1", "keyword insecure="),
        ("l5://h:1?allow_uids=0", "keyword allow_uids="),
        ("l5://h:1?rings=1MiB", "unknown option 'rings'; known are .*ring, "),
        ("l5://h:1?ring", "no value"),
        ("l5://h:1?ring=1&ring=2", "given twice"),
        ("l5://h:1?=2", "unknown option ''"),
        ("l5://h:1?x-a=%0A", "cannot be printed"),
        ("l5://h:1?x-a=%FF", "cannot be printed"),
        ("l5://h:1#part", "fragment"),
        ("l5://h:1 ", "space"),
        ("l5://h:1\n", "space or a control character"),
        ("l5://h\u2003:1", "space"),
        ("l5+unix:///\ud800", "control character"),
        ("l5://h?x-a=" + "a" * URL_CHARS_MAX, "longer than 2048"),
        ("l5s://h:1?transports=rdma", "shared memory only"),
    ],
)
def test_what_is_wrong_is_said(url: str, advice: str) -> None:
    with pytest.raises(AddressError, match=advice) as caught:
        at(url)
    assert "hunter2" not in str(caught.value) and "er2@" not in str(caught.value)
    assert len(str(caught.value)) < 600


def test_a_url_is_text() -> None:
    with pytest.raises(AddressError, match="text, not bytes"):
        at(b"l5://h:1")  # type: ignore[arg-type]


def test_paths_of_the_longest_allowed_size() -> None:
    assert at("l5+unix:///" + "a" * 106).path == "/" + "a" * 106
    assert at("l5+unix://@" + "a" * 106).path == "@" + "a" * 106


def test_a_url_of_the_longest_allowed_size() -> None:
    url = "l5+custom://h/".ljust(URL_CHARS_MAX, "a")
    assert at(url).url == url
    with pytest.raises(AddressError, match="longer than"):
        at(url + "a")


def test_no_scheme_is_known_when_nothing_is_installed() -> None:
    with pytest.raises(AddressError, match="installed"):
        parse("l5://h:1", frozenset())


def test_tls_with_rdma_among_others_is_no_demand() -> None:
    assert at("l5s://h:1?transports=shm,rdma").tls


# Round trips and fuzz.

hosts = st.one_of(
    st.from_regex(r"[a-z][a-z0-9-]{0,20}(\.[a-z][a-z0-9-]{0,10}){0,3}", fullmatch=True),
    st.ip_addresses(v=4).map(str),
    st.ip_addresses(v=6).map(str),
    st.tuples(st.ip_addresses(v=6).map(str), st.from_regex(r"[a-z0-9]{1,8}", fullmatch=True)).map(
        "%".join
    ),
)
file_names = st.binary(min_size=1, max_size=100).map(
    lambda raw: raw.replace(b"\0", b"0").decode("utf-8", "surrogateescape")
)
texts = st.text(max_size=12).filter(str.isprintable)
options = st.fixed_dictionaries(
    {},
    optional={
        "ring": st.sampled_from(["64KiB", "1MiB"]),
        "transports": st.sampled_from(["shm", "shm,tcp"]),
        "x-any": texts,
        "x-": texts,
    },
)
ports = st.integers(0, 65535)
addresses = st.one_of(
    st.builds(
        Address,
        scheme=st.sampled_from(["l5", "l5+tcp", "l5+shm", "l5+rdma", "l5+custom"]),
        host=hosts,
        port=ports,
        options=options,
    ),
    st.builds(Address, scheme=st.just("l5s"), tls=st.just(True), host=hosts, port=ports),
    st.builds(
        Address,
        scheme=st.sampled_from(["l5+unix", "l5+shm"]),
        path=st.one_of(
            file_names.map(lambda name: "/" + name.rstrip("/") + "x"),
            file_names.map(lambda name: "@" + name),
        ),
        options=options,
    ),
    st.builds(
        Address,
        scheme=st.just("l5+custom"),
        host=hosts,
        port=st.none() | ports,
        path=st.none() | file_names.map(lambda name: "/" + name),
        options=options,
    ),
    st.builds(Address, scheme=st.just("l5+inproc"), name=file_names, options=options),
)


@given(addresses)
def test_url_and_parse_are_inverse(address: Address) -> None:
    assert parse(address.url, KNOWN, allow_port_zero=True) == address


@given(addresses)
def test_every_url_is_printable_and_ascii_but_for_host_names(address: Address) -> None:
    assert address.url.isascii() and address.url.isprintable() and " " not in address.url


PIECES = st.sampled_from(
    [
        *sorted(KNOWN),
        *("://", "/", "@", ":", "[", "]", "%", "%25", "%2f", "%00", "?", "&", "=", "#"),
        *("ring", "token", "x-", "1MiB", "::1", "1.2.3.4", "h", ".", "0", "\u00e9", " ", "\udc80"),
    ]
)


@given(st.lists(PIECES | st.text(max_size=3), max_size=14).map("".join), st.booleans())
def test_fuzz_raises_only_address_errors_and_what_passes_round_trips(url: str, zero: bool) -> None:
    try:
        address = parse(url, KNOWN, allow_port_zero=zero)
    except AddressError as error:
        assert str(error)
        return
    assert parse(address.url, KNOWN, allow_port_zero=zero) == address
    assert parse(address.redacted, KNOWN, allow_port_zero=zero).location == address.location


@given(
    st.sampled_from(sorted(KNOWN)),
    st.text(string.printable + "\u00e9\u2028\ud800", max_size=30),
)
def test_fuzz_after_a_good_scheme(scheme: str, rest: str) -> None:
    try:
        address = parse(f"{scheme}://{rest}", KNOWN)
    except AddressError:
        return
    assert parse(address.url, KNOWN) == address


@given(st.text(st.characters(categories=["L", "N"]), min_size=4, max_size=8), st.integers(0, 3))
def test_a_secret_in_a_url_is_never_shown(secret: str, place: int) -> None:
    secret = "S3" + secret
    url = [
        f"l5://user:{secret}@h:1",
        f"l5://{secret}@h:1",
        f"l5://h:1?token={secret}",
        f"l5://h:1?ring=1MiB&TOKEN={secret}",
    ][place]
    with pytest.raises(AddressError) as caught:
        at(url)
    assert secret not in str(caught.value)
