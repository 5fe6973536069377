"""
The reference: a page for each public header, made of its declarations and the comments above them.

The headers are generated, so that few forms occur: a comment `/** ... */` followed by a macro, an enumeration, a struct,
a type or a function. What this file does not understand is an error, so that nothing is missing silently.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

# First words of paragraphs of a comment, which readers look for.
LABELS = (
    "What it computes|Shapes|Dtypes|Scales|Workspace|Notes|Errors|Source|Options|Amax|Overlaps|Targets|Parameters|Lists|"
    "Inputs|Outputs|Forward|Backward|Defaults|Groups|Gradients|Factors|Config|Arrays|Members|Layout|Parts|Memory|Returns"
)

ROLES = {"function": "func", "enumerator": "enumerator", "struct": "struct", "enum": "enum", "type": "type", "macro": "macro"}


@dataclass
class Item:
    """A declaration."""

    kind: str  # a key of ROLES, or `member`
    name: str
    signature: str
    doc: str
    parts: list = field(default_factory=list)  # enumerators and members

    def first_sentence(self):
        text = " ".join(self.doc.split("\n\n")[0].split())
        match = re.match(r"((?:`[^`]*`|[^`])+?\.)(\s|$)", text)
        return (match.group(1) if match else text).rstrip(":")


def comment_text(comment):
    """The text of `/** ... */` without its stars."""
    lines = comment.strip().removeprefix("/**").removesuffix("*/").split("\n")
    return "\n".join(re.sub(r"^\s*\* ?", "", line).rstrip() for line in lines).strip()


TOKEN = re.compile(
    r"(?P<comment>/\*\*.*?\*/)"
    r"|(?P<plain>/\*.*?\*/|//[^\n]*)"
    r"|(?P<directive>^#(?:[^\n\\]|\\\n|\\.)*)"
    r"|(?P<extern>extern \"C\"(?:\+\+)? \{|^\}[^;\n]*$)"
    r"|(?P<declaration>(?:typedef )?(?:enum|struct)\s+\w+\s*\{.*?^\}[^;]*;|[^;{}#/]+;)",
    re.DOTALL | re.MULTILINE,
)


def squeeze(text):
    return re.sub(r"\s+", " ", text).replace("( ", "(").strip()


def name_of(declarator):
    """The name that a declarator declares: of a function pointer, of an array, or the last word."""
    match = re.search(r"\(\s*\*\s*(\w+)\s*(?:\[[^]]*\])?\)\s*\(", declarator)
    match = match or re.search(r"(\w+)\s*\(", declarator) or re.search(r"(\w+)\s*(?:\[[^]]*\]\s*)*$", declarator)
    return match.group(1)


def parts_of(body, kind):
    """Members of a struct, or enumerators."""
    separator = "," if kind == "enumerator" else ";"
    found, doc, text = [], "", ""
    depth = 0
    for piece in re.split(r"(/\*\*.*?\*/|/\*.*?\*/|//[^\n]*|[(){},;])", body, flags=re.DOTALL):
        if piece.startswith("/**"):
            doc = comment_text(piece)
        elif piece.startswith(("/*", "//")):
            continue
        elif piece == separator and depth == 0:
            if squeeze(text):
                found.append((squeeze(text), doc))
            text, doc = "", ""
        else:
            depth += {"(": 1, ")": -1}.get(piece, 0)
            text += piece
    if squeeze(text):
        found.append((squeeze(text), doc))
    name = (lambda text: text.split("=")[0].strip()) if kind == "enumerator" else name_of
    return [Item(kind, name(text), text, doc) for text, doc in found]


def parse(path):
    """The declarations of a header, in their order."""
    text = preprocessed(path.read_text())
    items, doc, at = [], "", 0
    while at < len(text):
        if text[at].isspace():
            # The end of a directive keeps the comment only for what follows at once.
            at += 1
            continue
        match = TOKEN.match(text, at)
        if not match:
            raise SystemExit(f"{path}: not understood: {text[at:at + 80]!r}")
        at = match.end()
        kind, piece = match.lastgroup, match.group()
        if kind == "comment":
            doc = comment_text(piece)
            continue
        if kind == "directive":
            macro = re.match(r"#define (\w+)(\([^)]*\))?[ \t]*(\S?)", piece)
            if macro and doc:
                items.append(Item("macro", macro.group(1), macro.group(1) + (macro.group(2) or ""), doc))
                value = squeeze(piece[macro.start(3):])
                if not macro.group(2) and re.fullmatch(r"-?\w+", value):
                    items[-1].doc += f"\n\nValue: `{value}`."
            elif macro and macro.group(3) and not macro.group(2) and items and items[-1].kind == "macro":
                items.append(Item("macro", macro.group(1), macro.group(1), ""))
            doc = ""
        elif kind == "declaration":
            item = declaration(squeeze(re.sub(r"^\s*", "", piece)), piece, doc)
            if item:
                items.append(item)
            doc = ""
    return items


def preprocessed(text):
    """The text as a compiler of C11 sees it, with macros and comments left alone."""
    lines, stack = [], [True]
    for line in text.split("\n"):
        if re.match(r"#\s*if", line):
            stack.append("ifndef" in line or not re.search(r"__cplusplus|__STDC_VERSION__|_MSC_VER", line))
        elif re.match(r"#\s*else", line):
            stack[-1] = not stack[-1]
        elif re.match(r"#\s*endif", line):
            stack.pop()
        elif all(stack):
            lines.append(line)
    return "\n".join(lines)


def declaration(flat, piece, doc):
    match = re.match(r"(?:typedef )?(enum|struct)\s+(\w+)\s*\{(.*)\}\s*(\w*)\s*;", piece, re.DOTALL)
    if match:
        kind, name, body, typedef = match.groups()
        part = "enumerator" if kind == "enum" else "member"
        return Item(kind, typedef or name, typedef or name, doc, parts_of(body, part))
    flat = flat.removesuffix(";").strip()
    if flat.startswith("typedef "):
        flat = flat.removeprefix("typedef ")
        # A tag and its name say nothing that the handle does not say.
        if re.fullmatch(r"struct (\w+) \1", flat):
            return Item("type", flat.split()[-1], flat.split()[-1], doc) if doc else None
        return Item("type", name_of(flat), flat, doc)
    if "(" in flat and not flat.startswith(("NVTEX_ASSERT", "static_assert", "_Static_assert", "static ")):
        # The first name before a parenthesis: a parameter that is a pointer to a function comes later.
        name = re.search(r"(\w+)\s*\(", flat).group(1)
        return Item("function", name, flat.removeprefix("extern ").removeprefix("NVTEX_PLUGIN_EXPORT "), doc)
    return None


class Reference:
    """All headers, and the names in them."""

    def __init__(self, include, examples=None):
        self.examples = examples
        public = sorted(include.glob("*.h"))
        # A list of all headers, and the programs of the judge.
        skipped = {"nvte.h"} | {path.name for path in include.glob("conform*.h")}
        self.headers = {f"nvte/{p.name}": parse(p) for p in public if p.name not in skipped}
        self.backend = {f"nvte/backend/{p.name}": parse(p) for p in sorted((include / "backend").glob("*.h"))}
        self.roles, seen = {}, set()
        for items in [*self.headers.values(), *self.backend.values()]:
            # A name that two headers declare is documented where it is first.
            # Types that only name an enumeration for C are left out.
            names = {item.name for item in items if item.kind in ("enum", "struct")}
            items[:] = [i for i in items if (i.kind, i.name) not in seen and not (i.kind == "type" and i.name in names)]
            for item in items:
                seen.add((item.kind, item.name))
                self.roles.setdefault(item.name, ROLES[item.kind])
                for part in item.parts:
                    if part.kind == "enumerator":
                        self.roles.setdefault(part.name, "enumerator")

    def link(self, text):
        """Makes references of the names of declarations that stand between backquotes."""
        def reference(match):
            role = self.roles.get(match.group(1))
            return f"{{c:{role}}}`{match.group(1)}`" if role else match.group()

        # A label of a link cannot contain another link.
        return re.sub(r"(?<![`\w\[}])`(\w+)`(?![`\]])", reference, text)

    def markdown(self, doc):
        """The text of a comment as Markdown."""
        pieces = re.split(r"(`+[^`]*`+)", doc)
        pieces[::2] = [re.sub(r"([<*$])", r"\\\1", piece) for piece in pieces[::2]]
        doc = re.sub(rf"(?m)(^|\n\n)({LABELS})(?=[:,])", r"\1**\2**", "".join(pieces))
        return self.link(doc)

    def item(self, item, fence="::::"):
        kind = item.kind
        lines = [f"{fence}{{c:{kind}}} {item.signature}", "", self.markdown(item.doc), ""]
        for part in item.parts:
            lines += [self.item(part, fence[:-1]), ""]
        return "\n".join([*lines, fence])

    def page(self, header, items, intro):
        functions = [item for item in items if item.kind == "function"]
        others = [item for item in items if item.kind != "function"]
        lines = [f"# `{header}`", "", intro, "", "```c", f"#include <{header}>", "```", ""]
        if functions:
            lines += ["| function | |", "|---|---|"]
            for item in functions:
                sentence = self.markdown(item.first_sentence()).replace("|", "\\|")
                lines.append(f"| {{c:func}}`{item.name}` | {sentence} |")
            lines += ["", "## Functions", ""]
        for item in functions:
            lines += [f"### `{item.name}`", "", self.item(item), ""]
            example = self.examples and self.examples.markdown(item.name)
            if example:
                lines += [example, ""]
        if others:
            lines += ["## Types and constants", ""]
            for item in others:
                lines += [self.item(item), ""]
        return "\n".join(lines)

    def functions(self):
        """The names of all functions of programs."""
        return [item.name for items in self.headers.values() for item in items if item.kind == "function"]

    def write(self, folder, intros):
        """Writes all pages, and a page that lists them."""
        folder.mkdir(parents=True, exist_ok=True)
        lists = []
        for headers in (self.headers, self.backend):
            names = []
            for header, items in headers.items():
                name = header.removeprefix("nvte/").removesuffix(".h").replace("/", "_")
                (folder / f"{name}.md").write_text(self.page(header, items, self.link(intros.get(header, ""))))
                names.append(name)
            lists.append("\n".join(names))
        functions = len(self.functions())
        text = (
            f"# Reference\n\nAll {functions} functions of the public headers, with their types. `#include <nvte/nvte.h>` "
            "has all of them but `plugin.h`. Functions that begin with `nvte_` are those of the ABI; those that begin "
            "with `nvtex_` are additions of this library.\n\n"
            f"```{{toctree}}\n:maxdepth: 1\n\n{lists[0]}\n```\n\n## Arguments of operators\n\n"
            "What implementations of plugins get, and what runs between the library and its backends. Programs do not "
            f"need these headers.\n\n```{{toctree}}\n:maxdepth: 1\n\n{lists[1]}\n```\n"
        )
        (folder / "index.md").write_text(text)
