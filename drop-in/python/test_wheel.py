"""test_wheel.py WHEEL FOLDER: tests the wheel in a fresh environment in FOLDER, without a GPU and without
Transformer Engine: a small package of the same name finds and loads its library as that one does."""

import base64
import hashlib
import os
import shutil
import subprocess
import sys
import unittest
import venv
import zipfile

WHEEL, FOLDER = (os.path.abspath(path) for path in sys.argv[1:3])
PYTHON = os.path.join(FOLDER, "bin", "python")
SITE = os.path.join(
    FOLDER, "lib", f"python{sys.version_info.major}.{sys.version_info.minor}", "site-packages"
)
PACKAGE = os.path.join(SITE, "transformer_engine")
CORE = os.path.join(PACKAGE, "wheel_lib", "libtransformer_engine.so")
EXTENSION = os.path.join(PACKAGE, "wheel_lib", "transformer_engine_torch.so")

# As the real package: exactly one file in three folders, for the whole process, and a function called on it.
COMMON = '''
import ctypes
import glob
import os
from importlib import metadata

assert metadata.version("transformer-engine") == metadata.version("transformer-engine-cu13")


def load():
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    folders = [os.path.dirname(package), package, os.path.join(package, "wheel_lib")]
    found = [p for f in folders for p in glob.glob(os.path.join(f, "libtransformer_engine*.so"))]
    assert len(found) == 1, found
    return ctypes.CDLL(found[0], mode=ctypes.RTLD_GLOBAL | os.RTLD_LAZY)


OTHER = ctypes.CDLL("libc.so.6")
LIBRARY = load()
version = ctypes.c_int()
assert LIBRARY.cudaRuntimeGetVersion(ctypes.byref(version)) == 0 and version.value > 0
'''
PYTORCH = '''
import importlib
import os
import warnings

import transformer_engine.common

if os.environ.get("NVTE_PLUGIN"):
    try:
        importlib.import_module(os.environ["NVTE_PLUGIN"]).load_plugins()
    except Exception as error:
        warnings.warn(f"plugin: {error}")
from . import quantization
'''
QUANTIZATION = '''
_MXFP8_SUPPORT = None
_NVFP4_SUPPORT = None
'''
FAKE_CORE = '''
int cudaRuntimeGetVersion(int *version) { *version = 12080; return 0; }
int fake_core(void) { return 1; }
'''
FAKE_EXTENSION = '''
void nvte_quantize(void *, void *, void *);
void %s(void);
void run(void) { nvte_quantize(0, 0, 0); %s(); }
'''
SHOW = """
import ctypes
kind = ctypes.CDLL
import transformer_engine.common as common
assert ctypes.CDLL is kind
assert hasattr(common.OTHER, "malloc")
print("fake" if hasattr(common.LIBRARY, "fake_core") else "nvte")
"""


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write(text)


def compile_c(text, path):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    command = [os.environ.get("CC") or "cc", "-shared", "-fPIC", "-x", "c", "-", "-o", path]
    subprocess.run(command, input=text, text=True, check=True)


