"""What the R-tree's C is without one of the orders and checks that its readers rely on.

As in `_ring_mutations.py`: each entry takes one thing away from a file that is shipped, and names
the scenario of `model/tree_sides.c` in which a schedule fails without it, under `tso` (x86) and
under `views` (C11 at its word).  The orders within a page are those of `_page_mutations.py`.

Three looks of `rt_traverse.h` are not here, as no answer depends on them: that `moves` is the same
once root and origin were read, that it is after each inner node, and that an inner node has not
changed.  A search that they end early the last look would find out as well; they keep it from
following children that are none any more.  The last look at `moves` needs no fence of its own:
whoever approves of anything has just looked at a page for the last time, behind a fence.
"""

from tests.native._ring_mutations import Mutation

__all__ = ["MUTATIONS", "SMALLER"]

# Nodes of three entries: (file, what stands there, what the model has).
SMALLER = [
    ("rtree.h", "#define RT_LEAF_MAX 21", "#define RT_LEAF_MAX 3"),
    ("rtree.h", "#define RT_INNER_MAX 45", "#define RT_INNER_MAX 3"),
    ("rtree.h", "#define RT_NODE_BYTES 1024", "#define RT_NODE_BYTES 256"),
    ("rt_node.h", "#define RT_LEAF_MIN 8", "#define RT_LEAF_MIN 2"),
    ("rt_node.h", "#define RT_INNER_MIN 17", "#define RT_INNER_MIN 2"),
    ("rt_node.h", "#define RT_LEAF_LANES 8", "#define RT_LEAF_LANES 4"),
    ("rt_node.h", "#define RT_INNER_LANES 16", "#define RT_INNER_LANES 4"),
    ("rt_node.h", "#define RT_LEAF_PLACES 24", "#define RT_LEAF_PLACES 4"),
    ("rt_node.h", "#define RT_INNER_PLACES 48", "#define RT_INNER_PLACES 4"),
    ("rt_node.h", "UINT32_C(0xfefefe)", "UINT32_C(0xe)"),
    ("rt_node.h", "UINT64_C(0xfffefffefffe)", "UINT64_C(0xe)"),
    ("rt_node.h", "static inline void rt_pause(void)\n{", "#define rt_pause tree_pause\n#if 0\n{"),
    (
        "rt_node.h",
        "static inline unsigned rt_meta_count",
        "#endif\nstatic inline unsigned rt_meta_count",
    ),
    ("rt_kernel.h", "#if defined(__x86_64__)", "#if 0"),
    ("rt_choose.h", "#define RT_LANES 8", "#define RT_LANES 4"),
]


def _without(
    source: str, name: str, old: str, new: str, *, tso: str | None = None, views: str | None = None
) -> Mutation:
    return Mutation(name, "MOVES", old, new, tso, views, source)


MUTATIONS = [
    # ---- the sequence word of the header
    _without(
        "rt_node.h",
        "what is read may be older than `moves`",
        "__atomic_load_n(word, __ATOMIC_ACQUIRE); /* pairs with: rt_seq_end */",
        "__atomic_load_n(word, __ATOMIC_RELAXED);",
        views="own: root splits",
    ),
    _without(
        "rt_node.h",
        "`moves` may be even again before all is there",
        "__atomic_store_n(word, *word + 1, __ATOMIC_RELEASE); /* pairs with: rt_seq_load */",
        "__atomic_store_n(word, *word + 1, __ATOMIC_RELAXED);",
        views="own: root splits",
    ),
    _without(
        "rt_node.h",
        "a root may be seen before `moves` is odd",  # and with it another origin than its own
        "    rt_release_fence(); /* pairs with: rt_seq_same */\n",
        "",
        views="own: load",
    ),
    # ---- the reader of the memory itself
    _without(
        "rt_traverse.h",
        "nobody asks whether entries are moving at the start",
        "    if (scan->moves & 1)\n        return -EAGAIN;\n",
        "",
        tso="own: split",
        views="own: split",
    ),
    _without(
        "rt_traverse.h",
        "nobody asks whether entries moved meanwhile",
        "    if (!rt_seq_same(&tree->header->moves, scan.moves))\n"
        "        return -EAGAIN;\n    *total = n;\n    return 0;\n}\n\nRT_TWICE int count_once",
        "    *total = n;\n    return 0;\n}\n\nRT_TWICE int count_once",
        tso="own: split",
        views="own: split",
    ),
    _without(
        "rt_traverse.h",
        "a leaf that was changed meanwhile is taken",
        "            n = after;\n",
        "            n = after;\n        else if (n += after - n, 0)\n            ;\n",
        tso="own: delete",
        views="own: delete",
    ),
    # ---- the writer
    _without(
        "rt_insert.c",
        "a node is split without a word",
        "    rt_moves_begin(tree);\n    insert_splitting(tree, &path, rect, id, box);\n"
        "    rt_moves_end(tree);\n",
        "    insert_splitting(tree, &path, rect, id, box);\n",
        tso="own: split",
        views="own: split",
    ),
    _without(
        "rt_delete.c",
        "nodes are merged without a word",
        "        rt_moves_begin(tree);\n        remove_entry(leaf, path->slot[0]);\n"
        "        condense(tree, path);\n        rt_moves_end(tree);\n",
        "        remove_entry(leaf, path->slot[0]);\n        condense(tree, path);\n",
        tso="own: merge",
        views="own: merge",
    ),
    _without(
        "rt_delete.c",
        "an entry goes elsewhere without a word",
        "    rt_moves_begin(tree); /* no reader sees both */\n",
        "    tree->move_depth = 1;\n",
        tso="own: moved",
        views="own: moved",
    ),
    _without(
        "rt_delete.c",
        "the last entry of a leaf takes a place without a word",
        "    rt_node_begin(node);\n    if (slot != last)",
        "    if (slot != last)",
        tso="own: delete",
        views="own: delete",
    ),
    # ---- the reader of copies
    _without(
        "rt_walk.c",
        "a walk does not ask whether entries are moving at the start",
        "    if (head->moves & 1)\n        walk->disturbed = true;\n    else if",
        "    if",
        views="walk: split",  # on x86 it takes more moments than the bound has
    ),
    _without(
        "rt_walk.c",
        "a walk does not ask whether entries moved meanwhile",
        "    if (memcmp(&head, &walk->head, sizeof head) != 0)\n        walk->disturbed = true;\n",
        "",
        tso="walk: split",
        views="walk: split",
    ),
    _without(
        "rt_walk.c",
        "a walk takes copies that are not whole",
        "if (!l5_page_is_whole(&walk->page, RT_NODE_LINES)) {",
        "if (0) {",
        tso="walk: delete",
        views="walk: delete",
    ),
    _without(
        "rt_walk.c",
        "a walk does not read versions again",
        "    if (version != visit->version) {",
        "    if (0) {",
        tso="walk: delete",
        views="walk: delete",
    ),
    _without(
        "rt_walk.c",
        "a walk reads the header before its nodes have come",
        "n < room && walk->pages_out == 0 && !walk->disturbed",
        "n < room && !walk->disturbed",
        tso="walk: split",
        views="walk: split",
    ),
]
