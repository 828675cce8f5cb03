"""The transport passes the suite that l5 ships."""

from l5.testing import TransportSuite


class TestPacket(TransportSuite):
    transport = "packet"

    def url(self, directory: str) -> str:
        return f"l5+packet://{directory}/socket"
