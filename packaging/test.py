"""
Tries the packages that `pack.py` has made, each in a folder of its own: `test.py OUT WORK PROGRAM.c`.

A C program is compiled against what the package has installed and run on the CPU backend. The folders stand for roots of machines:
nothing of the machine itself is changed. What needs a tool that is not there (dpkg, conan) is skipped; of the recipe for conda its
script is run, where rattler-build does not do it. Environment: CMAKE, PKG_CONFIG and CONAN, which are programs, and RATTLER_BUILD,
a folder of Python packages with rattler-build.
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
from pathlib import Path


# Builds a recipe with rattler-build, and runs its tests in an environment that has the package.
BUILD_FOR_CONDA = """
import sys
from rattler_build import Package, Stage0Recipe

recipe, folder, channel = sys.argv[1:]
for built in Stage0Recipe.from_file(recipe).run_build(output_dir=folder, channels=[channel], package_format="conda"):
    for path in built.packages:
        for test in Package.from_file(path).run_tests(channel=[channel]):
            assert test.success, test.output
"""


class Trial:
    def __init__(self, out, work, source):
        self.out, self.work, self.source = out, work, source
        self.environment = {**os.environ, "NVTE_BACKEND": "cpu"}
        self.environment.pop("LD_LIBRARY_PATH", None)
        self.pkg_config = os.environ.get("PKG_CONFIG", "pkg-config")
        self.cmake = os.environ.get("CMAKE", "cmake")
        self.conan_program = os.environ.get("CONAN", "conan")

    def run(self, *command, cwd=None, **environment):
        done = subprocess.run(
            list(map(str, command)), cwd=cwd or self.work, env={**self.environment, **environment},
            text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=600,
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(map(str, command))}\n{done.stdout}")
        return done.stdout

    def folder(self, name):
        path = self.work / name
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        return path

    def by_pkg_config(self, prefix):
        """Compiles the program against a prefix that was never where it is now."""
        flags = self.run(self.pkg_config, "--cflags", "--libs", "nvte", PKG_CONFIG_PATH=f"{prefix}/lib/pkgconfig", PKG_CONFIG_LIBDIR="")
        # A file of the package system may hold an absolute prefix.
        words = [word.replace("\\ ", " ") for word in re.split(r"(?<!\\)\s+", flags.strip())]
        program = self.work / "by_pkg_config"
        self.run("cc", "-std=c11", self.source, "-o", program, *words)
        print(self.run(program, LD_LIBRARY_PATH=str(prefix / "lib")).strip())

    def by_cmake(self, *options):
        source = self.folder("cmake-project")
        shutil.copy(self.source, source / "app.c")
        (source / "CMakeLists.txt").write_text(
            "cmake_minimum_required(VERSION 3.20)\nproject(app C)\nfind_package(nvte REQUIRED)\n"
            "add_executable(app app.c)\ntarget_link_libraries(app PRIVATE nvte::nvte)\n"
        )
        self.run(self.cmake, "-G", "Unix Makefiles", "-B", source / "build", *options, source)
        self.run(self.cmake, "--build", source / "build")
        return source / "build/app"

    def tarball(self):
        folder = self.folder("a tarball")
        with tarfile.open(next(self.out.glob("*.tar.gz"))) as tar:
            tar.extractall(folder, filter="tar") if hasattr(tarfile, "tar_filter") else tar.extractall(folder)
        (prefix,) = folder.iterdir()
        self.documents(prefix / "share/doc/nvte")
        self.by_pkg_config(prefix)
        self.run(self.by_cmake(f"-DCMAKE_PREFIX_PATH={prefix}"))
        self.run(prefix / "bin/nvtex-info")
        if (prefix / "lib/libnvte.a").exists():
            program = self.work / "static"
            self.run("cc", "-std=c11", f"-I{prefix}/include", self.source, "-o", program, prefix / "lib/libnvte.a", "-lstdc++", "-lpthread", "-ldl", "-lm")
            self.run(program)

    def documents(self, folder):
        for name in ("LICENSE", "THIRD-PARTY.txt", "sbom.cdx.json"):
            if not (folder / name).exists():
                raise RuntimeError(f"{folder} has no {name}")

    def debian(self):
        """An empty system of Debian packages, into which they are installed and from which they are removed."""
        root = self.folder("debian")
        for name in ("info", "updates"):
            (root / "var/lib/dpkg" / name).mkdir(parents=True)
        for name in ("status", "available"):
            (root / "var/lib/dpkg" / name).touch()
        dpkg = ["dpkg", f"--root={root}", "--force-not-root", "--force-depends", f"--log={self.work}/dpkg.log"]
        packages = sorted(self.out.glob("*.deb"))
        self.run(*dpkg, "--install", *packages)
        # Files lie where the loader, pkg-config and CMake of Debian look; here the root is a folder.
        self.by_pkg_config(root / "usr")
        self.run(self.by_cmake(f"-DCMAKE_PREFIX_PATH={root}/usr"))
        self.run(root / "usr/bin/nvtex-info")
        for folder in (root / "usr/share/doc").iterdir():
            if folder.name.startswith("lib"):
                if not (folder / "copyright").exists() or not (folder / "sbom.cdx.json").exists():
                    raise RuntimeError(f"{folder} has no copyright or bill of materials")
        names = [package.name.split("_")[0] for package in packages]
        self.run(*dpkg, "--remove", *names)
        left = [path for path in (root / "usr").rglob("*") if not path.is_dir()] if (root / "usr").exists() else []
        if left:
            raise RuntimeError(f"left behind: {left}")

    def vcpkg(self):
        """Runs the port as vcpkg does, whose variables are three, and uses what it has made."""
        root = self.folder("vcpkg")
        options = [f"-DCURRENT_PACKAGES_DIR={root}/packages", f"-DCURRENT_BUILDTREES_DIR={root}/trees"]
        self.run(self.cmake, *options, "-P", self.out / "vcpkg/nvte/portfile.cmake")
        self.run(self.by_cmake(f"-Dnvte_DIR={root}/packages/share/nvte"))
        self.documents_of_vcpkg(root / "packages/share/nvte")

    def documents_of_vcpkg(self, folder):
        for name in ("copyright", "THIRD-PARTY.txt", "sbom.cdx.json"):
            if not (folder / name).exists():
                raise RuntimeError(f"{folder} has no {name}")

    def conan(self):
        root = self.folder("conan")
        home = {"CONAN_HOME": str(root / "home")}
        if "CONAN" in os.environ:
            home["PYTHONPATH"] = str(Path(self.conan_program).parents[1])
        self.run(self.conan_program, "profile", "detect", **home)
        self.run(self.conan_program, "create", self.out / "conan", **home)
        reference = f"nvte/{re.search(r'nvte-([^-]+)-', next(self.out.glob('*.tar.gz')).name).group(1)}"
        self.run(self.conan_program, "install", f"--requires={reference}", "-g", "CMakeDeps", f"--output-folder={root}/generated", **home)
        program = self.by_cmake(f"-DCMAKE_PREFIX_PATH={root}/generated", "-DCMAKE_BUILD_TYPE=Release")
        self.run(program)

    def conda(self):
        root = self.folder("conda")
        packages = os.environ.get("RATTLER_BUILD")
        if packages is None:
            return self.conda_by_hand(root)
        # An empty channel, since the package depends on nothing that a channel has.
        for platform in ("noarch", "linux-64"):
            (root / "channel" / platform).mkdir(parents=True)
            (root / "channel" / platform / "repodata.json").write_text('{"packages": {}, "packages.conda": {}}')
        recipe = self.out / "conda/recipe.yaml"
        self.run(sys.executable, "-c", BUILD_FOR_CONDA, recipe, root / "made", (root / "channel").as_uri(), PYTHONPATH=packages)

    def conda_by_hand(self, root):
        """Runs what the recipe runs, in the folder of its source, and the recipe's test."""
        text = (self.out / "conda/recipe.yaml").read_text()
        scripts = [re.findall(r"^ +- (.+)$", block, re.M) for block in re.findall(r"script:\n((?: +- .+\n)+)", text)]
        source, prefix = root / "source", root / "prefix"
        source.mkdir()
        with tarfile.open(next((self.out / "conda").glob("*.tar.gz"))) as tar:
            tar.extractall(source, filter="tar") if hasattr(tarfile, "tar_filter") else tar.extractall(source)
        variables = {"PREFIX": str(prefix), "SRC_DIR": str(source), "PATH": f"{prefix}/bin:{os.environ['PATH']}"}
        for script in scripts:
            self.run("sh", "-ec", "\n".join(script), cwd=source, **variables)
        self.by_pkg_config(prefix)

    def wheel(self):
        """An environment of Python that has the wheel and nothing else: the package, and its library for a C program."""
        root = self.folder("wheel")
        venv.create(root / "environment", symlinks=True)
        python = root / "environment/bin/python"
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python]
        self.run(*pip, "install", "--no-index", "--no-deps", next(self.out.glob("nvte-*.whl")))
        self.environment.pop("NVTE_LIBRARY", None)
        self.run(python, "-c", "import nvte; assert nvte.zeros((2, 3)).tolist() == [[0.0] * 3] * 2", cwd=root)
        flags = self.run(python, "-m", "nvte", cwd=root).split()
        self.run("cc", "-std=c11", self.source, "-o", root / "program", *flags)
        print(self.run(root / "program").strip())
        info = next(root.rglob("nvte-*.dist-info"))
        for name in ("licenses/LICENSE", "licenses/THIRD-PARTY.txt", "sboms/sbom.cdx.json"):
            if not (info / name).exists():
                raise RuntimeError(f"{info} has no {name}")
        self.run(*pip, "uninstall", "--yes", "nvte")
        left = [path for path in root.rglob("*nvte*")]
        if left:
            raise RuntimeError(f"left behind: {left}")


def main():
    out, work, source = (Path(argument).resolve() for argument in sys.argv[1:4])
    work.mkdir(parents=True, exist_ok=True)
    trial = Trial(out, work, source)
    tools = {
        "tarball": "tar", "debian": "dpkg", "vcpkg": trial.cmake, "conan": trial.conan_program, "conda": "sh", "wheel": sys.executable,
    }
    failed = False
    for name, tool in tools.items():
        if shutil.which(tool) is None:
            print(f"package {name} ... skipped: {tool} is not installed", flush=True)
            continue
        try:
            getattr(trial, name)()
            print(f"package {name} ... ok", flush=True)
        except Exception as fault:
            failed = True
            print(f"package {name} ... FAILED\n{fault}", flush=True)
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
