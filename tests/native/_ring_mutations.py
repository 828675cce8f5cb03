"""Every ordering and every re-check of the ring, and what the C is without it.

Each entry takes one thing away from the source that is shipped, and names the scenario in which a
schedule fails without it: under `tso` (x86) and under `views` (what C11 promises, see
`model/views.c`).  On x86 acquire costs nothing, so leaving it out shows under `views` only; where
nothing shows under `views`, the reason stands in the entry.
"""

import attrs

__all__ = ["MUTATIONS", "Mutation"]


@attrs.frozen
class Mutation:
    """One thing taken away."""

    name: str
    pair: str
    """Which of the pairs of `channel.h` it belongs to."""
    old: str
    new: str
    tso: str | None = None
    """The scenario that fails on x86."""
    views: str | None = None
    """The scenario that fails where C11 is taken at its word."""
    source: str = "channel.c"
    """What it is taken from; `ring_sides.c` waits as the event loop does."""


def order(
    name: str, pair: str, old: str, order: str, *, views: str, tso: str | None = None
) -> Mutation:
    """Replace the order of one access."""
    kind = old.split("(")[0].rsplit(" ", 1)[-1].removeprefix("(").split("_")
    weaker = old.replace("_".join(kind), "_".join([*kind[:-1], order]))
    return Mutation(name, pair, old, weaker, tso, views)


