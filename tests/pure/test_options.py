"""Options: defaults fit together, text and values mean the same, wrong ones are named."""

import math
import ssl
from typing import Any

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from l5._errors import AddressError
from l5._options import GIB, KIB, MIB, TOKEN_BYTES_MAX, ListenOptions, Options, check_query


def made(**keywords: Any) -> Options:
    return Options.from_mapping({}, keywords)


def test_defaults() -> None:
    options = Options()
    assert options == Options.from_mapping({}, {}) == Options.from_mapping({})
    assert options.transports is None and options.token is None and not options.strict
    assert (options.ring_bytes, options.segment_bytes) == (MIB, 128 * KIB)
    assert (options.max_message_bytes, options.reassembly_bytes) == (64 * MIB, 128 * MIB)
    assert (options.data_window_bytes, options.credit_bytes) == (4 * MIB, MIB)
    assert (options.in_flight_max, options.spin_us) == (256, 50)
    # Of the class: the tests' own processes have more patience.
    declared = attrs.fields(Options)
    assert (declared.hello_timeout.default, declared.connect_timeout.default) == (5.0, 10.0)


def test_listen_defaults() -> None:
    options = ListenOptions()
    assert options.allow_uids is None and options.allow is None and not options.insecure
    assert (options.connections_max, options.hellos_max, options.grace) == (1024, 64, 5.0)
    assert (options.total_reassembly_bytes, options.backlog) == (GIB, 128)


@pytest.mark.parametrize(
    ("given_options", "field", "value"),
    [
        ({"ring": 64 * KIB}, "segment_bytes", 16 * KIB),
        ({"ring": 256 * MIB, "segment": 64 * MIB}, "credit_bytes", 64 * MIB),
        ({"ring": 256 * MIB, "segment": 64 * MIB}, "data_window_bytes", 64 * MIB),
        ({"max_message": GIB}, "reassembly_bytes", GIB),
        ({"max_message": KIB}, "reassembly_bytes", 128 * MIB),
    ],
)
def test_defaults_follow_what_they_depend_on(
    given_options: dict[str, Any], field: str, value: int
) -> None:
    assert getattr(made(**given_options), field) == value


def test_total_reassembly_follows_the_connection_budget() -> None:
    options = ListenOptions.from_mapping({"reassembly": "4GiB"}, {})
    assert options.total_reassembly_bytes == 4 * GIB


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("1048576", MIB),
        ("1MiB", MIB),
        ("1mib", MIB),
        ("1M", MIB),
        ("1024KiB", MIB),
        ("1048576B", MIB),
        ("64k", 64 * KIB),
    ],
)
def test_sizes(text: str, size_bytes: int) -> None:
    assert Options.from_mapping({"ring": text}).ring_bytes == size_bytes
    assert made(ring_bytes=size_bytes).ring_bytes == size_bytes


@pytest.mark.parametrize(
    ("text", "seconds"), [("5", 5.0), ("2.5", 2.5), ("2.5s", 2.5), ("250ms", 0.25), ("5.", 5.0)]
)
def test_seconds(text: str, seconds: float) -> None:
    assert Options.from_mapping({"hello_timeout": text}).hello_timeout == seconds


@pytest.mark.parametrize("text", ["true", "1", "yes", "On"])
def test_true(text: str) -> None:
    assert Options.from_mapping({"strict": text}).strict is True


@pytest.mark.parametrize("text", ["false", "0", "no", "OFF"])
def test_false(text: str) -> None:
    assert Options.from_mapping({"strict": text}, {}).strict is False


def test_transports_as_text_and_as_sequence() -> None:
    assert Options.from_mapping({"transports": "shm,tcp"}).transports == ("shm", "tcp")
    assert made(transports=["shm", "my-net_2.x"]).transports == ("shm", "my-net_2.x")
    assert made(transports=iter(("unix",))).transports == ("unix",)


def test_keywords_win_over_the_query_whatever_they_are_called() -> None:
    options = Options.from_mapping({"ring": "1MiB", "spin_us": "7"}, {"ring_bytes": 2 * MIB})
    assert (options.ring_bytes, options.spin_us) == (2 * MIB, 7)
    assert Options.from_mapping({"ring_bytes": "2MiB"}, {"ring": "4MiB"}).ring_bytes == 4 * MIB


def test_none_is_not_given() -> None:
    assert Options.from_mapping({"ring": "2MiB"}, {"ring": None, "token": None}) == made(
        ring="2MiB"
    )


def test_what_belongs_to_a_transport_is_passed_over() -> None:
    assert Options.from_mapping({"x-depth": "3"}) == Options()


def test_a_token_is_hidden_and_may_be_text() -> None:
    options = made(token="p\u00e4ss")
    assert options.token == "p\u00e4ss".encode()
    assert "token" not in repr(options) and "p\\xc3" not in repr(options)


def test_a_tls_context_is_kept() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    assert made(ssl_context=context).ssl_context is context


