"""The loop of the complete search, in the language of `compiled`.

`search` says what is searched and why the rules are sound; here are the arrays. Nothing calls
itself: a depth-first search with its frames in an array, so that it stops after any number of nodes
and goes on later.

    per buffer    low      the lowest offset that it can still have; its offset once it is placed
                  placed   0 or 1
    per frame     what was decided, and how far the stacks reached before
    per section   the unplaced sizes in `total`, how many buffers can be `firsts`, the least end of
                  any, and of what can be first
    per part      sections [lo, hi) that no unplaced buffer crosses, solved one after the other
    undo          (buffer, its `low` before), newest last
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, no-check-untyped-defs
# What a loop is called with says the kinds of everything in it.

from __future__ import annotations

import numpy as np

from tgbench.memory.packing.compiled import loop

INFINITE = 1 << 60

# What a call returns.
RUNNING, SOLVED, EXHAUSTED, FULL = range(4)

# Bits of the rules.
STACKING, NOT_FIRST, SUPPORT, ANYWHERE, TWINS, PARTS, FAILED = (1 << bit for bit in range(7))

# Places in `counters`: how far the stacks reach, the present part, whether it may fall apart.
DEPTH, PARTS_MADE, PART, TRAIL, UNDO, SPLIT, NODES = range(7)

# Columns of a frame: the buffer, 1 once its second branch runs, and what there was before.
BUFFER, SECOND, IN_PART, OLD_PARTS, OLD_TRAIL, OLD_UNDO, ENTERED = range(7)

# Columns of a part: its sections, the depth at which it was begun, the depth to return to when it
# fails, the part that it was split from, and the one to solve after it.
LO, HI, ENTRY, RETREAT, PARENT, NEXT = range(6)


# --- raising what is lowest possible ---


@loop
def _above_pins(low, size, pin_first, pin_low, pin_high, b):
    """The lowest offset from `low` on at which buffer b meets no pin."""
    for x in range(pin_first[b], pin_first[b + 1]):
        if low < pin_high[x] and low + size > pin_low[x]:
            low = pin_high[x]
    return low


@loop
def _lift(b, to, low, undo, counters):
    top = counters[UNDO]
    undo[top, 0] = b
    undo[top, 1] = low[b]
    counters[UNDO] = top + 1
    low[b] = to


@loop
def _sort_by_low(active, count, low):
    """Insertion sort: the order changes little from node to node."""
    for i in range(1, count):
        b = active[i]
        j = i - 1
        while j >= 0 and low[active[j]] > low[b]:
            active[j + 1] = active[j]
            j -= 1
        active[j + 1] = b


@loop
def _blame(capacity, first, lo, hi, low, total, weight, b):
    """More weight for the sections at which buffer b has too much to bear."""
    for x in range(first[b], first[b + 1]):
        for s in range(lo[x], hi[x]):
            weight[s] += total[s] > capacity - low[b]


@loop
def _raise(
    capacity, rules, begin, end, sizes, first, lo, hi, pin_first, pin_low, pin_high, twin,
    low, placed, counters, undo, active, count, weight, total, firsts, any_end, first_end,
):  # fmt: skip
    """Raise `low` until no rule moves it, and find what is asked of each section.

    Returns RUNNING, EXHAUSTED when something has no place, or FULL.
    """
    moving = True
    while moving:
        moving = False
        _sort_by_low(active, count, low)
        for s in range(begin, end):
            total[s] = 0
            firsts[s] = 0
            any_end[s] = INFINITE
            first_end[s] = INFINITE
        for i in range(count - 1, -1, -1):  # from the highest `low` down
            b = active[i]
            size = sizes[b]
            room = capacity - low[b]
            over = False
            for x in range(first[b], first[b + 1]):
                for s in range(lo[x], hi[x]):
                    total[s] += size
                    over |= total[s] > room
            if over and (rules & STACKING or size > room):
                _blame(capacity, first, lo, hi, low, total, weight, b)
                return EXHAUSTED
        for i in range(count):
            b = active[i]
            room = capacity - low[b]
            top = low[b] + sizes[b]
            for x in range(first[b], first[b + 1]):
                for s in range(lo[x], hi[x]):
                    can = total[s] <= room
                    firsts[s] += can
                    any_end[s] = min(any_end[s], top)
                    first_end[s] = min(first_end[s], top if can else INFINITE)
        for i in range(count):
            b = active[i]
            least = low[b]
            if rules & NOT_FIRST:
                room = capacity - least
                for x in range(first[b], first[b + 1]):
                    for s in range(lo[x], hi[x]):
                        least = max(least, first_end[s] if total[s] > room else 0)
            if rules & TWINS and twin[b] >= 0 and placed[twin[b]] == 0:
                least = max(least, low[twin[b]] + sizes[b])
            if least > low[b]:
                least = _above_pins(least, sizes[b], pin_first, pin_low, pin_high, b)
                if counters[UNDO] == len(undo):
                    return FULL
                if least + sizes[b] > capacity:
                    _blame(capacity, first, lo, hi, low, total, weight, b)
                    return EXHAUSTED
                _lift(b, least, low, undo, counters)
                moving = True
    return RUNNING


# --- nodes ---


@loop
def _split(parts, counters, cover):
    """Cut the present part where nothing unplaced crosses, and go on with its first piece."""
    part, made = counters[PART], counters[PARTS_MADE]
    begin, inside, after = parts[part, LO], made, parts[part, NEXT]
    for s in range(parts[part, LO] + 1, parts[part, HI] + 1):
        last = s == parts[part, HI]
        if (last and made > inside) or (not last and cover[s] == 0):
            parts[made, LO], parts[made, HI] = begin, s
            parts[made, PARENT], parts[made, RETREAT] = part, counters[DEPTH]
            parts[made, NEXT] = made + 1
            made += 1
            begin = s
    if made > inside:
        parts[made - 1, NEXT] = after
        parts[inside, ENTRY] = counters[DEPTH]
        counters[PART], counters[PARTS_MADE] = inside, made


@loop
def _gather(begin, end, first, lo, hi, placed, order, active):
    """The unplaced buffers of a part; returns how many."""
    count = 0
    for x in range(len(order)):
        b = order[x]
        if placed[b] == 0 and lo[first[b]] >= begin and hi[first[b + 1] - 1] <= end:
            active[count] = b
            count += 1
    return count


@loop
def _fingerprint(begin, end, low, active, count, key):
    """128 bits for what is unplaced and how low it can be; sums, so that no order matters."""
    one, two = np.uint64(begin), np.uint64(end)
    for i in range(count):
        b = active[i]
        mixed = np.uint64(low[b]) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(b + 1)
        mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(0x94D049BB133111EB)
        one += mixed ^ (mixed >> np.uint64(31))
        mixed *= np.uint64(0xD6E8FEB86659FD93)
        two += mixed ^ (mixed >> np.uint64(32))
    key[0], key[1] = one, two


@loop
def _place_of(key, failed):
    return np.int64(key[0] & np.uint64(len(failed) - 1))


@loop
def _choose(
    capacity, rules, branching, sizes, first, lo, hi, twin, rank, low, placed, active, count,
    weight, total, firsts, any_end,
):  # fmt: skip
    """The buffer to decide: nothing unplaced fits below it, and its keys are the least."""
    best, many = -1, len(sizes) + 1
    best_0 = best_1 = best_2 = np.inf
    for i in range(count):
        b = active[i]
        at = low[b]
        if not rules & ANYWHERE and at > low[active[0]]:
            break
        fewest, heaviest, ready = many, 0.0, True
        for x in range(first[b], first[b + 1]):
            for s in range(lo[x], hi[x]):
                ready &= any_end[s] > at
                fewest = min(fewest, firsts[s] if total[s] + at <= capacity else many)
                heaviest = max(heaviest, weight[s])
        if not ready or (rules & TWINS and twin[b] >= 0 and placed[twin[b]] == 0):
            continue
        key_0, key_1, key_2 = 1.0 if fewest > 1 else 0.0, float(at), float(rank[b])
        if branching & 1:
            key_0 = float(fewest)
        if branching & 2:
            key_1 = -heaviest
        if branching & 4:
            key_1 = at / heaviest
        if branching & 8:
            key_2 = -heaviest
        if key_0 < best_0 or (
            key_0 == best_0 and (key_1 < best_1 or (key_1 == best_1 and key_2 < best_2))
        ):
            best, best_0, best_1, best_2 = b, key_0, key_1, key_2
    return best


@loop
def _push(b, frames, parts, counters):
    frame, part = frames[counters[DEPTH]], counters[PART]
    frame[BUFFER], frame[SECOND] = b, 0
    frame[IN_PART], frame[ENTERED] = part, parts[part, ENTRY]
    frame[OLD_PARTS], frame[OLD_TRAIL] = counters[PARTS_MADE], counters[TRAIL]
    frame[OLD_UNDO] = counters[UNDO]
    counters[DEPTH] += 1


@loop
def _put(
    b, sizes, first, lo, hi, near_first, near, pin_first, pin_low, pin_high,
    low, placed, cover, counters, trail, undo,
):  # fmt: skip
    """First branch: the buffer is at `low`, and its unplaced neighbours are above."""
    top = low[b] + sizes[b]
    placed[b] = 1
    trail[counters[TRAIL]] = b
    counters[TRAIL] += 1
    for x in range(near_first[b], near_first[b + 1]):
        c = near[x]
        if placed[c] == 0 and low[c] < top:
            least = _above_pins(top, sizes[c], pin_first, pin_low, pin_high, c)
            _lift(c, least, low, undo, counters)
    for s in range(lo[first[b]] + 1, hi[first[b + 1] - 1]):
        cover[s] -= 1
        counters[SPLIT] |= cover[s] == 0


@loop
def _lifted(rules, sizes, near_first, near, pin_first, pin_low, pin_high, low, placed, b):
    """Second branch: where the buffer is at least, when something comes below it."""
    least = low[b] + 1
    if rules & SUPPORT:
        least = INFINITE
        for x in range(near_first[b], near_first[b + 1]):
            if placed[near[x]] == 0:
                least = min(least, low[near[x]] + sizes[near[x]])
        for x in range(pin_first[b], pin_first[b + 1]):
            if pin_high[x] > low[b]:
                least = min(least, pin_high[x])
    return _above_pins(least, sizes[b], pin_first, pin_low, pin_high, b)


@loop
def _pop(first, lo, hi, low, placed, cover, counters, frames, parts, trail, undo):
    """Back to the newest frame of the part, or to what it was split from; False at the root."""
    part, depth = counters[PART], counters[DEPTH]
    while part >= 0 and depth <= parts[part, ENTRY]:
        depth, part = parts[part, RETREAT], parts[part, PARENT]
    if part < 0:
        return False
    depth -= 1
    frame = frames[depth]
    counters[DEPTH], counters[PART], counters[PARTS_MADE] = depth, frame[IN_PART], frame[OLD_PARTS]
    parts[frame[IN_PART], ENTRY] = frame[ENTERED]
    for top in range(counters[UNDO] - 1, frame[OLD_UNDO] - 1, -1):
        low[undo[top, 0]] = undo[top, 1]
    counters[UNDO] = frame[OLD_UNDO]
    for top in range(frame[OLD_TRAIL], counters[TRAIL]):
        c = trail[top]
        placed[c] = 0
        for s in range(lo[first[c]] + 1, hi[first[c + 1] - 1]):
            cover[s] += 1
    counters[TRAIL] = frame[OLD_TRAIL]
    return True


@loop
def descend(
    capacity, rules, branching, limit,
    sizes, first, lo, hi, near_first, near, pin_first, pin_low, pin_high, twin, rank,
    low, placed, cover, counters, frames, parts, trail, undo, order, active, keys,
    total, firsts, any_end, first_end, weight, failed,
):  # fmt: skip
    """Visit up to `limit` nodes; RUNNING when there are more."""
    n, sections = len(sizes), len(cover) - 1
    stop = counters[NODES] + limit
    while True:
        if counters[SPLIT] and rules & PARTS:
            _split(parts, counters, cover)
        counters[SPLIT] = 0
        part, depth = counters[PART], counters[DEPTH]
        begin, end = parts[part, LO], parts[part, HI]
        count = _gather(begin, end, first, lo, hi, placed, order, active)
        if count == 0:
            part = parts[part, NEXT]
            if part < 0:
                return SOLVED
            counters[PART] = part
            parts[part, ENTRY] = depth
            continue
        if counters[NODES] >= stop:
            return RUNNING
        if depth + 1 >= len(frames) or counters[UNDO] + 2 * n >= len(undo):
            return FULL
        if counters[PARTS_MADE] + sections + 2 >= len(parts):
            return FULL
        counters[NODES] += 1
        outcome = _raise(
            capacity, rules, begin, end, sizes, first, lo, hi, pin_first, pin_low, pin_high, twin,
            low, placed, counters, undo, active, count, weight, total, firsts, any_end, first_end,
        )  # fmt: skip
        if outcome == FULL:
            return FULL
        if outcome == RUNNING and rules & FAILED:
            key = keys[depth]
            _fingerprint(begin, end, low, active, count, key)
            known = failed[_place_of(key, failed)]
            if known[0] == key[0] and known[1] == key[1]:
                outcome = EXHAUSTED
        if outcome == RUNNING:
            b = _choose(
                capacity, rules, branching, sizes, first, lo, hi, twin, rank, low, placed,
                active, count, weight, total, firsts, any_end,
            )  # fmt: skip
            _push(b, frames, parts, counters)
            _put(
                b, sizes, first, lo, hi, near_first, near, pin_first, pin_low, pin_high,
                low, placed, cover, counters, trail, undo,
            )  # fmt: skip
            continue
        while _pop(first, lo, hi, low, placed, cover, counters, frames, parts, trail, undo):
            depth = counters[DEPTH]
            b = frames[depth, BUFFER]
            if frames[depth, SECOND] == 0:
                least = _lifted(
                    rules, sizes, near_first, near, pin_first, pin_low, pin_high, low, placed, b
                )
                if least + sizes[b] <= capacity:
                    frames[depth, SECOND] = 1
                    counters[DEPTH] += 1
                    _lift(b, least, low, undo, counters)
                    counters[SPLIT] = 0
                    break
            if rules & FAILED:
                place = _place_of(keys[depth], failed)
                failed[place, 0], failed[place, 1] = keys[depth, 0], keys[depth, 1]
        else:
            return EXHAUSTED