MUTATIONS = [
    # ---- MESSAGE: the size word tells that header and payload are complete
    order(
        "the size word is stored without release",
        "MESSAGE",
        "l5_store_seq((l5_word *)(void *)at, payload_bytes + L5_HEADER_BYTES);",
        "relaxed",
        tso="message",
        views="message",
    ),
    order(
        "the size word is loaded without acquire",
        "MESSAGE",
        "l5_load_acquire((l5_word *)(void *)at); /* pairs with: MESSAGE",
        "relaxed",
        views="message",
    ),
    Mutation(
        "the header is copied after the size word",
        "MESSAGE",
        """    memcpy(at + 8, &header, sizeof(header));
    channel->tx_write += l5_padded(payload_bytes);
    /* pairs with: MESSAGE in l5_channel_peek; and DOORBELL: store, then look at the armed word */
    l5_store_seq((l5_word *)(void *)at, payload_bytes + L5_HEADER_BYTES);
""",
        """    channel->tx_write += l5_padded(payload_bytes);
    l5_store_seq((l5_word *)(void *)at, payload_bytes + L5_HEADER_BYTES);
    memcpy(at + 8, &header, sizeof(header));
""",
        tso="message",
        views="message",
    ),
    Mutation(
        "the payload is copied after the size word",
        "MESSAGE",
        """        memcpy(at + prefix_bytes, payload, payload_bytes);
    finish(channel, kind, flags, id, (uint32_t)total);
""",
        """        (void)at;
    finish(channel, kind, flags, id, (uint32_t)total);
    memcpy(at + prefix_bytes, payload, payload_bytes);
""",
        tso="message",
        views="message",
    ),
    Mutation(
        "a long payload is copied after the size word",
        "MESSAGE",
        """    if (payload_bytes >= L5_LONG_BYTES)
        l5_copy_in(at + prefix_bytes, payload, payload_bytes);
    else if (payload_bytes)
        memcpy(at + prefix_bytes, payload, payload_bytes);
    finish(channel, kind, flags, id, (uint32_t)total);
""",
        """    if (payload_bytes && payload_bytes < L5_LONG_BYTES)
        memcpy(at + prefix_bytes, payload, payload_bytes);
    finish(channel, kind, flags, id, (uint32_t)total);
    if (payload_bytes >= L5_LONG_BYTES)
        l5_copy_in(at + prefix_bytes, payload, payload_bytes);
""",
        tso="taken",
        views="taken",
    ),
    Mutation(
        "a quarter of a long payload is not copied",
        "MESSAGE",
        "    return 4 * quarter;\n",
        "    return 4 * quarter + L5_LINE;\n",
        tso="taken",
        views="taken",
        source="_copy.h",
    ),
    Mutation(
        "the tail of a reservation is zeroed after the size word",
        "MESSAGE",
        """    clear_tail(channel, l5_padded(payload_bytes), l5_padded(reserved - 1));
    channel->tx_reserved = 0;
    finish(channel, kind, flags, id, payload_bytes);
""",
        """    channel->tx_reserved = 0;
    finish(channel, kind, flags, id, payload_bytes);
    channel->tx_write -= l5_padded(payload_bytes);
    clear_tail(channel, l5_padded(payload_bytes), l5_padded(reserved - 1));
    channel->tx_write += l5_padded(payload_bytes);
""",
        tso="reserved",
        views="reserved",
    ),
    Mutation(
        "the tail of a reservation is not zeroed",
        "MESSAGE",
        "    clear_tail(channel, l5_padded(payload_bytes), l5_padded(reserved - 1));\n",
        "",
        tso="reserved",
        views="reserved",
    ),
    Mutation(
        "a discarded reservation is not zeroed",
        "MESSAGE",
        "    clear_tail(channel, L5_PREFIX_BYTES, l5_padded(channel->tx_reserved - 1));\n",
        "",
        tso="discarded",
        views="discarded",
    ),
    Mutation(
        "a discarded reservation is zeroed with the size word that is polled",
        "MESSAGE",
        "clear_tail(channel, L5_PREFIX_BYTES, l5_padded(channel->tx_reserved - 1));",
        "clear_tail(channel, 0, l5_padded(channel->tx_reserved - 1));",
        views="discarded",  # on x86 a zero over a zero is nothing
    ),
    # ---- SPACE: the read position tells that the space is read and zeroed
    order(
        "the read position is stored without release",
        "SPACE",
        "l5_store_seq(channel->rx_position, position);",
        "relaxed",
        tso="space",
        views="space",
    ),
    order(
        "the read position is loaded without acquire",
        "SPACE",
        "l5_load_seq(channel->tx_read);",
        "relaxed",
        views="space",
    ),
    Mutation(
        "what was read is not zeroed",
        "SPACE",
        "    memset(channel->rx_base + (position & (channel->ring_bytes - 1)), 0, bytes);\n",
        "    (void)position, (void)bytes;\n",
        tso="laps",
        views="laps",
    ),
    Mutation(
        "what was read is zeroed after the position is given back",
        "SPACE",
        """    memset(channel->rx_base + (position & (channel->ring_bytes - 1)), 0, bytes);
    if (channel->rx_read - channel->rx_published >= channel->ring_bytes / 8)
        l5_channel_publish(channel);
""",
        """    if (channel->rx_read - channel->rx_published >= channel->ring_bytes / 8)
        l5_channel_publish(channel);
    memset(channel->rx_base + (position & (channel->ring_bytes - 1)), 0, bytes);
""",
        tso="laps",
        views="laps",
    ),
    Mutation(
        "a long message is copied out after the position is given back",
        "SPACE",
        "        return;\n    }\n    l5_copy_out(target,",
        """        return;
    }
    channel->rx_published = channel->rx_read + channel->rx_pending;
    l5_store_seq(channel->rx_position, channel->rx_published);
    wake_if_armed(channel, L5_ARM_SPACE);
    l5_copy_out(target,""",
        tso="taken",
        views="taken",
    ),
    Mutation(
        "the lines of a long message are not zeroed",
        "SPACE",
        "        memset(slot + done - head, 0, L5_LINE);\n",
        "",
        tso="taken",
        views="taken",
        source="_copy.h",
    ),
    Mutation(
        "the end of a long message is not zeroed",
        "SPACE",
        "    memset(slot + done - head, 0, padded - (done - head));\n",
        "    (void)padded;\n",
        tso="taken",
        views="taken",
        source="_copy.h",
    ),
    Mutation(
        "the sender does not look whether there is room",
        "SPACE",
        "    if (channel->ring_bytes - used >= padded)\n        return 0;\n",
        "    if (channel->ring_bytes - used >= padded || padded)\n        return 0;\n",
        tso="laps",
        views="laps",
    ),
    Mutation(
        "no line stays free behind the last message",
        "SPACE",
        "kind == L5_CLOSE && !flags ? 0 : L5_ALIGN",
        "0",
        tso="leased",
        views="leased",
    ),
    Mutation(
        "a leased message is given back with what is behind it",
        "SPACE",
        "channel->rx_hold != UINT64_MAX ? channel->rx_hold : channel->rx_read",
        "channel->rx_read",
        tso="leased",
        views="leased",
    ),
    # ---- DOORBELL: publish, then look at the armed word; arm, then look at what was published
    order(
        "the size word may land after the armed word is looked at",
        "DOORBELL",
        "l5_store_seq((l5_word *)(void *)at, payload_bytes + L5_HEADER_BYTES);",
        "release",
        tso="message",
        views="message",
    ),
    order(
        "the read position may land after the armed word is looked at",
        "DOORBELL",
        "l5_store_seq(channel->rx_position, position);",
        "release",
        tso="space",
        views="space",
    ),
    order(
        "the armed word may be looked at before what is published lands",
        "DOORBELL",
        "l5_load_seq(channel->peer_armed)",
        "acquire",
        views="message",
    ),
    order(
        "the armed word may land after the second look",
        "DOORBELL",
        "l5_store_seq(channel->own_armed, (uint64_t)bits);",
        "release",
        tso="message",
        views="message",
    ),
    order(
        "the second look at the size word may come before the armed word lands",
        "DOORBELL",
        "l5_load_seq(l5_size_word(channel->rx_base, channel->rx_read, channel->ring_bytes))",
        "acquire",
        views="message",
    ),
    order(
        "the second look at the read position may come before the armed word lands",
        "DOORBELL",
        "l5_load_seq(channel->tx_read);",
        "acquire",
        views="space",
    ),
    Mutation(
        "no second look at the size word",
        "DOORBELL",
        "l5_load_seq(l5_size_word(channel->rx_base, channel->rx_read, channel->ring_bytes))",
        "0",
        tso="message",
        views="message",
    ),
    Mutation(
        "no second look at the read position",
        "DOORBELL",
        "if ((bits & L5_ARM_SPACE) && channel->tx_wanted) {",
        "if ((bits & L5_ARM_SPACE) && channel->tx_wanted && bits < 0) {",
        tso="space",
        views="space",
    ),
    Mutation(
        "the read position is not given back before sleeping",
        "DOORBELL",
        "    l5_channel_publish(channel);\n    l5_store_seq(channel->own_armed",
        "    l5_store_seq(channel->own_armed",
        tso="space of a whole ring",
        views="space of a whole ring",
    ),
    Mutation(
        "a message does not ring",
        "DOORBELL",
        "    wake_if_armed(channel, L5_ARM_DATA);\n",
        "",
        tso="message",
        views="message",
    ),
    Mutation(
        "space does not ring",
        "DOORBELL",
        "    wake_if_armed(channel, L5_ARM_SPACE);\n",
        "",
        tso="space",
        views="space",
    ),
    Mutation(
        "who takes the armed word rings only if it says so still",
        "DOORBELL",
        "        if (l5_swap(channel->peer_armed, 0))\n",
        "        if (l5_swap(channel->peer_armed, 0) & bit)\n",
        tso="gives up",
        views="gives up",
    ),
    Mutation(
        "the armed word is cleared by a store and not taken by an exchange",
        "DOORBELL",
        "        if (l5_swap(channel->peer_armed, 0))\n",
        "        if ((l5_store_relaxed(channel->peer_armed, 0), 1))\n",
        tso="woken by others",  # under views a store never goes behind one that was made later
    ),
    Mutation(
        "the bell is read between arming and sleeping",
        "DOORBELL",
        "    bell_wait(1 << me);\n    bell_hear(me);\n",
        "    bell_hear(me);\n    bell_wait(1 << me);\n",
        tso="message",
        views="message",
        source="ring_sides.c",
    ),
    Mutation(
        "who was rung is not armed again",
        "DOORBELL",
        "    l5_channel_disarm(&end->channel);\n    end->armed_for = 0;\n",
        "    l5_channel_disarm(&end->channel);\n",
        tso="messages",
        views="messages",
        source="ring_sides.c",
    ),
    # ---- a worker of a native service
    Mutation(
        "a worker sleeps though a connection did not agree",
        "DOORBELL",
        "    if (!arm_all(worker) || l5_load_relaxed(&worker->inbox_full))\n",
        "    if ((arm_all(worker), 0) || l5_load_relaxed(&worker->inbox_full))\n",
        tso="served: one request",
        views="served: one request",
        source="service_wait.c",
    ),
    Mutation(
        "a worker does not arm for space",
        "DOORBELL",
        "L5_ARM_DATA | (connection->space_blocked ? L5_ARM_SPACE : 0);",
        "L5_ARM_DATA;",
        tso="served: room for answers",
        views="served: room for answers",
        source="service_worker.c",
    ),
    Mutation(
        "a connection that rang is not scanned again",
        "DOORBELL",
        "    }\n    l5_worker_activate(worker, connection);\n}\n\nvoid l5_worker_listen",
        "    }\n}\n\nvoid l5_worker_listen",
        tso="served: one request",
        views="served: one request",
        source="service_worker.c",
    ),
    Mutation(
        "the inbox is filled without ringing",
        "INBOX",
        "    pthread_mutex_unlock(&worker->lock);\n    ring_event(worker->wake);\n",
        "    pthread_mutex_unlock(&worker->lock);\n",
        tso="served: one request",
        views="served: one request",
        source="service.c",
    ),
    Mutation(
        "a service is stopped without ringing",
        "STOP",
        "            ring_event(service->workers[i].wake);\n",
        "            (void)i;\n",
        tso="served: two requests",
        views="served: two requests",
        source="service.c",
    ),
    Mutation(
        "the stop word is stored without release",
        "STOP",
        "l5_store_release(&service->stopping, l5_load_relaxed(&service->stopping) + 1);",
        "l5_store_relaxed(&service->stopping, l5_load_relaxed(&service->stopping) + 1);",
        views="served: stopping",
        source="service.c",
    ),
    # ---- FORWARD: copies of a region are made, and written, front to back
    Mutation(
        "a word of a region is stored without release",
        "FORWARD",
        "l5_store_release((l5_word *)(void *)(there + done), value);",
        "l5_store_relaxed((l5_word *)(void *)(there + done), value);",
        views="forward",
        source="region.c",
    ),
    Mutation(
        "a word of a region is loaded without acquire",
        "FORWARD",
        "l5_load_acquire((const l5_word *)(const void *)(there + done));",
        "l5_load_relaxed((const l5_word *)(const void *)(there + done));",
        views="forward",
        source="region.c",
    ),
    Mutation(
        "a part of a word of a region is loaded without acquire",
        "FORWARD",
        "l5_load_acquire(word_around(there));",
        "l5_load_relaxed(word_around(there));",
        views="forward",
        source="region.c",
    ),
    Mutation(
        "a region is read back to front",
        "FORWARD",
        "(there + done)); /* pairs with: FORWARD */\n\n        memcpy(here + done, &value, 8);\n",
        "(there + (bytes & ~(size_t)7) - 8 - done));\n"
        "\n        memcpy(here + (bytes & ~(size_t)7) - 8 - done, &value, 8);\n",
        tso="forward",
        views="forward",
        source="region.c",
    ),
    # ---- STATUS: what goes with a number is not older than it
    Mutation(
        "the number is stored without release",
        "STATUS",
        "l5_store_release(&control->status.sequence, sequence);",
        "l5_store_relaxed(&control->status.sequence, sequence);",
        views="status",
        source="status.h",
    ),
    Mutation(
        "the number is loaded without acquire",
        "STATUS",
        "l5_load_acquire(&control->status.sequence);",
        "l5_load_relaxed(&control->status.sequence);",
        views="status",
        source="status.h",
    ),
    Mutation(
        "the number is stored before what goes with it",
        "STATUS",
        """    l5_store_relaxed(&control->status.busy_millionths, busy_millionths);
    l5_store_relaxed(&control->status.written_ns, now_ns);
    l5_store_release(&control->status.sequence, sequence);""",
        """    l5_store_release(&control->status.sequence, sequence);
    l5_store_relaxed(&control->status.busy_millionths, busy_millionths);
    l5_store_relaxed(&control->status.written_ns, now_ns);""",
        tso="status",
        views="status",
        source="status.h",
    ),
    Mutation(
        "the stop word is loaded without acquire",
        "STOP",
        "l5_load_acquire(&service->stopping); /* pairs with: STOP",
        "l5_load_relaxed(&service->stopping); /* pairs with: STOP",
        views="served: stopping",
        source="service_worker.c",
    ),
]
