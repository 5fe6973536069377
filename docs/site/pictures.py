"""
Draws the pictures of the guides: `pictures.py [--check]` writes docs/pictures/*.svg, or says which are not up to date.

They are drawn on white, so that they read alike in light and dark pages.
"""

import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "pictures"
INK, GREY, BLUE, GREEN, ORANGE = "#1f2933", "#9aa5b1", "#cfe3ff", "#d3f2d9", "#ffe3c2"
SHADES = ["#cfe3ff", "#a9ccff", "#d3f2d9", "#aee3ba", "#ffe3c2", "#ffcb94", "#eadcff", "#d3bcff"]


class Picture:
    def __init__(self, width, height):
        self.size, self.parts = (width, height), []

    def add(self, element):
        self.parts.append(element)

    def rect(self, x, y, width, height, fill="white", stroke=INK, round=0):
        self.add(f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="{round}" fill="{fill}" stroke="{stroke}"/>')

    def text(self, x, y, text, size=13, anchor="middle", weight="normal", fill=INK):
        text = text.replace("&", "&amp;").replace("<", "&lt;")
        self.add(f'<text x="{x}" y="{y}" font-size="{size}" text-anchor="{anchor}" font-weight="{weight}" fill="{fill}">{text}</text>')

    def box(self, x, y, lines, fill, width=120, height=44):
        """A box with its centre at x, y, and lines of text."""
        self.rect(x - width / 2, y - height / 2, width, height, fill, round=6)
        for i, line in enumerate(lines):
            self.text(x, y + 5 + 15 * (i - (len(lines) - 1) / 2), line)

    def arrow(self, *points, label=None, dashed=False, at=None):
        path = " ".join(f"{x},{y}" for x, y in points)
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self.add(f'<polyline points="{path}" fill="none" stroke="{INK}"{dash} marker-end="url(#tip)"/>')
        if label:
            x, y = at or ((points[0][0] + points[-1][0]) / 2, (points[0][1] + points[-1][1]) / 2 - 6)
            self.text(x, y, label, 12)

    def svg(self, title):
        width, height = self.size
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            f'font-family="sans-serif" role="img">\n<title>{title}</title>\n'
            '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">'
            f'<path d="M0,0 L10,5 L0,10 z" fill="{INK}"/></marker></defs>\n'
            f'<rect width="{width}" height="{height}" fill="white" rx="8"/>\n'
        )
        return head + "\n".join(self.parts) + "\n</svg>\n"


def recipe():
    p = Picture(860, 330)
    for y, name, fill in ((70, "input x, BF16", BLUE), (200, "weight w, BF16", GREEN)):
        p.box(85, y, [name], fill)
        p.box(290, y, ["x scale, cast", "to E4M3"], "white")
        p.arrow((145, y), (230, y))
    p.box(510, 135, ["product", "of FP8 tensor cores"], ORANGE, 150)
    p.arrow((350, 70), (400, 70), (400, 125), (435, 125), label="FP8", at=(375, 62))
    p.arrow((350, 200), (400, 200), (400, 145), (435, 145), label="FP8", at=(375, 216))
    p.box(760, 135, ["output y, BF16"], BLUE, 130)
    p.arrow((585, 135), (695, 135), label="x scale_inv", at=(640, 112))
    p.text(640, 127, "of both", 12)
    p.box(290, 285, ["amax histories", "of all operands"], "white", 130)
    p.arrow((250, 222), (250, 263), dashed=True, label="amax", at=(226, 246))
    p.add(f'<polyline points="230,82 195,82 195,285 225,285" fill="none" stroke="{INK}" stroke-dasharray="5 4" marker-end="url(#tip)"/>')
    p.text(176, 150, "amax", 12)
    p.box(510, 285, ["update after the step:", "next scales"], "white", 170)
    p.arrow((355, 285), (425, 285))
    p.add(f'<polyline points="510,263 510,240 330,240 330,222" fill="none" stroke="{INK}" stroke-dasharray="5 4" marker-end="url(#tip)"/>')
    p.text(430, 234, "scales of the next step", 12)
    p.text(85, 30, "delayed scaling, forward pass", 14, weight="bold", anchor="start")
    p.text(620, 230, "The casts also write the transposes", 12, anchor="start")
    p.text(620, 246, "that the backward pass multiplies.", 12, anchor="start")
    return p.svg("Data flow of a linear layer in FP8 with delayed scaling")


def blocks():
    """A square of 8 x 8 cells, each of 16 x 16 elements, beside the scales of each mode."""
    p = Picture(860, 300)
    modes = [
        ("per tensor", "1 Float32", 8, 8),
        ("FP8 blocks, 2D", "Float32 for 128 x 128", 4, 4),
        ("FP8 blocks, 1D", "Float32 for 1 x 128", 1, 4),
        ("MXFP8", "E8M0 for 1 x 32", 1, 2),
        ("NVFP4", "E4M3 for 1 x 16, and", 1, 1),
    ]
    cell = 18
    for m, (name, scale, height, width) in enumerate(modes):
        left, top = 14 + m * 170, 70
        p.text(left + 4 * cell, 34, name, 14, weight="bold")
        p.text(left + 4 * cell, 54, scale, 12)
        for row in range(0, 8, height):
            for column in range(0, 8, width):
                number = (row // height) * 3 + column // width
                p.rect(left + column * cell, top + row * cell, width * cell, height * cell, SHADES[number % len(SHADES)])
    p.text(14 + 4 * 170 + 4 * cell, 232, "1 Float32 for the tensor", 12)
    p.text(430, 262, "Each colour is a set of elements that share a scale, in one direction of a tensor (not to scale).", 12)
    p.text(430, 280, "The column-wise direction has the same blocks along the columns.", 12)
    return p.svg("Elements that share a scale in each scaling mode")


def masks():
    p = Picture(860, 250)
    window = [
        ("causal, top left", 4, 6, lambda q, k: k <= q),
        ("causal, bottom right", 4, 6, lambda q, k: k <= q + 2),
        ("window of 2 to the left", 6, 6, lambda q, k: q - 2 <= k <= q),
        ("packed, causal: 2, 3, 1 tokens", 6, 6, lambda q, k: k <= q and (q < 2) == (k < 2) and (q < 5) == (k < 5)),
    ]
    cell = 22
    for m, (name, rows, columns, seen) in enumerate(window):
        left, top = 40 + m * 210, 60
        p.text(left + columns * cell / 2, 30, name, 13, weight="bold")
        p.text(left + columns * cell / 2, 52, "keys", 11)
        p.add(f'<text transform="translate({left - 8},{top + rows * cell / 2}) rotate(-90)" font-size="11" text-anchor="middle" fill="{INK}">queries</text>')
        for q in range(rows):
            for k in range(columns):
                p.rect(left + k * cell, top + q * cell, cell, cell, "#a9ccff" if seen(q, k) else "white", GREY)
    p.text(430, 228, "A query (row) sees the keys (columns) that are coloured.", 12)
    return p.svg("Masks of attention")


def main():
    check = "--check" in sys.argv
    stale = []
    for draw in (recipe, blocks, masks):
        path = FOLDER / f"{draw.__name__}.svg"
        text = draw()
        if check and (not path.is_file() or path.read_text() != text):
            stale.append(f"{path.name} is not what docs/site/pictures.py draws: run it")
        elif not check:
            path.write_text(text)
    if stale:
        raise SystemExit("\n".join(stale))


if __name__ == "__main__":
    main()
