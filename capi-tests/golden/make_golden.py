#!/usr/bin/env python3
"""Golden tables of the conversion to FP8, made with numpy and ml_dtypes.

make_golden.py writes the tables beside itself; make_golden.py --check evaluates every pattern again
and compares with the files. Needs numpy and ml_dtypes; takes about half a minute.

<format>_from_<source>.txt: one line "start value" (hex) for each run of source bit patterns that
convert to the same byte; a run ends where the next starts, the last one at the end of the patterns.
<format>_decode.txt: one line "code bits" (hex) for each byte, bits of its float32 value; a NaN is
written as 7fc00000.

Two rules are ours and not those of ml_dtypes' cast. It sends what lies beyond the largest finite
value to NaN (E4M3) or Inf (E5M2), so finite values and Inf are clipped to +-max before it (a value
that rounds to max is not changed by that). And it keeps the sign of a NaN, where every NaN is 0x7F
here.
"""

import sys
from pathlib import Path

import ml_dtypes
import numpy as np

HERE = Path(__file__).resolve().parent
FORMATS = {"e4m3": (ml_dtypes.float8_e4m3fn, 448.0), "e5m2": (ml_dtypes.float8_e5m2, 57344.0)}
SOURCES = {
    "f32": (np.float32, np.uint32, 32),
    "f16": (np.float16, np.uint16, 16),
    "bf16": (ml_dtypes.bfloat16, np.uint16, 16),
}
CHUNK = 1 << 22


def convert(bits, source, fmt):
    """The FP8 code of each bit pattern."""
    fp8, largest = FORMATS[fmt]
    x = bits.view(SOURCES[source][0])
    limit = x.dtype.type(largest)  # exact in every source type
    with np.errstate(invalid="ignore"):  # NaNs among the patterns
        codes = np.clip(x, -limit, limit).astype(fp8).view(np.uint8)
        codes[np.isnan(x)] = 0x7F
    return codes


def chunks(source, fmt):
    """All patterns of a source type in order, as (first pattern, codes)."""
    _, unsigned, width = SOURCES[source]
    for start in range(0, 1 << width, CHUNK):
        stop = min(start + CHUNK, 1 << width)
        yield start, convert(np.arange(start, stop, dtype=unsigned), source, fmt)


def runs(source, fmt):
    """Run boundaries, found in the codes of all patterns."""
    table = []
    for start, codes in chunks(source, fmt):
        cuts = np.flatnonzero(codes[1:] != codes[:-1]) + 1
        for i in [0, *cuts.tolist()]:
            if not table or table[-1][1] != codes[i]:
                table.append((start + i, int(codes[i])))
    return table


def check_runs(table, source, fmt):
    """Expands a table and compares it with the code of every pattern."""
    starts = np.array([s for s, _ in table] + [1 << SOURCES[source][2]], dtype=np.int64)
    values = np.array([v for _, v in table], dtype=np.uint8)
    for start, codes in chunks(source, fmt):
        edges = np.clip(starts - start, 0, len(codes))
        expanded = np.repeat(values, np.diff(edges))
        if not np.array_equal(expanded, codes):
            at = start + int(np.flatnonzero(expanded != codes)[0])
            sys.exit(f"{fmt} from {source}: pattern {at:#x} differs")


def decode(fmt):
    values = np.arange(256, dtype=np.uint8).view(FORMATS[fmt][0]).astype(np.float32)
    bits = values.view(np.uint32).copy()
    bits[np.isnan(values)] = 0x7FC00000
    return [(code, int(b)) for code, b in enumerate(bits)]


def read(path):
    rows = [line.split() for line in path.read_text().splitlines()]
    return [(int(a, 16), int(b, 16)) for a, b in rows]


def write(path, table, width):
    path.write_text("".join(f"{a:0{width}x} {b:02x}\n" for a, b in table))


def main():
    check = sys.argv[1:] == ["--check"]
    if sys.argv[1:] and not check:
        sys.exit(__doc__)
    for fmt in FORMATS:
        path = HERE / f"{fmt}_decode.txt"
        if check and read(path) != decode(fmt):
            sys.exit(f"{path.name} differs")
        if not check:
            write(path, decode(fmt), 2)
        for source in SOURCES:
            path = HERE / f"{fmt}_from_{source}.txt"
            if check:
                check_runs(read(path), source, fmt)
            else:
                write(path, runs(source, fmt), SOURCES[source][2] // 4)
            print(f"{path.name}: {len(read(path))} runs over {1 << SOURCES[source][2]} patterns")


if __name__ == "__main__":
    main()
