"""Host identity: equal on one host, different elsewhere, and silent about itself."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from l5 import _host
from l5._hello import HostProof
from l5._host import NONCE_BYTES, identity, memfd_available, prove, same_host

needs_identity = pytest.mark.skipif(
    identity() is None, reason="this system has no boot id and network namespace"
)


@needs_identity
def test_a_process_is_on_its_own_host() -> None:
    assert same_host(prove())
    assert same_host(prove(b"n" * NONCE_BYTES))


@needs_identity
def test_another_process_is_on_this_host() -> None:
    code = "from l5._host import prove; p = prove(); print(p.nonce.hex(), p.tag.hex())"
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, text=True, timeout=240
    ).stdout
    nonce, tag = map(bytes.fromhex, output.split())
    assert same_host(HostProof(nonce=nonce, tag=tag))


def test_proofs_differ_each_time_and_have_the_wires_sizes() -> None:
    one, two = prove(), prove()
    assert one.nonce != two.nonce and one.tag != two.tag
    assert (len(one.nonce), len(one.tag)) == (16, 32)


@given(st.binary(min_size=16, max_size=16), st.binary(min_size=32, max_size=32))
def test_a_made_up_proof_fails(nonce: bytes, tag: bytes) -> None:
    assert not same_host(HostProof(nonce=nonce, tag=tag))


@needs_identity
@given(st.integers(0, 31), st.integers(1, 255))
def test_one_changed_byte_fails(index: int, change: int) -> None:
    proof = prove()
    tag = bytearray(proof.tag)
    tag[index] ^= change
    assert not same_host(HostProof(nonce=proof.nonce, tag=bytes(tag)))
    nonce = bytearray(proof.nonce)
    nonce[index % 16] ^= change
    assert not same_host(HostProof(nonce=bytes(nonce), tag=proof.tag))


@needs_identity
def test_the_identity_is_not_in_the_proof() -> None:
    proof = prove()
    boot_id = _host.BOOT_ID.read_bytes().strip()
    assert boot_id not in proof.nonce + proof.tag
    assert identity() not in (proof.tag, proof.nonce)


@needs_identity
def test_another_boot_or_namespace_is_another_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proof = prove()
    other_boot = tmp_path / "boot_id"
    other_boot.write_text("00000000-0000-4000-8000-000000000000\n")
    with monkeypatch.context() as patch:
        patch.setattr(_host, "BOOT_ID", other_boot)
        assert not same_host(proof)
        assert same_host(prove())
    with monkeypatch.context() as patch:
        patch.setattr(_host, "NETWORK_NAMESPACE", other_boot)
        assert not same_host(proof)
    assert same_host(proof)


@pytest.mark.parametrize("missing", ["BOOT_ID", "NETWORK_NAMESPACE"])
def test_without_an_identity_nothing_matches(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proof = prove()
    monkeypatch.setattr(_host, missing, tmp_path / "absent")
    assert identity() is None
    assert not same_host(proof)
    own = prove()
    assert not same_host(own)
    assert (len(own.nonce), len(own.tag)) == (16, 32)


def test_an_empty_boot_id_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "boot_id").write_text("\n")
    monkeypatch.setattr(_host, "BOOT_ID", tmp_path / "boot_id")
    assert identity() is None


def test_memfd_is_probed_without_leaving_anything() -> None:
    usable, reason = memfd_available()
    assert usable == (not reason)
    assert usable == hasattr(os, "memfd_create")


def test_a_system_without_memfd_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create", raising=False)
    usable, reason = memfd_available()
    assert not usable and "no memfd_create" in reason


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="this system has no memfd_create")
def test_a_refused_memfd_or_seal_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.memfd_create

    def refuse(name: str, flags: int = 0) -> int:
        raise PermissionError(1, "Operation not permitted")

    with monkeypatch.context() as patch:
        patch.setattr(os, "memfd_create", refuse)
        assert memfd_available() == (False, "memfd_create failed: Operation not permitted")
    # A memfd made without MFD_ALLOW_SEALING cannot be sealed.
    monkeypatch.setattr(os, "memfd_create", lambda name, flags=0: real(name))
    usable, reason = memfd_available()
    assert not usable and "cannot be sealed" in reason


@pytest.mark.parametrize(
    ("uid_map", "known"),
    [
        ("         0          0 4294967295\n", True),
        ("         0     100000      65536\n", False),
        ("         0       1000          1\n         1     100000 65536\n", False),
        ("", False),
        ("what", False),
        (None, False),
    ],
)
def test_nobody_is_somebody_only_where_all_are_mapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uid_map: str | None, known: bool
) -> None:
    path = tmp_path / "uid_map"
    if uid_map is not None:
        path.write_text(uid_map)
    monkeypatch.setattr(_host, "UID_MAP", path)
    monkeypatch.setattr(_host, "OVERFLOW_UID", tmp_path / "absent")
    assert _host.is_somebody(65534) is known
    assert _host.is_somebody(0) and _host.is_somebody(65533)


def test_the_overflow_uid_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in (("UID_MAP", "0 100000 65536\n"), ("OVERFLOW_UID", "1234\n")):
        (tmp_path / name).write_text(text)
        monkeypatch.setattr(_host, name, tmp_path / name)
    assert not _host.is_somebody(1234)
    assert _host.is_somebody(65534)