def set_version(version):
    for name in ("transformer_engine", "transformer_engine_cu13"):
        info = os.path.join(SITE, name + ".dist-info")
        write(os.path.join(info, "METADATA"), f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def make_package():
    shutil.rmtree(PACKAGE, ignore_errors=True)
    write(os.path.join(PACKAGE, "__init__.py"), "from . import common\n")
    write(os.path.join(PACKAGE, "common", "__init__.py"), COMMON)
    write(os.path.join(PACKAGE, "pytorch", "__init__.py"), PYTORCH)
    write(os.path.join(PACKAGE, "pytorch", "quantization.py"), QUANTIZATION)
    compile_c(FAKE_CORE, CORE)
    compile_c(FAKE_EXTENSION % (("nvte_gelu",) * 2), EXTENSION)
    set_version("2.20.2")


def run(*arguments, **variables):
    """Runs the environment's interpreter; its status, what it printed, and what it complained about."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NVTE_", "PYTHON"))}
    kept.update(variables, PYTHONDONTWRITEBYTECODE="1")
    return subprocess.run([PYTHON, *arguments], env=kept, cwd=FOLDER, capture_output=True, text=True)


def pip(*arguments):
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", PYTHON]
    subprocess.run([*command, *arguments], check=True, capture_output=True, text=True)


def files(root):
    """Path and content of each file below a folder."""
    found = {}
    for folder, _, names in os.walk(root):
        for name in names:
            path = os.path.join(folder, name)
            with open(path, "rb") as file:
                found[os.path.relpath(path, root)] = file.read()
    return found


class Test(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        shutil.rmtree(FOLDER, ignore_errors=True)
        venv.create(FOLDER, with_pip=False, symlinks=True)
        make_package()
        cls.before = files(SITE)

    def setUp(self):
        make_package()
        switch = os.path.join(SITE, "nvte_te", "switch.txt")
        if os.path.exists(switch):
            write(switch, "te\n")
        else:
            pip("install", "--no-index", "--no-deps", WHEEL)

    def core(self, **variables):
        result = run("-c", SHOW, **variables)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout.strip()

    def command(self, *arguments, status=0, **variables):
        result = run("-m", "nvte_te", *arguments, **variables)
        self.assertEqual(result.returncode, status, result.stdout + result.stderr)
        return result.stdout + result.stderr

    def test_record_has_the_right_hashes(self):
        with zipfile.ZipFile(WHEEL) as wheel:
            names = wheel.namelist()
            record = next(name for name in names if name.endswith(".dist-info/RECORD"))
            rows = [line.split(",") for line in wheel.read(record).decode().splitlines()]
            self.assertEqual([row[0] for row in rows], names)
            for name, digest, size in rows[:-1]:
                data = wheel.read(name)
                sha = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
                self.assertEqual((digest, size), ("sha256=" + sha, str(len(data))), name)
            self.assertIn(b"Tag: py3-none-manylinux_2_28_x86_64", wheel.read(record[:-6] + "WHEEL"))

    def test_installing_changes_nothing(self):
        self.assertEqual(self.core(), "fake")

    def test_core_of_one_process(self):
        self.assertEqual(self.core(NVTE_CORE="nvte"), "nvte")
        self.assertEqual(self.core(NVTE_CORE="te"), "fake")
        result = run("-c", SHOW, NVTE_CORE="ours")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("NVTE_CORE: expected te or nvte, got 'ours'", result.stderr)

    def test_library_is_in_place_of_the_other(self):
        show = SHOW + "print(common.LIBRARY.nvtex_set_drop_in(True), hasattr(ctypes.CDLL(None), 'nvte_gelu'))"
        result = run("-c", show, NVTE_CORE="nvte")
        self.assertEqual(result.stdout.split(), ["nvte", "1", "True"], result.stderr)

    def test_enable_and_disable(self):
        theirs = files(PACKAGE)
        self.command("enable")
        self.assertEqual(self.core(), "nvte")
        self.assertEqual(self.core(NVTE_CORE="te"), "fake")
        nested = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SHOW!r}], check=True)"
        self.assertEqual(run("-c", nested).stdout.strip(), "nvte")
        self.assertEqual(files(PACKAGE), theirs)
        self.command("disable")
        self.assertEqual(self.core(), "fake")

    def test_other_versions_are_refused(self):
        self.command("enable")
        set_version("2.21.0")
        result = run("-c", SHOW)
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("works with transformer-engine-cu13 2.20.2, but 2.21.0 is installed", result.stderr)
        self.assertEqual(self.core(NVTE_CORE="te"), "fake")
        for command in ("enable", "swap"):
            self.assertIn("2.21.0", self.command(command, status=1))
        set_version("2.20.2+local")
        self.assertEqual(self.core(), "nvte")

    def test_doctor(self):
        text = self.command("doctor")
        self.assertIn("no problem found", text)
        self.assertIn(f"loaded:      {CORE}", text)
        self.assertIn("2 symbols of the core, 0 missing", text)
        text = self.command("doctor", NVTE_CORE="nvte")
        self.assertIn("nvte_te/lib/libtransformer_engine.so", text[text.index("loaded:"):])
        self.assertNotIn(f"loaded:      {CORE}", text)
        compile_c(FAKE_EXTENSION % (("nvte_of_tomorrow",) * 2), EXTENSION)
        self.assertIn("lacks: nvte_of_tomorrow", self.command("doctor", status=1))

    def test_doctor_finds_a_preloaded_library(self):
        library = os.path.join(SITE, "nvte_te", "lib", "libtransformer_engine.so")
        self.assertIn("LD_PRELOAD", self.command("doctor", status=1, LD_PRELOAD=library))

    def test_swap_and_restore(self):
        theirs = files(PACKAGE)
        self.assertIn("nothing to restore", self.command("restore", status=1))
        self.command("swap")
        self.assertTrue(os.path.islink(CORE))
        self.assertEqual(self.core(), "nvte")
        self.assertIn("no problem found", self.command("doctor"))
        self.assertIn("ours already", self.command("swap", status=1))
        self.command("restore")
        self.assertEqual(files(PACKAGE), theirs)
        self.assertFalse(os.path.islink(CORE))
        self.assertEqual(self.core(), "fake")

    def test_unlocked_recipes(self):
        show = "import transformer_engine.pytorch.quantization as q; print(q._MXFP8_SUPPORT, q._NVFP4_SUPPORT)"
        plugin = {"NVTE_PLUGIN": "nvte_te.plugin"}
        self.assertEqual(run("-c", show, NVTE_CORE="nvte", **plugin).stdout.strip(), "None None")
        result = run("-c", show, NVTE_CORE="nvte", NVTE_TE_UNLOCK="mxfp8", **plugin)
        self.assertEqual(result.stdout.strip(), "(True, '') None")
        result = run("-c", show, NVTE_CORE="nvte", NVTE_TE_UNLOCK="mxfp8, nvfp4", **plugin)
        self.assertEqual(result.stdout.strip(), "(True, '') (True, '')")
        result = run("-c", show, NVTE_CORE="te", NVTE_TE_UNLOCK="mxfp8", **plugin)
        self.assertEqual(result.stdout.strip(), "None None")
        self.assertIn("set NVTE_CORE=nvte", result.stderr)
        result = run("-c", show, NVTE_CORE="nvte", NVTE_TE_UNLOCK="fp6", **plugin)
        self.assertIn("expected some of mxfp8, nvfp4, got 'fp6'", result.stderr)

    def test_uninstalling_leaves_nothing(self):
        self.command("enable")
        pip("uninstall", "--yes", "nvte-transformer-engine")
        self.assertEqual(files(SITE), self.before)
        self.assertFalse(os.path.exists(os.path.join(SITE, "nvte_te")))
        self.assertEqual(self.core(), "fake")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
