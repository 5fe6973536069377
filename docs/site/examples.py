"""
Examples of the reference: for each function the shortest excerpt that calls it, of the programs of the pages, of
examples/ and of capi-tests/, all of which the tests compile and run. So no example can be out of date.
"""

import re
from dataclasses import dataclass

from programs import blocks

# An excerpt has no more lines than this, of which so many stand behind the call.
MOST, BEHIND = 26, 6
# Programs of pages and examples are for readers, those of tests have helpers, and some of these call with wrong arguments: one
# of the former is taken unless it is worse by so many lines.
PATIENCE = {"test": 25, "wrong": 100}
WRONG = ("bad_", "_faults", "_errors", "limits")
# Lines that show a call with what it needs.
BEST = 16
# Functions that no program here can call, and why.
NONE = {
    "nvtex_plugin_v0": "a plugin defines it; see [the walk-through](../docs/plugins.md)",
    "nvtex_communicator_create_from_nccl": "it takes the communicator of another library, of several GPUs",
    "nvtex_communicator_create_nccl_shared": "it needs several GPUs",
}

CALL = r"(?<![\w>.]){}\("


@dataclass
class Body:
    """A function of a program, or a block of a page that is a part of one."""

    path: object
    lines: list
    first: int  # line of the file, from 1; 0 for a block
    test: bool

    def excerpt(self, name):
        """The lines to show, and the number of the first."""
        calls = [i for i, line in enumerate(self.lines) if re.search(CALL.format(name), line)]
        if len(self.lines) <= MOST:
            return self.lines, 0
        at = calls[0]
        end = min(at + BEHIND + 1, len(self.lines))
        start = max(end - MOST + 2, 0)
        # Not in the middle of a statement: behind a line that ends one.
        while 0 < start < at and not self.lines[start - 1].rstrip().endswith((";", "{", "}")):
            start += 1
        while end < len(self.lines) and not self.lines[end - 1].rstrip().endswith((";", "{", "}")):
            end += 1
        shown = self.lines[start:end]
        if start > 0:
            shown = [self.lines[0] if self.first else "", "  /* ... */", *(line for line in shown if line.strip())]
        return shown if end == len(self.lines) else [*shown, "  /* ... */"], start

    def cost(self):
        """How far the excerpt is from a good one, in lines."""
        wrong = self.test and any(word in self.path.stem for word in WRONG)
        apart = abs(min(len(self.lines), 2 * MOST) - BEST)
        return apart + PATIENCE["test"] * self.test + PATIENCE["wrong"] * wrong


def functions(lines):
    """The functions of a file as pairs of line numbers: what begins in the first column and ends with `}` there."""
    start = None
    for i, line in enumerate(lines):
        if line == "}" and start is not None:
            if "(" in lines[start]:
                yield start, i + 1
            start = None
        elif start is None and re.match(r"[A-Za-z]", line) and not re.match(r"(typedef|enum|struct|union|extern \"C\")\b", line):
            start = i
        if start is not None and re.match(r"\S.*;$|\};$", line):
            start = None


class Examples:
    def __init__(self, root):
        self.root, self.bodies = root, []
        pages = [root / "README.md", *sorted((root / "docs").rglob("*.md"))]
        for path in pages:
            for language, text in blocks(path, whole=False):
                if language == "c":
                    self.add(path, text.rstrip("\n").split("\n"), page=True)
        for pattern in ("examples/*.c", "capi-tests/*/*.c", "capi-tests/*/*.h", "include/nvte/conform.h"):
            for path in sorted(root.glob(pattern)):
                if path.parent.name not in ("fuzz", "old") and path.name != "symbols.c":
                    self.add(path, path.read_text().split("\n"))
        self.words = [set(re.findall(r"\w+(?=\()", "\n".join(body.lines))) for body in self.bodies]

    def add(self, path, lines, page=False):
        found = list(functions(lines))
        test = not page and path.parent.name != "examples"
        if page and not found:
            self.bodies.append(Body(path, lines, 0, test))
        for start, end in found:
            self.bodies.append(Body(path, lines[start:end], start + 1, test))

    def best(self, name):
        """The body whose excerpt is shown; none if nothing calls the function."""
        found = [body for body, words in zip(self.bodies, self.words) if name in words]
        calls = [body for body in found if any(re.search(CALL.format(name), line) for line in body.lines[bool(body.first):])]
        return min(calls, key=Body.cost, default=None)

    def markdown(self, name):
        """What the page of a function shows; empty for a function of which NONE says why."""
        if name in NONE:
            return f"**Example**: none, since {NONE[name]}."
        body = self.best(name)
        if body is None:
            return None
        shown, _ = body.excerpt(name)
        path = body.path.relative_to(self.root)
        label = "README.md" if path.name == "README.md" else str(path)
        link = "../readme-use-it-from-c.md" if path.name == "README.md" else f"../{path}"
        note = " ([helpers](../capi-tests/support.h))" if "capi-tests" in path.parts else ""
        code = "\n".join(["```c", *shown, "```"])
        return f"**Example**, of [{label}]({link}){note}:\n\n{code}"

    def check(self, names):
        """Faults: functions without an example, and exceptions that are none."""
        faults = [f"{name}: no program calls it, so that the reference has no example" for name in names
                  if name not in NONE and self.best(name) is None]
        faults += [f"{name}: has no need to be in NONE of examples.py" for name in NONE
                   if name not in names or self.best(name) is not None]
        print(f"{len(names)} functions, {len(NONE)} of them without an example")
        return faults
