"""
Makes packages of an installation: `pack.py PREFIX VERSION OUT [--site HTML]`. `cargo xtask package` calls it.

OUT gets a tarball of the prefix, Debian packages (where dpkg-deb is there), and folders for Conan, vcpkg and conda, each with its
recipe and the tarball, so that they need no network. Nothing is compiled. Files have the time SOURCE_DATE_EPOCH, so that the same
installation gives the same tarball.
"""

import argparse
import gzip
import io
import os
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
EPOCH = int(os.environ.get("SOURCE_DATE_EPOCH", "1735689600"))
# What files of the packages may need at run time, and the Debian package that has it.
LIBRARIES = {
    "libc.so.6": "libc6", "libm.so.6": "libc6", "ld-linux-x86-64.so.2": "libc6", "libdl.so.2": "libc6",
    "libpthread.so.0": "libc6", "librt.so.1": "libc6", "libgcc_s.so.1": "libgcc-s1", "libstdc++.so.6": "libstdc++6",
}


def output(*command):
    return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout


def tarball(prefix, name, out):
    """A tarball whose only folder has the name of the package; equal files give equal bytes."""
    path = out / f"{name}.tar.gz"

    def plain(info):
        info.uid = info.gid = 0
        info.uname = info.gname = "root"
        info.mtime = EPOCH
        info.mode = 0o755 if info.isdir() or info.mode & 0o100 else 0o644
        return info

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for entry in [prefix, *sorted(prefix.rglob("*"))]:
            tar.add(entry, Path(name) / entry.relative_to(prefix), recursive=False, filter=plain)
    with open(path, "wb") as file, gzip.GzipFile("", "wb", mtime=EPOCH, fileobj=file) as packed:
        packed.write(buffer.getvalue())
    return path


def needs(files):
    """Debian packages that ELF files need, the C library with the newest version of their symbols."""
    packages, newest = set(), (2, 2, 5)
    for file in files:
        for name in re.findall(r"NEEDED.*\[(.+)\]", output("readelf", "-d", file)):
            if name not in LIBRARIES and not re.match(r"libnvte\.so|libtransformer_engine\.so", name):
                raise SystemExit(f"{file}: needs {name}, of which pack.py knows no Debian package")
            packages |= {LIBRARIES[name]} if name in LIBRARIES else set()
        for version in re.findall(r"GLIBC_(\d+(?:\.\d+)+)", output("readelf", "-V", file)):
            newest = max(newest, tuple(map(int, version.split("."))))
    packages.discard("libc6")
    return [f"libc6 (>= {'.'.join(map(str, newest))})", *sorted(packages)]


def copy(source, target):
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_symlink():
        target.symlink_to(os.readlink(source))
    elif source.is_dir():
        shutil.copytree(source, target, symlinks=True)
    else:
        shutil.copy2(source, target)


def debian(prefix, version, out, site):
    """`libnvte0` to run programs, `libnvte-dev` to build them, `nvte-doc` to read."""
    soname = os.readlink(prefix / "lib/libnvte.so")
    number = soname.rsplit(".", 1)[1]
    run, dev = f"libnvte{number}", "libnvte-dev"
    library = prefix / f"lib/libnvte.so.{version}"
    drop_in = prefix / "lib/libtransformer_engine.so"
    static = prefix / "lib/libnvte.a"
    programs = sorted((prefix / "bin").glob("*"))
    developers = ["include", "lib/cmake", "lib/pkgconfig", "lib/libnvte.so", *(f"bin/{p.name}" for p in programs)]
    developers += [f"lib/{p.name}" for p in (drop_in, static) if p.exists()]
    packages = {
        run: (["lib/" + library.name, f"lib/{soname}"], "libs", [library], [], "FP8 training operators for Transformers"),
        dev: (developers, "libdevel", [*programs, *[p for p in (drop_in,) if p.exists()]], [f"{run} (= {version})"],
              "headers and programs of nvte, FP8 training operators"),
    }
    if site:
        packages["nvte-doc"] = ([], "doc", [], [], "documentation of nvte, FP8 training operators")
    paths = []
    for name, (files, section, binaries, depends, title) in packages.items():
        root = out / f".{name}"
        shutil.rmtree(root, ignore_errors=True)
        for file in files:
            copy(prefix / file, root / "usr" / file)
        documents = root / "usr/share/doc" / name
        for file in (prefix / "share/doc/nvte").iterdir():
            copy(file, documents / ("copyright" if file.name == "LICENSE" else file.name))
        if name == "nvte-doc":
            shutil.copytree(site, documents / "html")
        if binaries:
            depends = [*needs(binaries), *depends]
        size = sum(f.lstat().st_size for f in root.rglob("*") if not f.is_dir()) // 1024
        control = [
            f"Package: {name}", f"Version: {version}", f"Architecture: {'all' if name == 'nvte-doc' else 'amd64'}",
            "Maintainer: the authors of nvte <nvte@localhost>", f"Section: {section}", "Priority: optional", f"Installed-Size: {size}",
        ]
        control += [f"Depends: {', '.join(depends)}"] if depends else []
        control += [f"Description: {title}", " Casts with scaling factors, matrix products, normalization, attention and modules of",
                    " Transformers, on the CPU and on NVIDIA GPUs, behind a C ABI."]
        (root / "DEBIAN").mkdir()
        (root / "DEBIAN/control").write_text("\n".join(control) + "\n")
        if name == run:
            (root / "DEBIAN/triggers").write_text("activate-noawait ldconfig\n")
            (root / "DEBIAN/shlibs").write_text(f"libnvte {number} {run} (>= {version})\n")
        for path in [root, *root.rglob("*")]:
            if not path.is_symlink():
                path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
        architecture = "all" if name == "nvte-doc" else "amd64"
        path = out / f"{name}_{version}_{architecture}.deb"
        environment = {**os.environ, "SOURCE_DATE_EPOCH": str(EPOCH)}
        subprocess.run(["dpkg-deb", "--root-owner-group", "-Zxz", "--build", root, path], check=True, env=environment, stdout=subprocess.DEVNULL)
        shutil.rmtree(root)
        paths.append(path)
    return paths


def recipe(kind, version, archive, out):
    """A folder with the recipe of a package manager and the tarball that it unpacks."""
    folder = out / kind / ("nvte" if kind == "vcpkg" else "")
    for source in (HERE / kind).iterdir():
        folder.mkdir(parents=True, exist_ok=True)
        text = source.read_text().replace("@VERSION@", version).replace("@ARCHIVE@", archive.name)
        (folder / source.name).write_text(text)
    shutil.copy2(archive, folder)
    return folder


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("prefix", type=Path)
    arguments.add_argument("version")
    arguments.add_argument("out", type=Path)
    arguments.add_argument("--site", type=Path)
    options = arguments.parse_args()
    out = options.out.resolve()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    prefix = options.prefix.resolve()
    for name in ("LICENSE", "THIRD-PARTY.txt", "sbom.cdx.json"):
        if not (prefix / "share/doc/nvte" / name).is_file():
            raise SystemExit(f"{prefix}: no share/doc/nvte/{name}: this is no installation")
    archive = tarball(prefix, f"nvte-{options.version}-linux-x86_64", out)
    made = [archive]
    if shutil.which("dpkg-deb"):
        made += debian(prefix, options.version, out, options.site)
    else:
        print("no Debian packages: dpkg-deb is not installed")
    made += [recipe(kind, options.version, archive, out) for kind in ("conan", "vcpkg", "conda")]
    for path in made:
        print(path)


if __name__ == "__main__":
    main()
