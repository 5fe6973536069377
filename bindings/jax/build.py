"""Compiles the handlers: `python build.py --prefix DIR`, with an installation of nvte in DIR."""

import argparse
import importlib.util
import os
import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent / "nvte_jax"


def build(prefix, out):
    """Compiles against jaxlib's headers; the handlers find the library by their run path."""
    jaxlib = Path(importlib.util.find_spec("jaxlib").origin).parent
    compiler = os.environ.get("CXX", "c++")
    command = [compiler, "-std=c++17", "-O2", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror", "-o", out, HERE / "handlers.cpp"]
    command += ["-I", prefix / "include", "-isystem", jaxlib / "include", "-L", prefix / "lib", "-lnvte", f"-Wl,-rpath,{prefix}/lib"]
    subprocess.run(command, check=True)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--prefix", type=Path, required=True)
    arguments.add_argument("--out", type=Path, default=HERE / "handlers.so")
    options = arguments.parse_args()
    build(options.prefix.resolve(), options.out)
    print(options.out)
