"""YCSB on SQLite in the process of its user: no communication at all."""

import sqlite3
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from benchmarks.messaging_peers.ycsb_data import (
    AT_ONCE,
    BLOCK_ROWS,
    FIELD_BYTES,
    FIELDS,
    Turns,
    check_field,
    check_rows,
    drawn,
    keys,
    row,
)

BLOCKING = True


def texts(key: int) -> list[str]:
    """Return the fields of a row."""
    whole = row(key).decode()
    return [whole[at : at + FIELD_BYTES] for at in range(0, len(whole), FIELD_BYTES)]


@contextmanager
def client(address: str, options: dict[str, Any]) -> Generator[Callable[[], int]]:
    columns = ", ".join(f"field{number} text" for number in range(FIELDS))
    places = ", ".join("?" * (FIELDS + 1))
    connection = sqlite3.connect(":memory:")
    connection.execute(f"create table usertable (key integer primary key, {columns})")
    connection.executemany(
        f"insert into usertable values ({places})", ([k, *texts(k)] for k in keys(options["rows"]))
    )
    selects = [f"select field{number} from usertable where key = ?" for number in range(FIELDS)]
    asked = [(selects[number % FIELDS], (key,)) for number, key in enumerate(drawn(options))]
    turns = Turns(asked)

    def lookups() -> int:
        for select, key in turns.take():
            connection.execute(select, key).fetchone()
        return AT_ONCE

    def scan() -> int:
        cursor, found = connection.execute("select * from usertable"), 0
        while rows := cursor.fetchmany(BLOCK_ROWS):
            found += len(rows)
        return check_rows(found, options)

    for number, (select, key) in enumerate(asked[:BLOCK_ROWS]):
        check_field(key[0], number % FIELDS, connection.execute(select, key).fetchone()[0])
    yield {"lookups": lookups, "scan": scan}[options["do"]]
    connection.close()
