"""pack.py VERSION TAG LIBRARIES OUT: packs the package in this folder and the libraries into a wheel."""

import base64
import hashlib
import os
import stat
import sys
import zipfile

NAME = "nvte_transformer_engine"
HERE = os.path.dirname(os.path.abspath(__file__))
METADATA = """Metadata-Version: 2.1
Name: nvte-transformer-engine
Version: {version}
Summary: Runs the PyTorch and JAX front ends of Transformer Engine on libnvte
License: Apache-2.0
Requires-Python: >=3.8
Classifier: Operating System :: POSIX :: Linux
Description-Content-Type: text/markdown

    pip install transformer-engine[pytorch]==2.20.2 nvte-transformer-engine
    python -m nvte_te enable

`enable` lets Transformer Engine's Python packages run on libnvte in this environment, `disable` undoes it.
`NVTE_CORE=nvte` or `NVTE_CORE=te` chooses for one process; `python -m nvte_te doctor` says what runs. No file
of Transformer Engine is changed.
"""
WHEEL = """Wheel-Version: 1.0
Generator: nvte
Root-Is-Purelib: false
Tag: py3-none-{tag}
"""


def contents(version, tag, libraries):
    """Path in the wheel, bytes and permissions of each file but the record."""
    with open(os.path.join(HERE, "nvte_te.pth"), "rb") as file:
        yield "nvte_te.pth", file.read(), 0o644
    package = os.path.join(HERE, "nvte_te")
    for name in sorted(os.listdir(package)):
        if name.endswith((".py", ".txt")):
            with open(os.path.join(package, name), "rb") as file:
                data = file.read().replace(b"@VERSION@", version.encode())
            yield f"nvte_te/{name}", data, 0o644
    for name in sorted(os.listdir(libraries)):
        with open(os.path.join(libraries, name), "rb") as file:
            yield f"nvte_te/lib/{name}", file.read(), 0o755
    info = f"{NAME}-{version}.dist-info"
    with open(os.path.join(HERE, "..", "..", "LICENSE"), "rb") as file:
        yield f"{info}/licenses/LICENSE", file.read(), 0o644
    yield f"{info}/METADATA", METADATA.format(version=version).encode(), 0o644
    yield f"{info}/WHEEL", WHEEL.format(tag=tag).encode(), 0o644


def main(version, tag, libraries, out):
    os.makedirs(out, exist_ok=True)
    path = os.path.join(out, f"{NAME}-{version}-py3-none-{tag}.whl")
    record = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:

        def add(name, data, mode):
            # A fixed date: the same files make the same wheel.
            entry = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))
            entry.external_attr = (stat.S_IFREG | mode) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(entry, data)

        for name, data, mode in contents(version, tag, libraries):
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{name},sha256={digest},{len(data)}\n")
            add(name, data, mode)
        name = f"{NAME}-{version}.dist-info/RECORD"
        add(name, "".join(record + [f"{name},,\n"]).encode(), 0o644)
    print(path)


if __name__ == "__main__":
    main(*sys.argv[1:])
