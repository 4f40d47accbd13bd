"""The loop of the repair, in the language of `compiled`; `repair` says what it does.

per buffer    low      its offset, or `OUT`
              weight   what it costs to push it out
queue         the buffers that are out, in a ring; `at` says where it begins, and how many
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, no-check-untyped-defs
# What a loop is called with says the kinds of everything in it.

from __future__ import annotations

import numpy as np

from tgbench.memory.packing.compiled import loop

OUT = -1
NEVER = 1 << 50  # the weight of a pin
HEAD, COUNT, CHANCE, MOVES = range(4)  # places in `at`

# Rows of `room`, for what one buffer meets: where each begins, ends, and its weight; then where
# they begin in order, and the weights before each; the same of where they end; a sort's slots.
FROM, TO, WEIGHT, LOWS, BEGUN, TOPS, OVER, SLOTS = range(8)


@loop
def _gather(b, sizes, near_first, near, pin_first, pin_low, pin_high, low, weight, room):
    """What buffer b meets, pins too: where each begins, ends, and its weight; returns how many."""
    count = 0
    for x in range(near_first[b], near_first[b + 1]):
        c = near[x]
        if low[c] != OUT:
            room[FROM, count] = low[c]
            room[TO, count] = low[c] + sizes[c]
            room[WEIGHT, count] = weight[c]
            count += 1
    for x in range(pin_first[b], pin_first[b + 1]):
        room[FROM, count] = pin_low[x]
        room[TO, count] = pin_high[x]
        room[WEIGHT, count] = NEVER
        count += 1
    return count


@loop
def _in_order(side, edges, before, count, capacity, room):
    """What is met in order of where it begins, or ends, and the weights up to each.

    Each goes into one of `count` equal slots of the height first, so that little is left to the
    insertion sort.
    """
    scale = count / (capacity + 1)
    for i in range(count + 1):
        room[SLOTS, i] = 0
    for i in range(count):
        room[SLOTS, np.int64(room[side, i] * scale) + 1] += 1
    for i in range(count):
        room[SLOTS, i + 1] += room[SLOTS, i]
    for i in range(count):
        slot = np.int64(room[side, i] * scale)
        room[edges, room[SLOTS, slot]] = i
        room[SLOTS, slot] += 1
    for i in range(count):
        c, j = room[edges, i], i
        while j > 0 and room[side, room[edges, j - 1]] > room[side, c]:
            room[edges, j] = room[edges, j - 1]
            j -= 1
        room[edges, j] = c
    room[before, 0] = 0
    for i in range(count):
        c = room[edges, i]
        room[before, i + 1] = room[before, i] + room[WEIGHT, c]
        room[edges, i] = room[side, c]


@loop
def _draw(at, ties):
    """Whether the newest of so many equals is taken: each as likely as the others."""
    at[CHANCE] = (at[CHANCE] * 1103515245 + 12345) & 0x7FFFFFFF
    return (at[CHANCE] >> 8) % ties == 0


@loop
def _cheapest(capacity, size, count, room, at):
    """The offset at which what is met weighs least, and how much that is.

    It stands on the bottom or on something, or hangs below the capacity or something. Of equals
    that weigh nothing the first counts, else chance decides.
    """
    best, least, ties = OUT, NEVER, 1
    for hangs in range(2):
        begun = over = 0  # how many begin below its end; how many end at or below it
        for i in range(-1 + hangs, count + hangs):
            if hangs:
                offset = (capacity if i == count else room[LOWS, i]) - size
            else:
                offset = 0 if i < 0 else room[TOPS, i]
            if offset < 0 or offset + size > capacity:
                continue
            while begun < count and room[LOWS, begun] < offset + size:
                begun += 1
            while over < count and room[TOPS, over] <= offset:
                over += 1
            total = room[BEGUN, begun] - room[OVER, over]
            if total < least:
                best, least, ties = offset, total, 1
                if total == 0:
                    return best, least
            elif total == least and total < NEVER:
                ties += 1
                if _draw(at, ties):
                    best = offset
    return best, least


@loop
def push(
    capacity, limit, sizes, near_first, near, pin_first, pin_low, pin_high, own,
    low, weight, queue, at, room,
):  # fmt: skip
    """Up to `limit` moves; whether nothing is out any more."""
    stop = at[MOVES] + limit
    while at[COUNT] > 0 and at[MOVES] < stop:
        at[MOVES] += 1
        b = queue[at[HEAD]]
        count = _gather(b, sizes, near_first, near, pin_first, pin_low, pin_high, low, weight, room)
        _in_order(FROM, LOWS, BEGUN, count, capacity, room)
        _in_order(TO, TOPS, OVER, count, capacity, room)
        offset, total = _cheapest(capacity, sizes[b], count, room, at)
        if total >= NEVER:
            return False
        at[HEAD] = (at[HEAD] + 1) % len(queue)
        at[COUNT] -= 1
        low[b] = offset
        if total > 0:
            weight[b] += own[b]
            for x in range(near_first[b], near_first[b + 1]):
                c = near[x]
                if low[c] != OUT and low[c] < offset + sizes[b] and low[c] + sizes[c] > offset:
                    low[c] = OUT
                    queue[(at[HEAD] + at[COUNT]) % len(queue)] = c
                    at[COUNT] += 1
    return at[COUNT] == 0
