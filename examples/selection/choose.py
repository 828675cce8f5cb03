"""Connect to one server in several ways, and print what each connection became, and why."""

import tempfile

import anyio

import l5


async def show(url: str, folder: str) -> None:
    try:
        async with await l5.connect(url) as conn:
            await conn.request(b"works whatever it runs on")
            outcome = str(conn.upgrade_report)
    except l5.L5Error as error:
        outcome = f"{type(error).__name__}: {error}"
    print(f"{url}\n    {outcome}".replace(folder, "..."))


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        unix = f"{folder}/server.sock"
        async with l5.serve(lambda request: request, f"l5+unix://{unix}", "l5://127.0.0.1:0") as s:
            tcp = s.urls[1].removeprefix("l5://")
            await show(f"l5+unix://{unix}", folder)
            await show(f"l5+unix://{unix}?transports=unix", folder)
            await show(f"l5+shm://{unix}", folder)
            await show(f"l5://{tcp}", folder)
            await show(f"l5+tcp://{tcp}", folder)
            await show(f"l5+shm://{folder}/nobody.sock", folder)


if __name__ == "__main__":
    anyio.run(main)
