"""python -m nvte_te enable|disable|doctor|swap|restore"""

import argparse
import ctypes
import glob
import importlib.util
import os
import re
import subprocess
import sys

import nvte_te
from nvte_te import elf, hook, start, versions

# What an extension takes from the library: functions of C, and the C++ names of its namespace.
OURS = re.compile(r"nvte_|_Z\d+nvte_|_Z(N|T[ISV]N)K?18transformer_engine")
# Runs in a process of its own: what the import loads, whatever it is that it needs.
WHICH = """
import transformer_engine.common
for line in open("/proc/self/maps"):
    path = line.split(maxsplit=5)[-1].strip()
    name = path.rsplit("/", 1)[-1]
    if name.startswith("libtransformer_engine") or name.startswith("libnvte.so"):
        print("core:", path)
"""


def package():
    """The folder of Transformer Engine's Python package; None without it."""
    spec = importlib.util.find_spec("transformer_engine")
    return spec.submodule_search_locations[0] if spec and spec.submodule_search_locations else None


def files(pattern):
    """Files of Transformer Engine where its Python code looks for libraries."""
    root = package()
    if root is None:
        return []
    folders = [os.path.dirname(root), root, os.path.join(root, "wheel_lib")]
    return sorted(path for folder in folders for path in glob.glob(os.path.join(folder, pattern)))


def core():
    """The file that Transformer Engine's Python code loads as its library."""
    found = files("libtransformer_engine*.so")
    if len(found) != 1:
        sys.exit(f"expected one library of Transformer Engine, found {found or 'none'}")
    return found[0]


def is_swapped(path):
    return os.path.islink(path) and os.readlink(path) == hook.LIBRARY


def refuse_unknown():
    reason = versions.refusal()
    if reason:
        sys.exit(reason)


def write_switch(word):
    try:
        with open(start.SWITCH, "w") as file:
            file.write(word + "\n")
    except OSError as error:
        sys.exit(f"{error}. For one process, set NVTE_CORE={word}.")


def enable():
    refuse_unknown()
    write_switch("nvte")
    print("Transformer Engine runs on libnvte in this environment; NVTE_CORE=te is the way back for one process.")


def disable():
    write_switch("te")
    print("Transformer Engine runs on its own library in this environment.")


def swap():
    refuse_unknown()
    path = core()
    if is_swapped(path):
        sys.exit(f"{path} is ours already")
    # A name that does not end in .so: Transformer Engine refuses to choose between two libraries.
    os.rename(path, f"{path}.te-{versions.core()[1]}")
    os.symlink(hook.LIBRARY, path)
    # The loader looks for it in the folder of the link.
    beside = os.path.join(os.path.dirname(path), "libnvte.so.0")
    os.symlink(os.path.join(os.path.dirname(hook.LIBRARY), "libnvte.so.0"), beside)
    print(f"{path} is ours now; `python -m nvte_te restore` puts the other one back.")


def restore():
    path = core()
    if not is_swapped(path):
        sys.exit(f"{path} is Transformer Engine's own library: nothing to restore")
    kept = glob.glob(glob.escape(path) + ".te-*")
    if len(kept) != 1:
        sys.exit(f"expected the library that was put aside as {path}.te-VERSION, found {kept or 'none'}")
    os.remove(path)
    os.remove(os.path.join(os.path.dirname(path), "libnvte.so.0"))
    os.rename(kept[0], path)
    print(f"{path} is Transformer Engine's own library again.")


def missing_symbols(extension):
    """Symbols that an extension takes from the core and that ours does not have."""
    library = ctypes.CDLL(hook.LIBRARY)
    names = [name for name in elf.undefined_symbols(extension) if OURS.match(name)]
    return len(names), [name for name in names if not hasattr(library, name)]


def doctor():
    """Prints what is installed and which library runs; 1 if something is wrong."""
    problems = []

    def line(label, text):
        print(f"{label + ':':<13}{text}")

    line("nvte_te", nvte_te.__version__)
    try:
        library = ctypes.CDLL(hook.LIBRARY)
        library.nvtex_version.restype = ctypes.c_char_p
        line("library", f"{library.nvtex_version().decode()}, {hook.LIBRARY}")
    except OSError as error:
        problems.append(f"our library cannot be loaded: {error}")
        library = None
    found = versions.installed()
    for name, version in found.items():
        line("installed", f"{name} {version}")
    by = "NVTE_CORE" if os.environ.get("NVTE_CORE") else "the environment's switch"
    line("wanted", f"{start.wish()} ({by})")
    reason = versions.refusal()
    if reason:
        problems.append(reason)
    for path in files("libtransformer_engine*.so"):
        if is_swapped(path):
            line("swapped", f"{path} is a link to ours")
        elif os.path.islink(path) and not os.path.exists(path):
            problems.append(f"{path} is a link to a library that is not there")
    preloaded = os.environ.get("LD_PRELOAD", "")
    if "libtransformer_engine" in preloaded or "libnvte" in preloaded:
        problems.append(
            "LD_PRELOAD names our library: Python loads the other one as well, and handles of the two mix"
        )

    for path in files("transformer_engine_*.so"):
        if library is None:
            break
        count, missing = missing_symbols(path)
        line("extension", f"{path}: {count} symbols of the core, {len(missing)} missing")
        if missing:
            problems.append(f"{path} needs symbols that our library lacks: {', '.join(missing)}")

    if package() is not None:
        run = subprocess.run([sys.executable, "-c", WHICH], capture_output=True, text=True)
        loaded = sorted({text for text in run.stdout.splitlines() if text.startswith("core: ")})
        for text in loaded:
            line("loaded", text[len("core: "):])
        ours = any(os.path.realpath(text[len("core: "):]) == os.path.realpath(hook.LIBRARY) for text in loaded)
        if run.returncode != 0:
            why = (run.stderr.strip().splitlines() or ["no message"])[-1]
            problems.append(f"import transformer_engine.common fails: {why}")
        elif ours != (start.wish() != "te") and not any(map(is_swapped, files("*.so"))):
            problems.append("the library that is loaded is not the one that is wanted")
    for problem in problems:
        line("problem", problem)
    print("no problem found" if not problems else f"{len(problems)} found")
    return 1 if problems else 0


COMMANDS = {
    "enable": (enable, "use our library in this environment from now on"),
    "disable": (disable, "use Transformer Engine's own library again"),
    "doctor": (doctor, "say what is installed and which library runs"),
    "swap": (swap, "put our library in the place of the other file, for C++ programs that load it"),
    "restore": (restore, "undo swap"),
}


def main():
    parser = argparse.ArgumentParser(prog="python -m nvte_te", description=nvte_te.__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, (_, text) in COMMANDS.items():
        commands.add_parser(name, help=text)
    return COMMANDS[parser.parse_args().command][0]()


if __name__ == "__main__":
    sys.exit(main())
