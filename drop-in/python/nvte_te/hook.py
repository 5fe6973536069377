"""Gives Transformer Engine's Python code our library in place of its own.

The code looks for the file of its library and loads it with `ctypes.CDLL`, while the module
`transformer_engine.common` runs. For that time, and for files of that name, `CDLL` loads ours. No file of
the other package is changed, and all of its checks see its own files.
"""

import os
import sys

MODULE = "transformer_engine.common"
LIBRARY = os.path.join(os.path.dirname(__file__), "lib", "libtransformer_engine.so")


def is_core(path):
    """Whether a path is that of the library of Transformer Engine."""
    name = os.path.basename(os.fspath(path)) if isinstance(path, (str, os.PathLike)) else ""
    return name.startswith("libtransformer_engine") and name.endswith(".so")


class Loader:
    """Runs a module between two functions; `before` returns what `after` gets, which runs whatever happens."""

    def __init__(self, loader, before, after):
        self.loader, self.before, self.after = loader, before, after

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module):
        state = self.before()
        try:
            self.loader.exec_module(module)
        finally:
            self.after(module, state)

    def __getattr__(self, name):
        # Resources, sources and the like.
        return getattr(self.loader, name)


class Finder:
    """Finds one module as the other finders do, and wraps its loader."""

    def __init__(self, name, before, after):
        self.name, self.before, self.after = name, before, after

    def find_spec(self, name, path=None, target=None):
        if name != self.name:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            if isinstance(finder, Finder) or find is None:
                continue
            spec = find(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = Loader(spec.loader, self.before, self.after)
                return spec
        return None


def redirect():
    """Makes `ctypes.CDLL` load our library in place of the other, and returns what it was."""
    from nvte_te import versions

    wish = os.environ.get("NVTE_CORE")
    if wish not in (None, "", "nvte"):
        raise ImportError(f"NVTE_CORE: expected te or nvte, got {wish!r}")
    reason = versions.refusal()
    if reason:
        raise ImportError(
            f"{reason} NVTE_CORE=te runs this process on Transformer Engine's own library, and "
            "`python -m nvte_te disable` all of this environment."
        )
    import ctypes

    original = ctypes.CDLL

    class CDLL(original):
        def __init__(self, name, *arguments, **options):
            super().__init__(LIBRARY if is_core(name) else name, *arguments, **options)

    ctypes.CDLL = CDLL
    return original


def restore(_module, original):
    import ctypes

    ctypes.CDLL = original


def install():
    if not any(isinstance(finder, Finder) and finder.name == MODULE for finder in sys.meta_path):
        sys.meta_path.insert(0, Finder(MODULE, redirect, restore))
