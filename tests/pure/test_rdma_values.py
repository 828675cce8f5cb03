"""What two ends of a queue pair agree on, the choice of a GID, and errors that advise."""

import copy
import errno
import pickle
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from l5.rdma import _constants, verbs
from l5.rdma.verbs import (
    GID_INFINIBAND,
    GID_ROCE_V1,
    GID_ROCE_V2,
    LINK_INFINIBAND,
    MTU_BYTES,
    ConnectOptions,
    Gid,
    QueuePairAddress,
    agree,
    choose_gid,
    gid_of,
    to_host,
    to_network,
)

GID = gid_of("192.0.2.7")
TABLE = (
    Gid(0, gid_of("fe80::5054:ff:fe12:3456"), GID_ROCE_V1),
    Gid(1, gid_of("fe80::5054:ff:fe12:3456"), GID_ROCE_V2),
    Gid(2, GID, GID_ROCE_V1),
    Gid(3, GID, GID_ROCE_V2),
    Gid(5, gid_of("2001:db8::9"), GID_ROCE_V2),
)

addresses = st.builds(
    QueuePairAddress,
    number=st.integers(2, (1 << 24) - 2),
    psn=st.integers(0, (1 << 24) - 1),
    gid=st.binary(min_size=16, max_size=16).filter(lambda gid: any(gid) and gid[0] != 0xFF),
    lid=st.integers(0, 65535),
    active_mtu=st.sampled_from(sorted(MTU_BYTES)),
    rd_atomic=st.integers(0, 255),
    init_rd_atomic=st.integers(0, 255),
)


@given(addresses, addresses)
def test_what_both_ends_compute_fits_together(
    mine: QueuePairAddress, theirs: QueuePairAddress
) -> None:
    here, there = agree(mine, theirs), agree(theirs, mine)
    assert here.mtu == there.mtu == min(mine.active_mtu, theirs.active_mtu)
    # As many reads outstanding as the other end answers; no less, where both can do 16.
    assert here.rd_atomic == there.dest_rd_atomic <= min(16, theirs.rd_atomic)
    assert there.rd_atomic == here.dest_rd_atomic <= min(16, mine.rd_atomic)
    assert here.rd_atomic == min(16, mine.init_rd_atomic, theirs.rd_atomic)
    assert (here.timeout, here.retries, here.hop_limit) == (14, 6, 64)


def test_retries_for_ever_cannot_be_asked_for() -> None:
    with pytest.raises(ValueError, match="retries"):
        ConnectOptions(mtu=5, retries=7)
    with pytest.raises(ValueError, match="timeout"):
        ConnectOptions(mtu=5, timeout=0)
    with pytest.raises(ValueError, match="mtu"):
        ConnectOptions(mtu=0)
    assert ConnectOptions(mtu=5, rnr_retries=7).rnr_retries == 7


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("number", 1 << 24),
        ("number", (1 << 24) - 1),
        ("number", 1),
        ("psn", -1),
        ("gid", b"short"),
        ("gid", bytes(17)),
        ("gid", bytes(16)),
        ("gid", b"\xff\x0e" + bytes(13) + b"\x01"),
        ("lid", 65536),
        ("active_mtu", 6),
        ("rd_atomic", 256),
    ],
)
def test_an_address_from_a_peer_is_checked(field: str, value: Any) -> None:
    good: dict[str, Any] = {
        "number": 17,
        "psn": 1,
        "gid": GID,
        "lid": 0,
        "active_mtu": 5,
        "rd_atomic": 16,
        "init_rd_atomic": 16,
    }
    QueuePairAddress(**good)
    with pytest.raises((ValueError, TypeError)):
        QueuePairAddress(**good | {field: value})


def test_gids_and_addresses() -> None:
    assert bytes(10) + b"\xff\xff" + bytes([192, 0, 2, 7]) == GID
    assert Gid(0, GID).address == "192.0.2.7"
    assert Gid(0, gid_of("2001:db8::9")).address == "2001:db8::9"
    assert gid_of("::ffff:192.0.2.7") == GID
    assert gid_of("fe80::1%eth0") == gid_of("fe80::1")


def test_the_gid_is_chosen_by_address_and_type_not_by_index() -> None:
    assert choose_gid(TABLE, "192.0.2.7").index == 3
    assert choose_gid(reversed(TABLE), "192.0.2.7").index == 3
    assert choose_gid(TABLE, "::ffff:192.0.2.7").index == 3
    assert choose_gid(TABLE, "2001:db8::9").index == 5


@pytest.mark.parametrize("address", ["127.0.0.1", "192.0.2.8", "::1"])
def test_no_gid_for_the_address(address: str) -> None:
    with pytest.raises(verbs.VerbsUnavailable, match=r"no RoCE v2 GID for .*192\.0\.2\.7") as no:
        choose_gid(TABLE, address)
    assert no.value.missing == "gid" and "rdma link" in no.value.advice


def test_infiniband_has_its_own_gid() -> None:
    port = Gid(0, bytes(range(16)), GID_INFINIBAND)
    empty = Gid(0, bytes(16), GID_INFINIBAND)
    assert choose_gid([empty, port], "192.0.2.7", link_layer=LINK_INFINIBAND) is port
    with pytest.raises(verbs.VerbsUnavailable, match="subnet manager"):
        choose_gid([empty], "192.0.2.7", link_layer=LINK_INFINIBAND)


@given(st.integers(0, (1 << 32) - 1))
def test_immediates_are_big_endian_on_the_wire(value: int) -> None:
    import sys

    assert to_host(to_network(value)) == value
    assert to_network(value).to_bytes(4, sys.byteorder) == value.to_bytes(4, "big")


@pytest.mark.parametrize(
    ("call", "code", "kind", "words"),
    [
        ("register memory", errno.ENOMEM, verbs.MemoryLockLimit, "LimitMEMLOCK"),
        ("register memory", errno.EFAULT, verbs.VerbsError, "writable"),
        ("connect a queue pair", errno.ENODATA, verbs.VerbsError, "choose the GID again"),
        ("connect a queue pair", errno.EINVAL, verbs.VerbsError, "MTU"),
        ("post", errno.ENOMEM, verbs.SendQueueFull, "poll"),
        ("post", errno.EINVAL, verbs.VerbsError, "inline"),
        ("close the queue", errno.EBUSY, verbs.ResourceBusy, "close first"),
        ("open the device", errno.EACCES, verbs.VerbsError, "uverbs"),
        ("do something new", errno.EIO, verbs.VerbsError, "Input/output error"),
    ],
)
def test_errors_say_what_to_do(
    call: str, code: int, kind: type[verbs.VerbsError], words: str
) -> None:
    error = verbs.verbs_error(call, code, size_bytes=5, depth=16)
    assert type(error) is kind and error.errno == code
    assert words in str(error) and str(error).startswith(f"cannot {call}")
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert (type(other), str(other), other.errno) == (kind, str(error), code)


def test_every_status_has_words() -> None:
    for name, value in vars(_constants).items():
        if name.endswith(("_ERROR", "_EXCEEDED", "_REQUEST")) and not name.startswith("QP_"):
            assert _constants.STATUS_TEXTS[value]
    done = verbs.Completion(1, 12, 0, 0, None, 5)
    assert not done.ok and "did not acknowledge" in done.text
    assert verbs.Completion(1, 21, 0, 0, None, 5).text == "status 21"


def test_values_cannot_be_changed() -> None:
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        agree(*[QueuePairAddress(17, 1, GID, 0, 5, 1, 1)] * 2).mtu = 1  # type: ignore[misc]
