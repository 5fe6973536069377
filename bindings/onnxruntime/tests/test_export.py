"""
A language model of the library, saved as a checkpoint and written as a graph of ONNX, gives the logits that the library's own
modules give: `test_export.py LIBRARY FOLDER`, with the Python package nvte on the path and room for files in FOLDER.
"""

import ctypes
import sys
from pathlib import Path

import numpy as np
import nvte
import onnxruntime
from nvte import _abi, _library

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import export

LIBRARY, FOLDER = sys.argv[1], Path(sys.argv[2])
VOCABULARY, LENGTH, HIDDEN, HEADS, LAYERS = 48, 24, 64, 4, 2


def check(what, good):
    print(f"{what} ... {'ok' if good else 'FAILED'}")
    if not good:
        sys.exit(1)


def new_model(context, **fields):
    layer = {"hidden_size": HIDDEN, "ffn_hidden_size": 4 * HIDDEN, "num_attention_heads": HEADS, "seed": 3, "init_std": 0.2}
    sizes = {"vocabulary_size": VOCABULARY, "num_layers": LAYERS, "max_positions": LENGTH} | fields
    model = nvte.LanguageModel(context, layer=layer, **sizes)
    # All that is 0 or 1 at first would hide what reads the wrong parameter.
    random = np.random.default_rng(4)
    for parameter in model.parameters:
        if len(parameter.shape) == 1:
            value = random.standard_normal(parameter.shape).astype(np.float32) * 0.1
            model.assign(parameter.name, value + (1 if parameter.name.endswith("norm_weight") else 0))
    return model


def save(model, path):
    handles = (ctypes.c_void_p * 1)(model.handle)
    config = _abi.NVTEXCheckpointConfig()
    _library.call("nvtex_checkpoint_config_init", ctypes.byref(config), ctypes.sizeof(config))
    config.modules, config.num_modules = ctypes.cast(handles, ctypes.c_void_p), 1
    _library.call("nvtex_checkpoint_save", str(path).encode(), ctypes.byref(config), None)


def exported(path, recipe):
    out = path.with_suffix(f".{recipe}.onnx")
    export.main([str(path), "--heads", str(HEADS), "--recipe", recipe, "--out", str(out)])
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(LIBRARY)
    return onnxruntime.InferenceSession(str(out), options, providers=["CPUExecutionProvider"])


def logits_of(model, tokens):
    logits = np.empty((tokens.size, VOCABULARY), np.float32)
    model(tokens, out=(None, None, logits))
    return logits.reshape(*tokens.shape, VOCABULARY)


def distance(a, b):
    return np.linalg.norm(a - b) / np.linalg.norm(b)


def main():
    FOLDER.mkdir(parents=True, exist_ok=True)
    context = nvte.Context()
    for label, fields in {"positions": {}, "no positions": {"max_positions": 0}}.items():
        model = new_model(context, **fields)
        path = FOLDER / "model"
        save(model, path)
        plain = exported(path, "none")
        for batch, length in ((2, LENGTH), (1, 5)):
            tokens = np.random.default_rng(length).integers(0, VOCABULARY, (batch, length))
            exact = logits_of(model, tokens)
            error = distance(plain.run(None, {"tokens": tokens})[0], exact)
            check(f"{label}, {batch} x {length}: {error:.1e}", error < 1e-5)
    tokens = np.random.default_rng(9).integers(0, VOCABULARY, (4, LENGTH))
    exact = logits_of(model, tokens)
    for name in ("current_scaling", "block_scaling", "mxfp8"):
        with context.autocast(nvte.Recipe(name)):
            expected = logits_of(model, tokens)
        got = exported(path, name).run(None, {"tokens": tokens})[0]
        apart, noise = distance(got, expected), distance(expected, exact)
        # Sums differ in their last place, so that a code differs here and there; the recipe itself changes much more.
        check(f"{name}: {apart:.1e} from the module, which is {noise:.1e} from float32", apart < noise / 3 and noise > 5e-3)
    other = FOLDER / "other"
    save(nvte.Linear(context, in_features=32, out_features=32), other)
    for path, heads, text in ((path, "5", "a divisor of 64"), (other, "4", "not of a model")):
        try:
            export.main([str(path), "--heads", heads, "--out", str(FOLDER / "wrong.onnx")])
            check(f"refuses what is {text}", False)
        except SystemExit as error:
            check(f"refuses: {text}", text in str(error) or print(error))


main()
