"""The verdict on a soak: what its processes wrote down, compared.

- What a process found wrong by itself, is wrong.
- A direction that ended cleanly has all that its sender sent for sure, and nothing that it did not.
- A connection broke because an end was killed or told to stop, or because the other end had
  finished with it. One that broke between two ends that were both alive and at work is wrong.
- A connection that could not be made was to a server that was killed or stopped at the time.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import attrs

SLACK_S = 2.0
AFTER_STOP_S = 15.0
SAID = {"talk": "messages", "asked": "requests"}


@attrs.define(eq=False)
class Disturbances:
    """What the referee did to whom, and when."""

    servers: int
    ended: dict[str, float] = attrs.field(factory=dict)
    """Processes that were killed, or told to stop."""
    down: dict[int, list[list[float]]] = attrs.field(factory=lambda: defaultdict(list))
    """When the server of a slot was not surely there."""

    def end(self, name: str, slot: int, now: float) -> None:
        """Note that a process was killed or told to stop."""
        self.ended[name] = now
        self.down[slot].append([now, float("inf")])

    def up(self, slot: int, at: float) -> None:
        """Note that the slot's new process is up."""
        for interval in self.down[slot]:
            if at < interval[0]:
                continue  # it is the one before that came up then
            interval[1] = min(interval[1], at + SLACK_S)

    def stop(self, slot: int, now: float, until: float) -> None:
        """Note that a process was held."""
        self.down[slot].append([now, until + AFTER_STOP_S])

    def was_down(self, slot: int, began: float, ended: float) -> bool:
        """Tell whether a slot's process was disturbed within a time."""
        return any(a <= ended + SLACK_S and began <= b for a, b in self.down[slot])


def read_logs(folder: Path) -> list[dict[str, Any]]:
    """Return what all processes wrote down, in order of time."""
    entries: list[dict[str, Any]] = []
    for path in folder.iterdir():
        # Half a line: it is being written, or was as its process was killed.
        for line in path.read_text().rpartition("\n")[0].splitlines():
            entries.append(json.loads(line))
    return sorted(entries, key=lambda entry: entry["at"])


def judge(entries: list[dict[str, Any]], done: Disturbances) -> tuple[list[str], Counter[str]]:
    """Return what was wrong, and how connections ended."""
    wrong = [f"{entry['by']}: {entry['text']}" for entry in entries if entry["what"] == "wrong"]
    ends: Counter[str] = Counter()
    for entry in entries:
        if entry["what"] == "up":
            done.up(_slot(entry["by"]), entry["at"])
    talks: dict[int, dict[bool, dict[str, Any]]] = defaultdict(dict)
    half: dict[tuple[int, bool], dict[str, Any]] = {}
    for entry in entries:
        if entry["what"] == "send_eof":
            half[entry["stream"], entry["server"]] = entry
        if entry["what"] == "talk":
            ends[f"messages, {entry['transport']}: {entry['why']}"] += 1
            talks[entry["stream"]][entry["server"]] = entry
        elif entry["what"] == "asked":
            ends[f"requests, {entry['transport']}: {entry['why']}"] += 1
            wrong += _judge_asked(entry, done)
        elif entry["what"] == "refused":
            ends["not connected"] += 1
            if not done.was_down(_slot(entry["peer"]), entry["began"], entry["at"]):
                wrong.append(f"{entry['by']} could not connect to {entry['peer']}: {entry['text']}")
    for stream, sides in talks.items():
        for is_server, entry in sides.items():
            sender = sides.get(not is_server) or half.get((stream, not is_server))
            wrong += _judge_direction(stream, entry, sender, done)
        wrong += _judge_talk(stream, sides, done)
    return wrong, ends


def _slot(name: str) -> int:
    return int(name[1:].split(".")[0])


def _judge_asked(entry: dict[str, Any], done: Disturbances) -> list[str]:
    if entry["why"] not in ("broken", "refused"):
        return []
    if done.was_down(_slot(entry["peer"]), entry["began"], entry["at"]):
        return []
    return [
        f"{entry['by']}: stream {entry['stream']:#x} of requests to {entry['peer']} over "
        f"{entry['transport']} ended as {entry['why']}, with both ends alive"
    ]


def _judge_talk(stream: int, sides: dict[bool, dict[str, Any]], done: Disturbances) -> list[str]:
    found: list[str] = []
    for is_server, entry in sides.items():
        other = sides.get(not is_server)
        if entry["why"] != "broken":
            continue
        excused = other is not None and other["why"] in ("done", "cancelled", "wrong")
        if is_server:
            excused = excused or entry["peer"] in done.ended
        else:
            down = done.was_down(_slot(entry["peer"]), entry["began"], entry["at"])
            excused = excused or down
        if not excused and entry["by"] not in done.ended:
            found.append(
                f"{entry['by']}: stream {stream:#x} with {entry['peer']} over {entry['transport']} "
                f"broke with both ends alive; the other end: {other and other['why']}"
            )
    return found


def _judge_direction(
    stream: int, entry: dict[str, Any], sender: dict[str, Any] | None, done: Disturbances
) -> list[str]:
    """Judge what one end received."""
    label = f"{entry['by']}: stream {stream:#x} from {entry['peer']} over {entry['transport']}"
    clean = entry["heard"] in ("eof", "last")
    if sender is None:
        silent = not entry["server"] and not entry["sure"]  # the server has never learnt its name
        if entry["heard"] == "eof" and not silent and not _was_told(entry, done):
            return [f"{label} ended cleanly, but its sender had not come to an end"]
        return []
    if clean and entry["got"] < sender["sure"]:
        return [f"{label} ended cleanly after message {entry['got']} of {sender['sure']}"]
    if entry["got"] > sender["tried"]:
        return [f"{label} had message {entry['got']}; only {sender['tried']} were tried"]
    return []


def _was_told(entry: dict[str, Any], done: Disturbances) -> bool:
    """Tell whether the other end is a server that was told to stop before it heard anything."""
    return not entry["server"] and done.was_down(_slot(entry["peer"]), entry["began"], entry["at"])
