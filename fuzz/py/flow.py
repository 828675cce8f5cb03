"""Reassembly and its budgets: any order of segments, against what a simple list would hold."""

from l5._errors import RemoteProtocolError
from l5._flow import Budget, Reassembly

from ._steps import Steps

LIMIT, CREDIT, PARTIALS, BUDGET = 900, 200, 3, 1500
Key = tuple[bool, int]


class _End:
    """One connection's receiver, with what it granted and what its peer has sent so far."""

    def __init__(self, parent: Budget) -> None:
        self.allowed: dict[Key, int] = {}
        self.sent: dict[Key, bytes] = {}
        self.budget = Budget(BUDGET, parent)
        self.reassembly = Reassembly(
            message_limit=LIMIT,
            credit_bytes=CREDIT,
            partials_max=PARTIALS,
            budget=self.budget,
            grant=self.grant,
        )

    def grant(self, key: Key, allowed_bytes: int) -> None:
        assert key in self.reassembly
        assert self.allowed.get(key, CREDIT) < allowed_bytes <= LIMIT
        self.allowed[key] = allowed_bytes

    def add(self, key: Key, payload: bytes, more: bool) -> bool:
        """Return whether the connection is still alive."""
        whole = self.sent.get(key, b"") + payload
        allowed = self.allowed.get(key, CREDIT)
        begun = key in self.sent
        unasked = [other for other in self.sent if not other[0]]  # answers are bounded elsewhere
        full = not key[0] and len(unasked) >= PARTIALS
        try:
            message = self.reassembly.add(key, payload, more)
        except RemoteProtocolError as error:
            assert str(error)
            too_long = len(whole) > min(LIMIT, allowed)
            assert too_long or (more and not begun), "a sound segment was refused"
            return False
        assert not (begun or more) or len(whole) <= min(LIMIT, allowed)
        assert begun or not more or not full
        if more:
            assert message is None
            self.sent[key] = whole
        else:
            assert message == whole
            self.forget(key)
        return True

    def forget(self, key: Key) -> None:
        self.sent.pop(key, None)
        self.allowed.pop(key, None)

    def check(self) -> None:
        held = sum(map(len, self.sent.values()))
        assert len(self.reassembly) == len(self.sent)
        assert held <= self.budget.used_bytes <= BUDGET + LIMIT
        assert bool(self.sent) or self.budget.used_bytes == 0


def one_input(data: bytes) -> None:
    steps = Steps(data)
    parent = Budget(2 * BUDGET)
    ends = [_End(parent), _End(parent)]
    while steps:
        what = steps.number()
        end = ends[what & 1]
        key = (bool(what & 2), steps.number() % 5)
        if what % 7 == 6:
            assert end.reassembly.drop(key) is (key in end.sent)
            end.forget(key)
        elif not end.add(key, bytes([what]) * (4 * steps.number()), what % 7 > 1):
            end.reassembly.clear()
            ends[what & 1] = _End(parent)
        for each in ends:
            each.check()
        assert parent.used_bytes == sum(each.budget.used_bytes for each in ends)
    for each in ends:
        each.reassembly.clear()
    assert parent.used_bytes == 0
