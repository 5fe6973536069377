"""Downloads what a GPU machine without network needs to run the other library's front ends 2.20.2
on either core.

    prepare.py DIR

About 29 MB: its core (device code of sm_90 alone), its Python tree, the source packages of both
extensions, cuDNN's frontend headers, and wheels of Python packages that it imports.

Build and run these; this project does not read their sources. run.sh uses DIR on the GPU
machine.
"""

import glob
import html
import lzma
import os
import re
import struct
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
import zipfile

VERSION = "2.20.2"
PLATFORMS = (
    "manylinux_2_28_x86_64",
    "manylinux_2_27_x86_64",
    "manylinux_2_17_x86_64",
    "manylinux2014_x86_64",
)


def wheel(folder, *packages):
    """Downloads wheels for Python 3.12 on x86-64, without what they depend on."""
    for package in packages:
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "-q",
            "--no-deps",
            "--only-binary=:all:",
            "--python-version",
            "3.12",
            "--implementation",
            "cp",
        ]
        for platform in PLATFORMS:
            command += ["--platform", platform]
        subprocess.run(command + ["-d", folder, package], check=True)


def source(folder, name):
    """Downloads a source package. pip would first build its metadata, which needs the framework,
    so only its address is used."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "-vv",
        "--no-deps",
        "--no-binary=:all:",
        "-d",
        folder,
        f"{name}=={VERSION}",
    ]
    target = f"{name}-{VERSION}.tar.gz"
    with tempfile.TemporaryDirectory() as scratch:
        command[command.index("-d") + 1] = scratch
        pip = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        found = next(
            (
                m
                for m in (
                    re.search(r"(https?://\S+" + re.escape(target) + ")", line)
                    for line in pip.stdout
                )
                if m
            ),
            None,
        )
        pip.terminate()
        pip.wait()
    if not found:
        sys.exit(f"pip names no address of {target}")
    urllib.request.urlretrieve(html.unescape(found.group(1)), os.path.join(folder, target))


def keep_architecture(data, architecture):
    """Zeroes the device code of all other architectures in a shared library, which then compresses
    well.

    A fat binary starts with a magic number, its header's size and its total size; it holds
    entries, each with the size of its header, the size of its contents and an architecture.
    Sizes do not change, so every offset stays valid.
    """
    magic, found = struct.pack("<I", 0xBA55ED50), -1
    while (found := data.find(magic, found + 1)) >= 0:
        header, total = struct.unpack_from("<HQ", data, found + 6)
        entry = found + header
        while entry < found + header + total:
            entry_header, size = struct.unpack_from("<IQ", data, entry + 4)
            if struct.unpack_from("<I", data, entry + 28)[0] != architecture:
                data[entry + entry_header : entry + entry_header + size] = bytes(size)
            entry += entry_header + size
        found += total
    return data


def main(folder):
    wheels = os.path.join(folder, "whl")
    os.makedirs(wheels, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        wheel(scratch, f"transformer_engine_cu13=={VERSION}")
        with zipfile.ZipFile(glob.glob(scratch + "/*.whl")[0]) as archive:
            core = bytearray(archive.read("transformer_engine/wheel_lib/libtransformer_engine.so"))
            archive.extractall(
                scratch + "/tree", [name for name in archive.namelist() if not name.endswith(".so")]
            )
        with lzma.open(os.path.join(folder, "core.so.xz"), "wb", preset=6) as out:
            out.write(keep_architecture(core, 90))
        with tarfile.open(os.path.join(folder, "pytree.tar.xz"), "w:xz") as out:
            out.add(scratch + "/tree/transformer_engine", "transformer_engine")
    for name in ("transformer_engine_torch", "transformer_engine_jax"):
        source(folder, name)
    with tempfile.TemporaryDirectory() as scratch:
        # The JAX extension is built against these headers and finds them by this distribution.
        wheel(scratch, "nvidia-cudnn-frontend")
        with zipfile.ZipFile(glob.glob(scratch + "/*.whl")[0]) as archive:
            archive.extractall(
                scratch + "/tree",
                [
                    name
                    for name in archive.namelist()
                    if re.match(r"include/|[^/]*\.dist-info/(METADATA|RECORD|WHEEL)$", name)
                ],
            )
        with tarfile.open(os.path.join(folder, "cudnn_frontend.tar.xz"), "w:xz") as out:
            out.add(scratch + "/tree", ".")
    wheel(wheels, "pydantic", "nvdlfw-inspect", "typing_inspection", "annotated_types")
    with zipfile.ZipFile(glob.glob(wheels + "/pydantic-*.whl")[0]) as archive:
        metadata = archive.read(
            next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        ).decode()
    wheel(
        wheels,
        "pydantic-core=="
        + re.search(r"Requires-Dist: pydantic-core==(\S+?)[;\s]", metadata + "\n").group(1),
    )
    # The released core asks cuBLASLt for one symbol that CUDA 13.0 does not have yet.
    stub = b"int cublasLtGroupedMatrixLayoutInit_internal(void) { return 15; }\n"
    subprocess.run(
        ["cc", "-x", "c", "-shared", "-fPIC", "-o", os.path.join(folder, "libshim.so"), "-"],
        input=stub,
        check=True,
    )
    for place, _, names in os.walk(folder):
        for name in names:
            print(f"{os.path.getsize(os.path.join(place, name)):10d}  {os.path.join(place, name)}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
