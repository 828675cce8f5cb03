"""The registry: lazy, cached, and one bad plugin harms only itself."""

import logging
import sys
import threading
import types
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points

import pytest

from l5 import _registry
from l5._errors import TransportUnavailable
from l5._registry import GROUP, Registry
from l5.abc import Probe, Transport

MODULE = "l5_test_plugin"


class Good(Transport):
    name = "good"
    made = 0

    def __init__(self) -> None:
        type(self).made += 1

    def probe(self) -> Probe:
        return Probe(usable=True)


class Raises(Good):
    name = "raises"

    def __init__(self) -> None:
        raise OSError("no such device")


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A module that plugins are loaded from."""
    module = types.ModuleType(MODULE)
    monkeypatch.setitem(sys.modules, MODULE, module)
    vars(module).update(Good=Good, Raises=Raises, nothing=None)
    monkeypatch.setattr(Good, "made", 0)
    return module


class Distribution:
    """As much of a distribution as an entry point tells about."""

    def __init__(self, name: str) -> None:
        self.name = name


def entry(name: str, target: str = f"{MODULE}:Good", package: str | None = None) -> EntryPoint:
    point = EntryPoint(name, target, GROUP)
    if package:
        vars(point).update(dist=Distribution(package))
    return point


def registry_of(*entries: EntryPoint) -> Registry:
    return Registry(lambda: entries)


@pytest.mark.usefixtures("plugin")
def test_a_transport_is_made_once_and_when_asked_for() -> None:
    registry = registry_of(entry("good"))
    assert registry.names() == ["good"]
    assert Good.made == 0
    assert registry.get("good") is registry.get("good")
    assert Good.made == 1


def test_nothing_is_looked_for_before_it_is_needed() -> None:
    looked: list[int] = []

    def find() -> Iterable[EntryPoint]:
        looked.append(1)
        return [entry("tcp"), entry("other")]

    registry = Registry(find)
    assert looked == []
    assert registry.names() == ["other", "tcp"]
    assert registry.schemes() == {"l5", "l5s", "l5+tcp", "l5+other"}
    assert looked == [1]


def test_schemes_without_tcp() -> None:
    assert registry_of(entry("unix")).schemes() == {"l5+unix"}
    assert registry_of().schemes() == frozenset()


def test_an_unknown_transport_lists_the_known() -> None:
    with pytest.raises(TransportUnavailable, match="known are a, b") as caught:
        registry_of(entry("b"), entry("a")).get("c")
    assert caught.value.transport == "c"
    with pytest.raises(TransportUnavailable, match="is the package l5net installed"):
        registry_of().get("c")


@pytest.mark.usefixtures("plugin")
def test_two_of_one_name_names_both_and_spares_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    registry = registry_of(
        entry("twice", package="second"), entry("good"), entry("twice", package="first")
    )
    with pytest.raises(
        TransportUnavailable, match=r"first \(.*\) and second \(.*uninstall all but"
    ):
        registry.get("twice")
    assert registry.get("good").name == "good"
    assert registry.names() == ["good", "twice"]
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize(
    ("name", "target", "reason"),
    [
        ("gone", "l5_no_such_module:X", "acme .*does not load: ModuleNotFoundError"),
        ("absent", f"{MODULE}:Absent", "does not load: AttributeError"),
        ("raises", f"{MODULE}:Raises", "does not load: OSError: no such device"),
        ("none", f"{MODULE}:nothing", "does not load: TypeError"),
        ("abstract", "l5.abc:Transport", "does not load: TypeError"),
        ("other", f"{MODULE}:Good", "calls itself 'good'"),
    ],
)
def test_a_broken_plugin_is_unusable_with_its_reason(
    name: str, target: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    registry = registry_of(entry(name, target, "acme"), entry("good"))
    for _ in range(2):
        with pytest.raises(TransportUnavailable, match=reason):
            registry.get(name)
    assert len(caplog.records) == 1, "it is said once"
    assert name in registry.names()
    assert registry.get("good").probe().usable


@pytest.mark.usefixtures("plugin")
def test_the_cause_of_a_broken_plugin_is_kept_and_each_error_is_new() -> None:
    registry = registry_of(entry("raises", f"{MODULE}:Raises"))
    errors: list[TransportUnavailable] = []
    for _ in range(2):
        with pytest.raises(TransportUnavailable) as caught:
            registry.get("raises")
        errors.append(caught.value)
    assert errors[0] is not errors[1]
    assert isinstance(errors[0].__cause__, OSError)


@pytest.mark.usefixtures("plugin")
def test_a_transport_for_tests_is_there_for_a_block() -> None:
    class Fake(Good):
        pass

    registry = registry_of(entry("good"))
    real = registry.get("good")
    with registry.register_for_tests("good", Fake) as fake:
        assert registry.get("good") is fake
        assert isinstance(fake, Fake)
        with registry.register_for_tests("good", Good) as inner:
            assert registry.get("good") is inner
        assert registry.get("good") is fake
    assert registry.get("good") is real
    with pytest.raises(RuntimeError), registry.register_for_tests("new", Fake):
        assert registry.names() == ["good", "new"]
        assert "l5+new" in registry.schemes()
        raise RuntimeError
    assert registry.names() == ["good"]


def test_threads_that_ask_at_once_get_one_object(plugin: types.ModuleType) -> None:
    start = threading.Barrier(8)
    release = threading.Event()

    class Slow(Good):
        name = "slow"

        def __init__(self) -> None:
            super().__init__()
            release.wait(60)

    vars(plugin)["Slow"] = Slow
    registry = registry_of(entry("slow", f"{MODULE}:Slow"))
    got: list[Transport] = []

    def ask() -> None:
        start.wait(60)
        got.append(registry.get("slow"))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    release.set()
    for thread in threads:
        thread.join(60)
    assert len(got) == 8 and len(set(map(id, got))) == 1


def test_the_module_serves_the_installed_transports() -> None:
    declared = {point.name for point in entry_points(group=GROUP)}
    if not declared:
        pytest.fail("the package is not installed: run pip install -e .")
    assert set(_registry.names()) == declared | set(_registry.OWN)
    assert {"tcp", "unix", "shm", "inproc"} <= declared
    assert {"l5", "l5s", "l5+unix", "l5+shm"} <= _registry.schemes()
