"""The transport passes the suites that l5 ships."""

from l5.testing import RegionSuite, TransportSuite


class TestPacket(TransportSuite):
    transport = "packet"

    def url(self, directory: str) -> str:
        return f"l5+packet://{directory}/socket"


class TestRegions(RegionSuite):
    transport = "packet"
    one_sided = False

    def url(self, directory: str) -> str:
        return f"l5+packet://{directory}/socket"
