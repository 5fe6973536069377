"""
Packs two wheels of an installation: `wheels.py PREFIX VERSION TAG OUT`. `cargo xtask wheel` calls it.

`nvte` has the Python package, the library and the headers; `nvte-transformer-engine` puts the library under the Python packages of
Transformer Engine. Both have the licences of all parts and a bill of materials.
"""

import base64
import hashlib
import stat
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
METADATA = """Metadata-Version: 2.1
Name: {name}
Version: {version}
Summary: {summary}
License: Apache-2.0
Requires-Python: >={python}
Classifier: Operating System :: POSIX :: Linux
Description-Content-Type: text/markdown

{text}"""
WHEEL = """Wheel-Version: 1.0
Generator: nvte
Root-Is-Purelib: false
Tag: py3-none-{tag}
"""
UNDER = """    pip install transformer-engine[pytorch]==2.20.2 nvte-transformer-engine
    python -m nvte_te enable

`enable` lets Transformer Engine's Python packages run on libnvte in this environment, `disable` undoes it.
`NVTE_CORE=nvte` or `NVTE_CORE=te` chooses for one process; `python -m nvte_te doctor` says what runs. No file
of Transformer Engine is changed.
"""


def files(folder, *suffixes):
    return [path for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix in suffixes]


def nvte(prefix, version):
    """Path in the wheel and bytes of each file."""
    package = ROOT / "bindings/python/nvte"
    for path in files(package, ".py", ".typed"):
        yield f"nvte/{path.relative_to(package)}", path.read_bytes()
    yield "nvte/lib/libnvte.so.0", (prefix / "lib/libnvte.so.0").read_bytes()
    for path in files(prefix / "include", ".h", ".hpp"):
        yield f"nvte/{path.relative_to(prefix)}", path.read_bytes()


def under_transformer_engine(prefix, version):
    folder = ROOT / "drop-in/python"
    yield "nvte_te.pth", (folder / "nvte_te.pth").read_bytes()
    for path in files(folder / "nvte_te", ".py", ".txt"):
        yield str(path.relative_to(folder)), path.read_bytes().replace(b"@VERSION@", version.encode())
    for name in ("libnvte.so.0", "libtransformer_engine.so"):
        yield f"nvte_te/lib/{name}", (prefix / "lib" / name).read_bytes()


def documents(prefix):
    for source, target in (("LICENSE", "licenses"), ("THIRD-PARTY.txt", "licenses"), ("sbom.cdx.json", "sboms")):
        yield f"{target}/{source}", (prefix / "share/doc/nvte" / source).read_bytes()


def pack(prefix, version, tag, out, contents, fields):
    name = fields["name"].replace("-", "_")
    info = f"{name}-{version}.dist-info"
    path = out / f"{name}-{version}-py3-none-{tag}.whl"
    record = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:

        def add(file, data):
            # A fixed date: the same files make the same wheel.
            entry = zipfile.ZipInfo(file, (2020, 1, 1, 0, 0, 0))
            entry.external_attr = (stat.S_IFREG | (0o755 if "/lib/" in file else 0o644)) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(entry, data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{file},sha256={digest},{len(data)}\n")

        for file, data in contents(prefix, version):
            add(file, data)
        for file, data in documents(prefix):
            add(f"{info}/{file}", data)
        add(f"{info}/METADATA", METADATA.format(version=version, **fields).encode())
        add(f"{info}/WHEEL", WHEEL.format(tag=tag).encode())
        add(f"{info}/RECORD", "".join([*record, f"{info}/RECORD,,\n"]).encode())
    print(path)


def main(prefix, version, tag, out):
    prefix, out = Path(prefix), Path(out)
    out.mkdir(parents=True, exist_ok=True)
    summary = "FP8 training operators and modules of Transformers, on CPU and NVIDIA GPUs"
    text = (ROOT / "bindings/python/README.md").read_text()
    pack(prefix, version, tag, out, nvte, {"name": "nvte", "summary": summary, "python": "3.9", "text": text})
    summary = "Runs the PyTorch and JAX front ends of Transformer Engine on libnvte"
    fields = {"name": "nvte-transformer-engine", "summary": summary, "python": "3.8", "text": UNDER}
    pack(prefix, version, tag, out, under_transformer_engine, fields)


if __name__ == "__main__":
    main(*sys.argv[1:])