def test_options_are_values() -> None:
    assert hash(made(transports="shm")) == hash(made(transports=["shm"]))
    changed = attrs.evolve(made(ring="64KiB"), spin_us=0)
    assert (changed.ring_bytes, changed.segment_bytes, changed.spin_us) == (64 * KIB, 16 * KIB, 0)
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        changed.spin_us = 3  # type: ignore[misc]


def test_direct_construction_checks_too() -> None:
    assert Options(ring_bytes="2MiB").ring_bytes == 2 * MIB
    with pytest.raises(AddressError, match="'spin_us': -1"):
        Options(spin_us=-1)


WRONG: list[tuple[str, Any, str]] = [
    ("ring", "65KiB", "power of two"),
    ("ring", 3 * MIB, "power of two"),
    ("ring", 32 * KIB, "from 64 KiB to 256 MiB"),
    ("ring", 512 * MIB, "from 64 KiB to 256 MiB"),
    ("ring", "", "a size"),
    ("ring", "MiB", "a size"),
    ("ring", "1 MiB", "a size"),
    ("ring", "1TiB", "a size"),
    ("ring", "1MB", "a size"),
    ("ring", "+1048576", "a size"),
    ("ring", "1_048_576", "a size"),
    ("ring", "\u0661MiB", "a size"),
    ("ring", "9" * 30, "a size"),
    ("ring", 1048576.0, "a size"),
    ("ring", True, "a size"),
    ("max_message", 2 * GIB, "from 1 KiB to 1 GiB"),
    ("max_message", 0, "from 1 KiB"),
    ("segment", "1MiB", "at most a quarter of ring, which is 256 KiB"),
    ("segment", 1, "from 4 KiB"),
    ("credit", "64KiB", "at least segment, which is 128 KiB"),
    ("data_window", "64KiB", "at least segment"),
    ("reassembly", "32MiB", "at least max_message, which is 64 MiB"),
    ("in_flight_max", 0, "from 1 to 65536"),
    ("in_flight_max", "many", "whole number"),
    ("in_flight_max", True, "whole number"),
    ("in_flight_max", 1.5, "whole number"),
    ("spin_us", 10_001, "from 0 to 10000"),
    ("spin_us", "-1", "from 0 to 10000"),
    ("heartbeat_ms", -1, "from 0"),
    ("strict", "maybe", "true or false"),
    ("strict", 1, "true or false"),
    ("hello_timeout", 0, "seconds from 0.001"),
    ("hello_timeout", math.nan, "seconds"),
    ("hello_timeout", math.inf, "seconds"),
    ("hello_timeout", "inf", "seconds"),
    ("hello_timeout", "1e3", "seconds"),
    ("hello_timeout", ".5", "seconds"),
    ("hello_timeout", "5m", "seconds"),
    ("hello_timeout", True, "seconds"),
    ("connect_timeout", -1.0, "seconds"),
    ("transports", "", "names of transports"),
    ("transports", (), "names of transports"),
    ("transports", "shm,,tcp", "names of transports"),
    ("transports", "shm,shm", "each once"),
    ("transports", "SHM", "names of transports"),
    ("transports", [1], "names of transports"),
    ("transports", 7, "names of transports"),
    ("transports", [f"t{i}" for i in range(17)], "names of transports"),
]


@pytest.mark.parametrize(("name", "value", "allowed"), WRONG)
def test_a_wrong_value_is_named_with_what_is_allowed(name: str, value: Any, allowed: str) -> None:
    with pytest.raises(AddressError, match=allowed) as caught:
        made(**{name: value})
    assert f"option '{name}'" in str(caught.value)
    if isinstance(value, str):
        with pytest.raises(AddressError, match=allowed):
            Options.from_mapping({name: value})


@pytest.mark.parametrize("token", [b"", "", b"x" * (TOKEN_BYTES_MAX + 1), 7])
def test_a_wrong_token_is_not_shown(token: Any) -> None:
    with pytest.raises(AddressError, match=r"option 'token': expected .* 1 to 1024") as caught:
        made(token=token)
    assert "xx" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("allow_uids", [-1], "user ids"),
        ("allow_uids", [], "user ids"),
        ("allow_uids", [True], "user ids"),
        ("allow_uids", ["root"], "user ids"),
        ("allow_uids", 0, "user ids"),
        ("allow_uids", [1 << 32], "user ids"),
        ("allow", 3, "a function"),
        ("insecure", "perhaps", "true or false"),
        ("connections_max", 0, "from 1"),
        ("grace", -1, "seconds from 0"),
        ("hellos_max", 0, "from 1"),
        ("total_reassembly", "64MiB", "at least reassembly, which is 128 MiB"),
        ("backlog", 0, "from 1"),
        ("ring", 3 * MIB, "power of two"),
    ],
)
def test_a_listener_checks_its_own_options_and_the_common_ones(
    name: str, value: Any, allowed: str
) -> None:
    with pytest.raises(AddressError, match=allowed) as caught:
        ListenOptions.from_mapping({}, {name: value})
    assert f"option '{name}'" in str(caught.value)


