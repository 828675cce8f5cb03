"""A key-value service: messages, handler, client and command line (see README.md)."""

import signal
import sys
from bisect import bisect_left, insort
from typing import TypeVar

import anyio
import msgspec

import l5


class Put(msgspec.Struct, tag=True):
    key: str
    value: bytes


class Get(msgspec.Struct, tag=True):
    key: str


class Delete(msgspec.Struct, tag=True):
    key: str


class Swap(msgspec.Struct, tag=True):
    """Set a value if it is still `old` (None: if there is none); answers whether it was."""

    key: str
    old: bytes | None
    new: bytes


class Scan(msgspec.Struct, tag=True):
    prefix: str
    limit: int = 100


USAGE = "keyvalue.py serve URL... | put URL KEY VALUE | get, delete or scan URL KEY"
Request = Put | Get | Delete | Swap | Scan
Pairs = list[tuple[str, bytes]]
T = TypeVar("T")


class Store:
    """The service: a request's bytes in, the answer's bytes out."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.keys: list[str] = []  # sorted
        self.decode = msgspec.msgpack.Decoder[Request](Request).decode
        self.encode = msgspec.msgpack.Encoder().encode

    def __call__(self, request: bytes) -> bytes:
        return self.encode(self.answer(self.decode(request)))

    def answer(self, request: Request) -> object:
        match request:
            case Put(key, value):
                self.put(key, value)
            case Get(key):
                self.must_have(key)
                return self.values[key]
            case Delete(key):
                self.must_have(key)
                del self.values[key]
                del self.keys[bisect_left(self.keys, key)]
            case Swap(key, old, new):
                if self.values.get(key) != old:
                    return False
                self.put(key, new)
                return True
            case Scan(prefix, limit):
                first = bisect_left(self.keys, prefix)
                found = self.keys[first : first + max(0, limit)]
                return [(key, self.values[key]) for key in found if key.startswith(prefix)]
        return None

    def must_have(self, key: str) -> None:
        if key not in self.values:
            raise l5.HandlerError("KeyError", key)  # any other exception would be logged, too

    def put(self, key: str, value: bytes) -> None:
        if key not in self.values:
            insort(self.keys, key)
        self.values[key] = value


class Client:
    """The service as seen from elsewhere."""

    def __init__(self, connection: l5.Connection) -> None:
        self.connection = connection
        self.encode = msgspec.msgpack.Encoder().encode

    async def ask(self, request: Request, kind: type[T]) -> T:
        try:
            reply = await self.connection.request(self.encode(request))
        except l5.RequestFailed as error:
            if error.remote_type == "KeyError":
                raise KeyError(error.remote_message) from None
            raise
        return msgspec.msgpack.decode(reply, type=kind)

    async def put(self, key: str, value: bytes) -> None:
        await self.ask(Put(key, value), object)

    async def get(self, key: str) -> bytes:
        return await self.ask(Get(key), bytes)

    async def delete(self, key: str) -> None:
        await self.ask(Delete(key), object)

    async def swap(self, key: str, old: bytes | None, new: bytes) -> bool:
        return await self.ask(Swap(key, old, new), bool)

    async def scan(self, prefix: str, limit: int = 100) -> Pairs:
        return await self.ask(Scan(prefix, limit), Pairs)


async def serve(*urls: str) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with l5.serve(Store(), *urls) as server:
            print("listening on", *server.urls, flush=True)
            async for _ in signals:
                return


async def ask(command: str, url: str, *words: str) -> None:
    async with await l5.connect(url) as connection:
        client = Client(connection)
        match command, words:
            case "put", (key, value):
                await client.put(key, value.encode())
            case "get", (key,):
                print((await client.get(key)).decode())
            case "delete", (key,):
                await client.delete(key)
            case "scan", (prefix,):
                for key, value in await client.scan(prefix):
                    print(f"{key} = {value.decode()}")
            case _:
                sys.exit(USAGE)


def main(command: str = "", url: str = "", *words: str) -> None:
    if not url:
        sys.exit(USAGE)
    try:
        if command == "serve":
            anyio.run(serve, url, *words)
        else:
            anyio.run(ask, command, url, *words)
    except KeyError as error:
        sys.exit(f"keyvalue: no such key: {error}")
    except l5.L5Error as error:
        sys.exit(f"keyvalue: {error}")


if __name__ == "__main__":
    main(*sys.argv[1:])
