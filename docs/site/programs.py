"""
Compiles and runs the programs that the pages contain: `programs.py ROOT WORK PREFIX`, with an installed library in PREFIX.

A block of C is a program if it has a `main`: it is compiled with all warnings as errors and run on the CPU backend, and must end
with 0. Without a `main` it is a plugin or a part of a library and is compiled only. A fragment stands behind a comment that has
the rest of its program, with a line `@` for it:

    <!-- program
    #include <nvte/nvte.h>
    int main(void) {
      @
    }
    -->

Several lines `@` take the blocks that follow, in order. Blocks of Python are run as they are, unless they import a package that is
not there. Blocks of CMake and Meson that have a `project` build the first C program of the quickstart as `app.c`.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]
BLOCK = re.compile(r"^<!-- program\n(?P<frame>.*?)^-->|^```(?P<language>\w+)\n(?P<text>.*?)^```", re.DOTALL | re.MULTILINE)


def blocks(path, whole=True):
    """Pairs of language and text of a page's blocks, fragments put into their programs; not `whole`: as pages show them."""
    found, frame = [], None
    for match in BLOCK.finditer(path.read_text()):
        if match["frame"] is not None:
            frame = match["frame"] if whole else None
        elif frame is not None and match["language"] in ("c", "cpp"):
            frame = re.sub(r"(?m)^ *@$", lambda _: match["text"], frame, count=1)
            if not re.search(r"(?m)^ *@$", frame):
                found.append((match["language"], frame))
                frame = None
        else:
            found.append((match["language"], match["text"]))
    if frame is not None:
        raise SystemExit(f"{path}: a program has a line @ for which there is no block")
    return found


class Skipped(str):
    """Why a program was not run, for `cargo xtask`."""


class Programs:
    def __init__(self, root, work, prefix):
        self.root, self.work, self.prefix = root, work, prefix
        self.environment = {
            **os.environ,
            "NVTE_BACKEND": "cpu",
            "NVTE_LIBRARY": str(prefix / "lib/libnvte.so"),
            "LD_LIBRARY_PATH": str(prefix / "lib"),
            "PKG_CONFIG_PATH": str(prefix / "lib/pkgconfig"),
            "PYTHONPATH": str(root / "bindings/python"),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        self.app = next(text for language, text in blocks(root / "docs/guide/quickstart.md") if language == "c")

    def run(self, command, folder, environment=None):
        """The output of a command that failed, or nothing."""
        environment = self.environment if environment is None else environment
        done = subprocess.run(command, cwd=folder, env=environment, text=True, timeout=240, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return f"{shlex.join(map(str, command))}: {done.returncode}\n{done.stdout}" if done.returncode else ""

    def c(self, text, folder, cpp=False):
        source = folder / ("program.cpp" if cpp else "program.c")
        source.write_text(text)
        compiler = os.environ.get("CXX", "c++") if cpp else os.environ.get("CC", "cc")
        command = [compiler, "-std=c++20" if cpp else "-std=c11", *WARNINGS, "-I", self.prefix / "include", source]
        if not re.search(r"\bint main\(", text):
            return self.run([*command, "-c", "-fPIC", "-o", folder / "part.o"], folder)
        link = ["-o", folder / "program", "-L", self.prefix / "lib", "-lnvte", "-ldl", "-lm"]
        return self.run(command + link, folder) or self.run([folder / "program"], folder)

    def cpp(self, text, folder):
        return self.c(text, folder, cpp=True)

    def python(self, text, folder):
        for package in re.findall(r"(?m)^ *(?:import|from) (\w+)", text):
            if package != "nvte" and find_spec(package) is None:
                return Skipped(f"skipped: {package} is not installed")
        (folder / "program.py").write_text(text)
        return self.run([sys.executable, "program.py"], folder)

    def cmake(self, text, folder):
        (folder / "CMakeLists.txt").write_text(text)
        (folder / "app.c").write_text(self.app)
        cmake = os.environ.get("CMAKE", "cmake")
        configure = [cmake, "-G", "Unix Makefiles", f"-DCMAKE_PREFIX_PATH={self.prefix}", "-B", "build", "."]
        return self.run(configure, folder) or self.run([cmake, "--build", "build"], folder) or self.run(["build/app"], folder)

    def meson(self, text, folder):
        (folder / "meson.build").write_text(text)
        (folder / "app.c").write_text(self.app)
        environment = {**self.environment, "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
        meson = [sys.executable, "-m", "mesonbuild.mesonmain"]
        setup = [*meson, "setup", "build", "--pkg-config-path", self.prefix / "lib/pkgconfig"]
        return (
            self.run(setup, folder, environment)
            or self.run([*meson, "compile", "-C", "build"], folder, environment)
            or self.run(["build/app"], folder)
        )

    def recipes(self, text, folder):
        return self.run([sys.executable, self.root / "docs/site/recipes.py", self.root], folder)

    def check(self):
        pages = [self.root / "README.md", *sorted((self.root / "docs").rglob("*.md"))]
        pages += sorted((self.root / "bindings").glob("*/README.md"))
        shutil.rmtree(self.work, ignore_errors=True)
        jobs = []
        for page in pages:
            for number, (language, text) in enumerate(blocks(page), 1):
                if language in ("cmake", "meson") and "project(" not in text:
                    continue
                if language in ("c", "cpp", "python", "cmake", "meson"):
                    name = f"{page.relative_to(self.root)}, block {number} ({language})"
                    folder = self.work / re.sub(r"\W+", "_", name)
                    folder.mkdir(parents=True)
                    jobs.append((name, getattr(self, language), text, folder))
        jobs.append(("docs/site/hardware.md, the table of recipes", self.recipes, "", self.work))
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            results = list(pool.map(lambda job: job[1](job[2], job[3]), jobs))
        failed = 0
        for (name, *_), fault in zip(jobs, results):
            # Lines that `cargo xtask` reads.
            print(f"{name} ... {fault if isinstance(fault, Skipped) else 'FAILED' if fault else 'ok'}")
            if fault and not isinstance(fault, Skipped):
                failed += 1
                print(fault)
        return failed


if __name__ == "__main__":
    root, work, prefix = (Path(argument).resolve() for argument in sys.argv[1:4])
    raise SystemExit(1 if Programs(root, work, prefix).check() else 0)
