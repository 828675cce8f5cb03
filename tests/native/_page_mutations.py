"""Every order and every check of `l5_page.h`, and what the header is without it.

As in `_ring_mutations.py`: each entry takes one thing away from the header that is shipped, and
names the scenario of `model/page_sides.c` in which a schedule fails without it, on x86's memory
(`tso`, where fences cost nothing and so are missed by nobody) and where C11 is taken at its word.
"""

from tests.native._ring_mutations import Mutation

__all__ = ["MUTATIONS", "NOT_ENOUGH"]

HEADER = "l5_page.h"


def _without(
    name: str, part: str, old: str, new: str, *, tso: str | None = None, views: str | None = None
) -> Mutation:
    return Mutation(name, part, old, new, tso, views, HEADER)


MUTATIONS = [
    # ---- OPEN: line 0 is odd before any payload changes
    _without(
        "line 0's version is not made odd",
        "OPEN",
        "(__atomic_load_n(word, __ATOMIC_RELAXED) + 1) | 1, __ATOMIC_RELAXED);",
        "__atomic_load_n(word, __ATOMIC_RELAXED) + 0, __ATOMIC_RELAXED);",
        tso="mapped",
        views="mapped",
    ),
    _without(
        "line 0's version may become odd after payload changed",
        "OPEN",
        "    l5_page_fence(__ATOMIC_RELEASE); /* pairs with: OPEN in l5_page_unchanged */\n",
        "",
        views="mapped, touched",
    ),
    _without(
        "line 0's version may be looked at again before payload is read",
        "OPEN",
        "    l5_page_fence(__ATOMIC_ACQUIRE); /* pairs with: OPEN in l5_page_begin */\n",
        "",
        views="mapped",
    ),
    _without(
        "line 0's version is not looked at again",
        "OPEN",
        "return l5_page_version(page, 0) == version && !(version & 1);",
        "return (void)page, !(version & 1);",
        tso="mapped",
        views="mapped",
    ),
    _without(
        "an odd version is as good as any",
        "OPEN",
        "return l5_page_version(page, 0) == version && !(version & 1);",
        "return l5_page_version(page, 0) == version;",
        tso="mapped",
        views="mapped",
    ),
    # ---- LINE: a line that is half changed says so
    _without(
        "lines that will change are not made odd",
        "LINE",
        "        __atomic_store_n(l5_page_word(page, line), odd, L5_PAGE_STORE);\n",
        "        (void)odd;\n",
        tso="lines",
        views="lines",
    ),
    _without(
        "a line's version may become odd after the line changed",
        "LINE",
        "    l5_page_fence(__ATOMIC_RELEASE);"
        " /* pairs with: LINE, each line's copy at one moment */\n",
        "",
        views="lines",
    ),
    # ---- CLOSE: a new version says that its payload is there
    _without(
        "the new version may be seen before the payload",
        "CLOSE",
        "    l5_page_fence(__ATOMIC_RELEASE); /* pairs with: CLOSE in l5_page_enter;"
        " in copies, each line's version */\n",
        "",
        views="ascending",
    ),
    _without(
        "payload may be read before the version",
        "CLOSE",
        "return __atomic_load_n(l5_page_word(page, 0), __ATOMIC_ACQUIRE);",
        "return __atomic_load_n(l5_page_word(page, 0), __ATOMIC_RELAXED);",
        views="mapped",
    ),
    _without(
        "lines that were not touched keep their version",
        "CLOSE",
        "        __atomic_store_n(l5_page_word(page, line), even, L5_PAGE_STORE);\n",
        "        (void)page;\n",
        tso="lines",
        views="lines",
    ),
    # ---- LAST: an even line 0 says that all others are
    _without(
        "line 0's new version may be seen before the others'",
        "LAST",
        "__atomic_store_n(l5_page_word(page, 0), even, __ATOMIC_RELEASE);",
        "__atomic_store_n(l5_page_word(page, 0), even, __ATOMIC_RELAXED);",
        views="heir",
    ),
    _without(
        "line 0 is the first that gets the new version",
        "LAST",
        "    for (size_t line = lines - 1; line > 0; line--)\n",
        "    __atomic_store_n(l5_page_word(page, 0), even, __ATOMIC_RELEASE);\n"
        "    for (size_t line = lines - 1; line > 0; line--)\n",
        tso="heir",
        views="heir",
    ),
    _without(
        "the heir of a dead writer uses its number again",
        "LAST",
        "(__atomic_load_n(word, __ATOMIC_RELAXED) + 1) | 1, __ATOMIC_RELAXED);",
        "__atomic_load_n(word, __ATOMIC_RELAXED) | 1, __ATOMIC_RELAXED);",
        tso="lines, writer dies",
        views="lines, writer dies",
    ),
    # ---- the checks of copies
    _without(
        "lines of different versions are not noticed",
        "LINES",
        "other |= *l5_page_word(copy, line) ^ first;",
        "other |= 0;",
        tso="lines",
        views="lines",
    ),
    _without(
        "a copy whose versions are odd is good",
        "LINES",
        "return !(other | (first & 1));",
        "return !other;",
        tso="lines",
        views="lines",
    ),
    _without(
        "where words ascend, nobody looks at line 0 again",
        "ASCENDING",
        "l5_page_is_whole(copy, lines) && *l5_page_word(copy, 0) == after;",
        "l5_page_is_whole(copy, lines) && (after | 1);",
        tso="ascending",
        views="ascending",
    ),
    _without(
        "where words ascend, the versions within the copy do not matter",
        "ASCENDING",
        "l5_page_is_whole(copy, lines) && *l5_page_word(copy, 0) == after;",
        "l5_page_is_whole(copy, 1) && *l5_page_word(copy, 0) == after + 0 * lines;",
        tso="ascending",
        views="ascending",
    ),
    _without(
        "where words come anyhow, nobody looks before",
        "WORDS",
        "return before == after && !(before & 1);",
        "return (before | 1) && !(after & 1);",
        tso="words",
        views="words, touched",
    ),
    _without(
        "where words come anyhow, nobody looks after",
        "WORDS",
        "return before == after && !(before & 1);",
        "return (after | 1) && !(before & 1);",
        tso="words",
        views="words, touched",
    ),
    _without(
        "where words come anyhow, an odd version is as good as any",
        "WORDS",
        "return before == after && !(before & 1);",
        "return before == after;",
        tso="words",
        views="words, touched",
    ),
]

# Checks that are right for another kind of copy than this one: a schedule must fail.
NOT_ENOUGH = [
    "not enough: lines checked, words ascend",
    "not enough: lines checked, words anyhow",
    "not enough: still the same, words anyhow",
]
