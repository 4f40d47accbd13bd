"""Attention of many rows, out of blocks: the compiled half.

    keys of a head, laid out    ──→ scores of a group of rows
    softmax of each row             over the keys that the mask leaves any of them
    values of a head, laid out  ──→ their sums

Keys and values are laid out as panels once for all rows of the heads that share them; both products
are those of `blocks`. Keys behind the last one that is open to a group of rows are not computed:
half of a causal mask. Scores lie at the number of their key modulo `PAD`, so that the sum of a row
has one order, whichever keys are asked about.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numba import carray, types

from tgbench.kernels.numba.blocks import (
    AHEAD,
    FLOAT32,
    LANES,
    PANEL,
    SHARED,
    TALL,
    across_of,
    address_of_blocks,
    bytes_at,
    call_blocks,
    compute,
    floats_at,
    lay_out_rows,
    number_of_thread,
    words_at,
)
from tgbench.kernels.numba.loops import NO_MASK as NO_MASK
from tgbench.kernels.numba.loops import PAD, F, U, kernel, long, native, softmax_row

GROUP = 4 * TALL  # rows whose scores are there at once

# Words of a job: addresses; distances in bytes, from batch to batch, head to head, row to row, and
# of the mask key to key; sizes
(Q, Q_BATCH, Q_HEAD, Q_ROW, K, K_BATCH, K_HEAD, K_ROW, V, V_BATCH, V_HEAD, V_ROW,
 OUT, OUT_BATCH, OUT_HEAD, OUT_ROW, MASK, MASK_BATCH, MASK_HEAD, MASK_ROW, MASK_KEY,
 BATCH, HEADS, SHARED_HEADS, ROWS, START, KEYS, DEPTH, WIDE,
 ZERO_ROW, SCALE, THREADS, ROOM, ROOM_BYTES, THREAD_NUMBER, BLOCKS,
 IS_ADDED) = range(37)  # fmt: skip
JOB = 37


def room_of(keys: int, depth: int, wide: int) -> int:
    """Words of a thread: keys and values of a head, laid out; scores of a group, its results, and
    where all of these rows are; some words behind the last are read.
    """
    up = -(-keys // PANEL), -(-wide // PANEL)
    laid_out = PANEL * (up[0] * depth + up[1] * keys)
    scores = GROUP * (keys + 2 * PAD + PANEL)
    return (laid_out + scores + GROUP * up[1] * PANEL) // 2 + 3 * GROUP + AHEAD + TALL + 1


@kernel
def _lay_out_keys(job, at, to):
    """Keys [keys, depth] as panels [panel, depth, key], with zeros behind the last key."""
    keys, depth, line = job[KEYS], job[DEPTH], job[K_ROW]
    for first in range(0, keys, PANEL):
        width = min(PANEL, keys - first)
        wide, panel = LANES * across_of(width), to + 4 * depth * first
        lay_out_rows(FLOAT32, at + first * line, line, depth, width, panel)
        there = floats_at(panel)
        for i in range(depth):
            for c in range(width, wide):
                there[i * wide + c] = F(0)


@kernel
def _lay_out_values(job, at, to):
    """Values [keys, columns] as panels [panel, key, column], with zeros behind the last column."""
    keys, columns = job[KEYS], job[WIDE]
    for first in range(0, columns, PANEL):
        width = min(PANEL, columns - first)
        wide = LANES * across_of(width)
        for key in range(keys):
            row = floats_at(at + key * job[V_ROW] + 4 * first)
            there = floats_at(to + 4 * (keys * first + key * wide))
            for i in range(U(width)):
                there[i] = row[i]
            for i in range(width, wide):
                there[i] = F(0)


@kernel
def _last_open(job, mask, count):
    """How many keys there are up to the last that is open to any of some rows, at least one."""
    keys, last, step = job[KEYS], 1, job[MASK_KEY]
    for r in range(count - 1, -1, -1):
        row, found = bytes_at(mask + r * job[MASK_ROW]), np.uint8(0)
        if step == 1:
            for i in range(U(last), U(keys)):
                found |= row[i]
        else:
            for i in range(last, keys):
                found |= row[i * step]
        if found:
            key = keys
            while not row[(key - 1) * step]:
                key -= 1
            last = key
    return last


@kernel
def _scaled(job, score, mask, lead, count, width):
    """Scale a row of scores; add the mask, or close it where that is; close it besides its keys."""
    scale, step = floats_at(job[SCALE])[0], job[MASK_KEY]
    for i in range(U(lead)):
        score[i] = F(-np.inf)
    if not mask:
        for i in range(U(lead), U(lead + count)):
            score[i] *= scale
    elif job[IS_ADDED]:
        added, apart = floats_at(mask), U(step // 4)
        if apart == U(1):
            for i in range(U(count)):
                score[U(lead) + i] = score[U(lead) + i] * scale + added[i]
        else:
            for i in range(U(count)):
                score[U(lead) + i] = score[U(lead) + i] * scale + added[i * apart]
    elif step == 1:
        is_open = bytes_at(mask)
        for i in range(U(count)):
            score[U(lead) + i] = score[U(lead) + i] * scale if is_open[i] else F(-np.inf)
    else:
        is_open = bytes_at(mask)
        for i in range(count):
            score[lead + i] = score[lead + i] * scale if is_open[i * step] else F(-np.inf)
    for i in range(U(lead + count), U(width)):
        score[i] = F(-np.inf)


@kernel
def _head(job, own, batch, head):
    """All rows of the heads that share one's keys."""
    keys, depth, wide = job[KEYS], job[DEPTH], job[WIDE]
    up, across = (keys + PANEL - 1) // PANEL, (wide + PANEL - 1) // PANEL
    row_bytes = 4 * (keys + 2 * PAD + PANEL)
    laid_keys = own
    laid_values = laid_keys + 4 * PANEL * up * depth
    scores = laid_values + 4 * PANEL * across * keys
    results = scores + GROUP * row_bytes
    table = (results + 4 * PANEL * GROUP * across + 7) // 8 * 8
    queries, rows = words_at(table), words_at(table + 8 * GROUP)
    outs = words_at(table + 16 * GROUP)
    lead = job[START] % PAD
    for r in range(GROUP):
        rows[r] = scores + r * row_bytes + 4 * lead
        outs[r] = results + 4 * PANEL * across * r
    _lay_out_keys(job, job[K] + batch * job[K_BATCH] + head * job[K_HEAD], laid_keys)
    _lay_out_values(job, job[V] + batch * job[V_BATCH] + head * job[V_HEAD], laid_values)
    shared_by = job[HEADS] // job[SHARED_HEADS]
    least, most, zero = F(-np.inf), F(np.inf), U(job[ZERO_ROW])
    for which in range(head * shared_by, (head + 1) * shared_by):
        for first in range(0, job[ROWS], GROUP):
            count = min(GROUP, job[ROWS] - first)
            query = job[Q] + batch * job[Q_BATCH] + which * job[Q_HEAD] + first * job[Q_ROW]
            for r in range(count):
                queries[r] = query + r * job[Q_ROW]
            mask, seen = 0, keys
            if job[MASK]:
                mask = job[MASK] + batch * job[MASK_BATCH] + which * job[MASK_HEAD]
                mask += first * job[MASK_ROW]
                if not job[IS_ADDED]:
                    seen = _last_open(job, mask, count)
            for panel in range((seen + PANEL - 1) // PANEL):
                call_blocks(
                    job[BLOCKS], U(table), U(0), U(table + 8 * GROUP), U(0), U(4 * PANEL * panel),
                    U(0), U(laid_keys + 4 * PANEL * depth * panel), U(count), U(1), U(depth), zero,
                    U(across_of(min(PANEL, keys - panel * PANEL))), least, most,
                )  # fmt: skip
            width = (lead + seen + PAD - 1) // PAD * PAD
            for r in range(count):
                score = floats_at(scores + r * row_bytes)
                there = mask + r * job[MASK_ROW] if mask else 0
                _scaled(job, score, there, lead, seen, width)
                softmax_row(score, U(0), U(width))
            for panel in range(across):
                call_blocks(
                    job[BLOCKS], U(table + 8 * GROUP), U(0), U(table + 16 * GROUP), U(0),
                    U(4 * PANEL * panel), U(0), U(laid_values + 4 * PANEL * keys * panel),
                    U(count), U(1), U(seen), zero,
                    U(across_of(min(PANEL, wide - panel * PANEL))), least, most,
                )  # fmt: skip
            out = job[OUT] + batch * job[OUT_BATCH] + which * job[OUT_HEAD] + first * job[OUT_ROW]
            for r in range(count):
                result, to = floats_at(outs[r]), floats_at(out + r * job[OUT_ROW])
                for i in range(U(wide)):
                    to[i] = result[i]


def _thread(job):
    words = carray(job, JOB)
    threads = words[THREADS]
    thread = number_of_thread(words[THREAD_NUMBER]) if threads > 1 else 0
    heads = words[BATCH] * words[SHARED_HEADS]
    own = words[ROOM] + thread * words[ROOM_BYTES]
    for i in range(heads * thread // threads, heads * (thread + 1) // threads):
        _head(words, own, i // words[SHARED_HEADS], i % words[SHARED_HEADS])


@cache
def computing() -> tuple[int, int]:
    """Addresses of what threads call, with a job, and of what computes blocks."""
    return int(native(types.CPointer(types.int64))(_thread).address), address_of_blocks()


@long
def attend(
    words, q, q_batch, q_head, q_row, k, k_batch, k_head, k_row, v, v_batch, v_head, v_row, mask,
    mask_batch, mask_head, mask_row, mask_key, out, out_batch, out_head, out_row, zeros, batch,
    heads, shared_heads, rows, start, keys, depth, wide, scale, threads, room, fork, number,
    computing, blocks,
):  # fmt: skip
    """softmax(q · kᵀ · scale + mask) · v, or closed where a mask of booleans is

    q and out [batch, heads, rows, depth or wide], k and v [batch, shared heads, keys, depth or
    wide], whose last dimensions are contiguous; mask [batch, heads, rows, keys], or one element for
    none, where mask_key is negative. start: the number of the first key. words: `JOB` + 1, and
    `room_of(…)` for each thread.
    """
    job = words[:JOB]
    job[Q], job[Q_BATCH], job[Q_HEAD], job[Q_ROW] = (
        q.ctypes.data, 4 * q_batch, 4 * q_head, 4 * q_row
    )  # fmt: skip
    job[K], job[K_BATCH], job[K_HEAD], job[K_ROW] = (
        k.ctypes.data, 4 * k_batch, 4 * k_head, 4 * k_row
    )  # fmt: skip
    job[V], job[V_BATCH], job[V_HEAD], job[V_ROW] = (
        v.ctypes.data, 4 * v_batch, 4 * v_head, 4 * v_row
    )  # fmt: skip
    job[OUT], job[OUT_BATCH], job[OUT_HEAD], job[OUT_ROW] = (
        out.ctypes.data, 4 * out_batch, 4 * out_head, 4 * out_row
    )  # fmt: skip
    item = mask.itemsize
    job[MASK], job[IS_ADDED] = mask.ctypes.data if mask_key >= 0 else 0, item > 1
    job[MASK_BATCH], job[MASK_HEAD] = item * mask_batch, item * mask_head
    job[MASK_ROW], job[MASK_KEY] = item * mask_row, item * mask_key
    job[BATCH], job[HEADS], job[SHARED_HEADS], job[ROWS] = batch, heads, shared_heads, rows
    job[START], job[KEYS], job[DEPTH], job[WIDE] = start, keys, depth, wide
    job[ZERO_ROW], job[THREAD_NUMBER], job[BLOCKS] = zeros.ctypes.data, number, blocks
    job[SCALE] = words.ctypes.data + 8 * JOB
    floats_at(job[SCALE])[0] = F(scale)
    job[ROOM] = words.ctypes.data + 8 * (JOB + 1)
    job[ROOM_BYTES] = 8 * room
    is_shared = batch * heads * rows * keys * (depth + wide) >= SHARED
    job[THREADS] = threads if is_shared else 1
    compute(job, job[THREADS], fork, computing)
