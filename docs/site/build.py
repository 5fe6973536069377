"""
Builds the documentation site: `build.py ROOT OUT VERSION`. `cargo xtask docs` calls it with Sphinx on the path.

The pages are the Markdown files of the repository, so that they read as well there: `docs/`, the sections of README.md,
and the generated reference. They are copied into OUT/source at the places that they have in the repository, so that links
between them and to examples hold. What OUT/html then has needs no network. Links are checked, within the site and to
the anchors of its pages.
"""

import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import tables
from examples import Examples
from reference import Reference

SITE = Path(__file__).resolve().parent
# Pages of the repository beside docs/, which links lead to.
PAGES = ["BENCHMARKS.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "examples/README.md"]
# Files that pages may link to: they are offered for download.
FOLDERS = ["examples", "cmake", "bindings", "capi-tests", "tests/front_end", "include", "docs"]


def slug(title):
    """The anchor that a title has on a page."""
    return re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-")


def outside_of_code(text, change):
    """Changes what is not a block of code."""
    pieces = re.split(r"(?ms)^(```.*?^```[ ]*$)", text)
    pieces[::2] = [change(piece) for piece in pieces[::2]]
    return "".join(pieces)


class Builder:
    def __init__(self, root, out):
        self.root, self.source, self.html = root, out / "source", out / "html"
        self.examples = Examples(root)
        self.reference = Reference(root / "include/nvte", self.examples)
        # Where each section of README.md is, and each heading in it.
        self.sections = {}

    def links(self, text, folder):
        """Links to sections of README.md, and to folders, lead to pages of the site."""

        def target(match):
            link = match.group(1)
            path, _, anchor = link.partition("#")
            if re.match(r"[a-z]+:", link):
                return match.group()
            here = (folder / path) if path else None
            if path and here.is_dir():
                here = here / "README.md"
                link = f"{path.rstrip('/')}/README.md"
            if (path and here.resolve() == self.root / "README.md") or (not path and folder == self.root):
                page = self.sections.get(anchor, "readme-try-it")
                up = "../" * len(folder.relative_to(self.root).parts)
                link = f"{up}{page}.md" + (f"#{anchor}" if anchor and page != f"readme-{anchor}" else "")
            return f"]({link})"

        return re.sub(r"\]\(([^()\s]+)\)", target, text)

    def page(self, text, folder):
        return outside_of_code(text, lambda piece: self.reference.link(self.links(piece, folder)))

    def put(self, path, text):
        path = self.source / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def copy_files(self):
        for folder in FOLDERS:
            for path in (self.root / folder).rglob("*"):
                parts = path.relative_to(self.root).parts
                if path.is_file() and path.suffix not in (".md", ".pyc") and "target" not in parts:
                    to = self.source / path.relative_to(self.root)
                    to.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(path, to)
        for name in ("LICENSE", "Cargo.toml"):
            shutil.copy(self.root / name, self.source)
        (self.source / "_static").mkdir()
        shutil.copy(SITE / "site.css", self.source / "_static")

    def readme(self):
        """A page for each section of README.md; returns what docs/functions.md says of each header."""
        text = (self.root / "README.md").read_text()
        parts = re.split(r"(?m)^## (.+)$", text)
        for title, body in zip(parts[1::2], parts[2::2]):
            name = f"readme-{slug(title)}"
            for heading in [title, *re.findall(r"(?m)^###+ (.+)$", outside_of_code(body, str))]:
                self.sections[slug(heading)] = name
        for title, body in zip(parts[1::2], parts[2::2]):
            body = outside_of_code(body, lambda piece: re.sub(r"(?m)^##(#+) ", r"#\1 ", piece))
            self.put(f"readme-{slug(title)}.md", self.page(f"# {title}\n{body}", self.root))
        rows = re.findall(r"(?m)^\| (`nvte/.+?) \| (.+) \|$", (self.root / "docs/functions.md").read_text())
        rows = [(names, re.sub(r"\]\((?!\w+:)", "](../docs/", self.links(says, self.root / "docs"))) for names, says in rows]
        return {header: says[0].upper() + says[1:] + "." for names, says in rows for header in re.findall(r"`(.+?)`", names)}

    def guides(self):
        pages = [*(self.root / "docs").rglob("*.md"), *(self.root / p for p in PAGES)]
        pages += (self.root / "bindings").glob("*/README.md")
        pages += (self.root / "tests/front_end").glob("README.md")
        for path in pages:
            if SITE in path.parents:
                continue
            text = self.page(path.read_text(), path.parent)
            self.put(path.relative_to(self.root), text)

    def index(self):
        """The first page, whose last list gets the pages of docs/ that no list names."""
        text = (SITE / "index.md").read_text()
        found = {str(p.relative_to(self.source).with_suffix("")) for p in self.source.rglob("*.md")}
        named = set(re.findall(r"(?m)^(?:.+<)?([\w/.-]+)>?$", "\n".join(re.findall(r"(?s)```\{toctree\}(.*?)```", text))))
        rest = sorted(p for p in found - named if p.startswith("docs/"))
        self.put("index.md", self.page(text.replace("@rest@", "\n".join(rest)), self.root))
        for page in found - named - set(rest):
            if not page.startswith("reference/"):
                path = self.source / f"{page}.md"
                path.write_text(f"---\norphan: true\n---\n\n{path.read_text()}")

    def run(self, version):
        shutil.rmtree(self.source.parent, ignore_errors=True)
        self.source.mkdir(parents=True)
        self.copy_files()
        intros = self.readme()
        self.guides()
        self.put("docs/tables.md", self.page(tables.page(self.root, self.reference), self.root / "docs"))
        faults = self.examples.check(self.reference.functions())
        if faults:
            raise SystemExit("\n".join(faults))
        self.reference.write(self.source / "reference", intros)
        self.index()
        shutil.copy(SITE / "conf.py", self.source)
        sphinx = [sys.executable, "-m", "sphinx", "-b", "html", "-q", "-W", "--keep-going", "-j", "2"]
        options = ["-D", f"version={version}", "-D", f"release={version}", "-D", f"html_title=nvte {version}"]
        done = subprocess.run([*sphinx, *options, "-d", self.source.parent / "cache", self.source, self.html])
        if done.returncode:
            raise SystemExit("sphinx found faults in the pages")
        faults = check_links(self.html)
        if faults:
            raise SystemExit("\n".join(faults))


class Page(HTMLParser):
    """Links of a page, its anchors, and what a browser loads with it."""

    def __init__(self, text):
        super().__init__()
        self.links, self.anchors, self.loads = [], set(), []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.anchors |= {attributes.get("id"), attributes.get("name")} - {None}
        if tag == "a" and attributes.get("href"):
            self.links.append(attributes["href"])
        for name in ("src", "href"):
            if tag in ("script", "img", "link", "iframe", "source") and attributes.get(name):
                if not (tag == "link" and attributes.get("rel") in ("canonical", "search", "index", "next", "prev")):
                    self.loads.append(attributes[name])


def check_links(html):
    """Faults of all links: files and anchors that are not there, and loads from elsewhere."""
    pages = {path: Page(path.read_text()) for path in html.rglob("*.html")}
    faults = []
    for path, page in pages.items():
        where = path.relative_to(html)
        for link in page.links + page.loads:
            parts = urlsplit(link)
            if parts.scheme in ("data", "mailto"):
                continue
            if parts.scheme or parts.netloc:
                if link in page.loads:
                    faults.append(f"{where}: is loaded from the network: {link}")
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.is_file():
                faults.append(f"{where}: leads nowhere: {link}")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                faults.append(f"{where}: no such anchor: {link}")
    print(f"{len(pages)} pages, {sum(len(p.links) for p in pages.values())} links")
    return faults


if __name__ == "__main__":
    Builder(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()).run(sys.argv[3])
