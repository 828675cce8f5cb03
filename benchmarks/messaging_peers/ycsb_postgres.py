"""YCSB on PostgreSQL, by prepared statements over a Unix socket or TCP (`options["host"]`)."""

import importlib
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from benchmarks.messaging_peers.ycsb_data import (
    AT_ONCE,
    BLOCK_ROWS,
    FIELDS,
    Turns,
    check_field,
    check_rows,
    drawn,
    keys,
)
from benchmarks.messaging_peers.ycsb_sqlite import texts

BLOCKING = True


def fill(address: str, rows: int) -> None:
    """Make the table."""
    psycopg: Any = importlib.import_module("psycopg")
    columns = ", ".join(f"field{number} text" for number in range(FIELDS))
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(f"create table usertable (key int primary key, {columns})")
        with connection.cursor().copy("copy usertable from stdin") as copy:
            for key in keys(rows):
                copy.write_row([key, *texts(key)])
        connection.execute("vacuum analyze usertable")


@contextmanager
def client(address: str, options: dict[str, Any]) -> Generator[Callable[[], int]]:
    psycopg: Any = importlib.import_module("psycopg")
    del address  # the server is one for all sides
    with psycopg.connect(options["postgres"], autocommit=True, prepare_threshold=0) as connection:
        selects = [f"select field{n} from usertable where key = %s" for n in range(FIELDS)]
        asked = [(selects[n % FIELDS], (key,)) for n, key in enumerate(drawn(options))]
        turns = Turns(asked)
        cursor = connection.cursor(binary=True)

        def lookups() -> int:
            for select, key in turns.take():
                cursor.execute(select, key).fetchone()
            return AT_ONCE

        def scan() -> int:
            found = 0
            with connection.transaction(), connection.cursor("scan", binary=True) as rows:
                rows.execute("select * from usertable")
                while some := rows.fetchmany(BLOCK_ROWS):
                    found += len(some)
            return check_rows(found, options)

        for number, (select, key) in enumerate(asked[:BLOCK_ROWS]):
            check_field(key[0], number % FIELDS, cursor.execute(select, key).fetchone()[0])
        yield {"lookups": lookups, "scan": scan}[options["do"]]