def test_listen_options() -> None:
    def allow(peer: object) -> bool:
        return True

    options = ListenOptions.from_mapping(
        {"backlog": "5", "grace": "0"}, {"allow_uids": {0, 7}, "allow": allow, "insecure": True}
    )
    assert (options.backlog, options.grace, options.insecure) == (5, 0.0, True)
    assert options.allow_uids == frozenset({0, 7}) and options.allow is allow


@pytest.mark.parametrize("name", ["token", "ssl_context", "allow", "allow_uids", "insecure"])
def test_what_decides_over_access_is_a_keyword_only(name: str) -> None:
    for cls in (Options, ListenOptions):
        with pytest.raises(AddressError, match=f"keyword {name}="):
            cls.from_mapping({name: "1"})
    with pytest.raises(AddressError, match=f"keyword {name}="):
        check_query([name])


def test_unknown_options_list_the_known_ones() -> None:
    with pytest.raises(AddressError, match=r"unknown option 'rnig'; known are .*ring, segment"):
        Options.from_mapping({"rnig": "1MiB"})
    with pytest.raises(AddressError, match=r"unknown option 'rnig'; known are .*token"):
        made(rnig=1)
    with pytest.raises(AddressError, match=r"unknown option 'a{80}\.{3}'"):
        check_query(["a" * 1000])


def test_a_listeners_option_is_unknown_to_a_connection_but_passes_the_url_check() -> None:
    check_query(["backlog", "ring", "ring_bytes", "x-any"])
    with pytest.raises(AddressError, match="unknown option 'backlog'"):
        Options.from_mapping({"backlog": "5"})


def test_two_names_of_one_option_at_once() -> None:
    with pytest.raises(AddressError, match="given twice"):
        Options.from_mapping({"ring": "1MiB", "ring_bytes": "1MiB"})
    with pytest.raises(AddressError, match="given twice"):
        made(ring=1, ring_bytes=1)


def test_bounds_that_are_no_round_number_are_told_in_bytes() -> None:
    with pytest.raises(AddressError, match="at least segment, which is 5000 bytes"):
        made(segment=5000, credit=4999)


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("ring", 64 * KIB, 256 * MIB),
        ("max_message", KIB, GIB),
        ("in_flight_max", 1, 65536),
        ("spin_us", 0, 10_000),
        ("heartbeat_ms", 0, 60_000),
        ("connections_max", 1, 1_000_000),
        ("hellos_max", 1, 65536),
        ("backlog", 1, 65535),
    ],
)
def test_each_range_ends_where_it_says(name: str, low: int, high: int) -> None:
    for value in (low, high):
        assert ListenOptions.from_mapping({name: str(value)}) != ListenOptions()
    for value in (low - 1, high + 1):
        with pytest.raises(AddressError, match=f"option '{name}'"):
            ListenOptions.from_mapping({}, {name: value})


def test_the_smallest_segments() -> None:
    assert made(segment=4 * KIB, credit=4 * KIB, data_window=4 * KIB).segment_bytes == 4 * KIB
    for name in ("segment", "credit", "data_window"):
        with pytest.raises(AddressError, match=f"option '{name}'.*from 4 KiB"):
            made(**{name: 4 * KIB - 1})


def test_long_values_are_cut_in_messages() -> None:
    with pytest.raises(AddressError) as caught:
        made(spin_us="9" * 5000)
    assert len(str(caught.value)) < 300


NAMES = sorted({name for name, _, _ in WRONG})
anything = st.one_of(
    st.text(max_size=8),
    st.integers(),
    st.floats(),
    st.booleans(),
    st.binary(max_size=4),
    st.lists(st.integers() | st.text(max_size=3), max_size=3),
    st.builds(
        str.__add__, st.integers(0, 10**12).map(str), st.sampled_from(["KiB", "ms", "", "G"])
    ),
)


# Making dictionaries of so many kinds of values takes its time on a busy machine.
unhurried = settings(suppress_health_check=[HealthCheck.too_slow])


@unhurried
@given(st.dictionaries(st.sampled_from([*NAMES, "token", "grace", "allow_uids"]), anything))
def test_fuzz_gives_consistent_options_or_an_address_error(keywords: dict[str, Any]) -> None:
    try:
        options = ListenOptions.from_mapping({}, keywords)
    except AddressError:
        return
    assert options.segment_bytes * 4 <= options.ring_bytes
    assert options.ring_bytes.bit_count() == 1
    assert options.segment_bytes <= min(options.credit_bytes, options.data_window_bytes)
    assert options.max_message_bytes <= options.reassembly_bytes
    assert options.reassembly_bytes <= options.total_reassembly_bytes


@unhurried
@given(st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=5), st.text(max_size=8)))
def test_fuzz_of_queries(query: dict[str, str]) -> None:
    try:
        Options.from_mapping(query)
    except AddressError as error:
        assert str(error)
