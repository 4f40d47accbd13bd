"""Pools, means and resampling of images whose channels lie side by side: the compiled half.

Each point of a result is made of few points of an image, for all channels at once.
"""

from __future__ import annotations

from tgbench.kernels.numba.loops import U, long


@long
def pool(
    x, x_image, x_line, x_point, out, out_image, out_line, out_point, x_lines, x_points, images,
    channels, lines, points, tap_lines, tap_points, step_lines, step_points, gap_lines, gap_points,
    low_lines, low_points, is_largest, none,
):  # fmt: skip
    """The largest numbers of windows, NaN before all, or their sums, tap after tap; `none` where a
    window sees nothing of the image. Sizes are those of `windows.multiply`.
    """
    for image in range(images):
        for y in range(lines):
            for p in range(points):
                at = U(image * out_image + y * out_line + p * out_point)
                is_first = True
                for down in range(tap_lines):
                    line = y * step_lines + down * gap_lines - low_lines
                    if not 0 <= line < x_lines:
                        continue
                    for right in range(tap_points):
                        point = p * step_points + right * gap_points - low_points
                        if not 0 <= point < x_points:
                            continue
                        seen = U(image * x_image + line * x_line + point * x_point)
                        if is_first:
                            for c in range(U(channels)):
                                out[at + c] = x[seen + c]
                        elif is_largest:
                            for c in range(U(channels)):
                                one, best = x[seen + c], out[at + c]
                                out[at + c] = one if one > best or one != one else best
                        else:
                            for c in range(U(channels)):
                                out[at + c] += x[seen + c]
                        is_first = False
                if is_first:
                    for c in range(U(channels)):
                        out[at + c] = none


@long
def mean(
    x, x_image, x_line, x_point, out, out_image, images, channels, lines, points, count
):  # fmt: skip
    """The sums of images' points, four of a line at once, over so many."""
    for image in range(images):
        at, first = U(image * out_image), image * x_image
        for c in range(U(channels)):
            out[at + c] = 0
        for y in range(lines):
            for p in range(0, points - 3, 4):
                a = U(first + y * x_line + p * x_point)
                b, step = a + U(x_point), U(2 * x_point)
                for c in range(U(channels)):
                    both = x[a + c] + x[b + c], x[a + step + c] + x[b + step + c]
                    out[at + c] += both[0] + both[1]
            for p in range(points // 4 * 4, points):
                a = U(first + y * x_line + p * x_point)
                for c in range(U(channels)):
                    out[at + c] += x[a + c]
        for c in range(U(channels)):
            out[at + c] /= out.dtype.type(count)


@long
def resample(
    x, x_image, x_line, x_point, out, out_image, out_line, out_point, images, channels, lines,
    points, first_line, low_line, first_point, low_point, line_at, line_share, point_at,
    point_share,
):  # fmt: skip
    """Points between those of an image: of line `first_line + y`, `line_share` of the line behind
    `line_at`, the rest of that one; and so of points. Lines of x are counted from `low_line`.
    """
    one = x.dtype.type(1)
    for image in range(images):
        for y in range(lines):
            down = line_share[first_line + y]
            row = image * x_image + (line_at[first_line + y] - low_line) * x_line
            for p in range(points):
                right = point_share[first_point + p]
                a = U(row + (point_at[first_point + p] - low_point) * x_point)
                b, at = a + U(x_point), U(image * out_image + y * out_line + p * out_point)
                if down == 0 and right == 0:
                    for c in range(U(channels)):
                        out[at + c] = x[a + c]
                elif down == 0:
                    for c in range(U(channels)):
                        out[at + c] = (one - right) * x[a + c] + right * x[b + c]
                elif right == 0:
                    under = a + U(x_line)
                    for c in range(U(channels)):
                        out[at + c] = (one - down) * x[a + c] + down * x[under + c]
                else:
                    under, beyond = a + U(x_line), b + U(x_line)
                    for c in range(U(channels)):
                        above = (one - right) * x[a + c] + right * x[b + c]
                        below = (one - right) * x[under + c] + right * x[beyond + c]
                        out[at + c] = (one - down) * above + down * below
