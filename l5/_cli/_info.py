"""``l5 info``: every transport, usable or why not, and the machine as l5 sees it."""

from __future__ import annotations

import json
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any

import attrs
import typer
from rich.console import Console
from rich.table import Table

from l5 import _cpu, _registry, rdma
from l5._errors import TransportUnavailable
from l5._host import identity, memfd_available

_PACKAGES = ("l5net", "anyio", "trio", "uvloop", "cffi", "msgspec", "pyverbs")


def info(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show which transports can be used here, and why the others cannot."""
    facts = collect()
    if as_json:
        print(json.dumps(facts, indent=2, default=str))
    else:
        show(facts)


def collect(registry: _registry.Registry = _registry.registry) -> dict[str, Any]:
    """Gather what ``l5 info`` prints, as what JSON can hold."""
    return {
        "versions": _versions(),
        "system": _system(),
        "schemes": sorted(registry.schemes()),
        "transports": [_transport(registry, name) for name in registry.names()],
        "rdma": _rdma(),
    }


def _transport(registry: _registry.Registry, name: str) -> dict[str, Any]:
    try:
        probe = registry.get(name).probe()
        usable, reason, details = probe.usable, probe.reason, dict(probe.details)
    except TransportUnavailable as error:
        usable, reason, details = False, error.reason, {}
    except Exception as error:  # another package's code: it must not hide the other transports
        usable, reason, details = False, f"probing it raised {type(error).__name__}: {error}", {}
    return {"name": name, "usable": usable, "reason": reason, "details": details}


def _versions() -> dict[str, str | None]:
    versions: dict[str, str | None] = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = None
    return versions


def _system() -> dict[str, Any]:
    memfd, memfd_reason = memfd_available()
    return {
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "cpus_allowed": _cpu.allowed_cpus(),
        "cpu_quota": _cpu.cpu_quota(),
        "may_spin": _cpu.may_spin(),
        "memlock_bytes": _memlock_bytes(),
        "memfd": memfd,
        "memfd_reason": memfd_reason,
        "host_identity": identity() is not None,
    }


def _memlock_bytes() -> int | None:
    """Return how much memory this process may lock; None for any amount."""
    try:
        import resource
    except ImportError:
        return 0
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def _rdma() -> dict[str, Any]:
    found = rdma.available()
    return {
        **attrs.asdict(found),
        "devices": list(found.devices),
        "addresses": list(found.addresses),
    }


def _rdma_text(found: dict[str, Any]) -> str:
    if not found["usable"]:
        return f"no: {found['reason']}"
    devices, addresses = ", ".join(found["devices"]), ", ".join(found["addresses"])
    return f"{devices} at {addresses}, by {found['backend']}"


def _detail(key: str, value: Any) -> str:
    return f"{key}={'no limit' if value is None and key == 'headroom_bytes' else value}"


def show(facts: dict[str, Any]) -> None:
    """Print the facts as tables."""
    console = Console(markup=False, highlight=False)
    table = Table("transport", "usable", "why not, or details", box=None, pad_edge=False)
    for transport in facts["transports"]:
        details = ", ".join(_detail(*each) for each in transport["details"].items())
        remark = transport["reason"] or details
        table.add_row(transport["name"], "yes" if transport["usable"] else "no", remark)
    console.print(table)
    console.print()
    system = facts["system"]
    quota = "none" if system["cpu_quota"] is None else f"{system['cpu_quota']:g} CPUs"
    locked = system["memlock_bytes"]
    lines = {
        "versions": ", ".join(f"{k} {v}" for k, v in facts["versions"].items() if v),
        "schemes": " ".join(f"{scheme}://" for scheme in facts["schemes"]),
        "system": f"{system['system']} on {system['machine']}",
        "CPUs": f"{system['cpus_allowed']} allowed of {system['cpus']}, quota {quota}",
        "spinning": "yes"
        if system["may_spin"]
        else f"no: it needs a second CPU and a quota of {_cpu.QUOTA_MIN:g}",
        "memlock": "unlimited" if locked is None else f"{locked // 1024} KiB",
        "memfd": "yes" if system["memfd"] else f"no: {system['memfd_reason']}",
        "host identity": "yes"
        if system["host_identity"]
        else "no: upgrades from TCP cannot be had",
        "RDMA": _rdma_text(facts["rdma"]),
    }
    facts_table = Table(box=None, show_header=False, pad_edge=False)
    for name, text in lines.items():
        facts_table.add_row(name, text)
    console.print(facts_table)
