"""Send requests to the echo server. Usage: client.py URL"""

import sys

import anyio

import l5


async def main(url: str) -> None:
    async with await l5.connect(url) as conn:
        print(conn.upgrade_report)
        print(b"hello", "->", await conn.request(b"hello"))

        squares = [0] * 10

        async def ask(number: int) -> None:
            reply = await conn.request(b"slow %d" % number)
            squares[number] = int(reply.split()[1]) ** 2

        # Any number of tasks may use one connection; answers come in any order.
        async with anyio.create_task_group() as tasks:
            for number in range(10):
                tasks.start_soon(ask, number)
        print("10 requests at once:", squares)


if __name__ == "__main__":
    anyio.run(main, sys.argv[1] if len(sys.argv) > 1 else "l5+unix:///tmp/echo.sock")
