"""Recipes that Transformer Engine refuses on Hopper and our library runs there: for NVTE_PLUGIN.

    NVTE_PLUGIN=nvte_te.plugin NVTE_TE_UNLOCK=mxfp8,nvfp4 python train.py

The front end asks for the compute capability of the GPU once for each recipe and keeps the answer. This sets
the answers of the named recipes to yes.
"""

import ctypes
import os
import sys

from nvte_te import hook

MODULE = "transformer_engine.pytorch.quantization"
# Where the front end keeps the answers: whether the recipe is there, and why not.
ANSWERS = {"mxfp8": "_MXFP8_SUPPORT", "nvfp4": "_NVFP4_SUPPORT"}


def wishes():
    words = [word.strip() for word in os.environ.get("NVTE_TE_UNLOCK", "").lower().split(",")]
    words = [word for word in words if word]
    for word in words:
        if word not in ANSWERS:
            known = ", ".join(ANSWERS)
            raise ValueError(f"NVTE_TE_UNLOCK: expected some of {known}, got {word!r}")
    return words


def unlock(module, words):
    for word in words:
        if not hasattr(module, ANSWERS[word]):
            raise ImportError(f"{MODULE} has no {ANSWERS[word]}: {word} cannot be unlocked")
        setattr(module, ANSWERS[word], (True, ""))


def load_plugins():
    """Called by Transformer Engine after it has loaded its libraries and before its modules."""
    words = wishes()
    if not words:
        return
    if not hasattr(ctypes.CDLL(None), "nvtex_set_drop_in"):
        raise RuntimeError("NVTE_TE_UNLOCK needs our library: set NVTE_CORE=nvte")
    if MODULE in sys.modules:
        unlock(sys.modules[MODULE], words)
    else:
        sys.meta_path.insert(0, hook.Finder(MODULE, lambda: words, unlock))
