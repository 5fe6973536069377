"""
Compares the table of recipes with what the library does: `recipes.py ROOT`, with the Python package on the path.

A linear layer runs in each recipe and says how its operands were cast; the cells of hardware.md must say the same.
"""

import ctypes
import sys
from pathlib import Path

import nvte
from nvte import _abi

KINDS = {"delayed scaling": "delayed_scaling", "current scaling": "current_scaling", "FP8 blocks": "block_scaling", "MXFP8": "mxfp8", "NVFP4": "nvfp4"}
# By scaling and the dimensions of a block.
SCALES = {
    ("delayed", 1): "one for a tensor, from maxima of earlier steps", ("current", 1): "one for a tensor, from its own maximum",
    ("block", 1): "1 x 128", ("block", 2): "128 x 128", ("mxfp8", 1): "1 x 32", ("nvfp4", 1): "1 x 16", ("nvfp4", 2): "16 x 16",
}
DTYPES = {"float8e4m3": "E4M3", "float8e5m2": "E5M2", "float4e2m1": "E2M1"}


def cells(kind):
    """What the columns of scales and of dtypes must say."""
    context = nvte.Context()
    layer = nvte.Linear(context, in_features=128, out_features=128, bias=False)
    layer.make_gradients()
    x = nvte.zeros((128, 128))
    with context.autocast(nvte.Recipe(kind)):
        y, tape = layer.forward(x, rng_state=nvte.array([1, 0], "int64"))
    layer.backward(tape, y)
    scales, dtypes = [], []
    for role in ("input", "weight", "grad_output"):
        choice = _abi.NVTEXSlotChoice()
        nvte.call("nvtex_module_precision", layer.handle, 0, _abi.ENUMS["Role"][role], ctypes.byref(choice))
        scaling, dtype = layer.precision(0, role)
        scales.append(SCALES[scaling, choice.options.block_dim])
        dtypes.append(DTYPES[dtype])
    found = [scales[0], *[f"weights {scales[1]}"] * (scales[1] != scales[0]), *[f"gradients {scales[2]}"] * (scales[2] != scales[0])]
    found += ["and a factor for the tensor"] * (kind == "nvfp4")
    return "; ".join(found), dtypes[0] + f", gradients {dtypes[2]}" * (dtypes[2] != dtypes[0])


def main(root):
    lines = (Path(root) / "docs/site/hardware.md").read_text().splitlines()
    rows = {row[0]: row for row in ([cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|"))}
    faults = []
    for name, kind in KINDS.items():
        expected = cells(kind)
        if tuple(rows[name][1:3]) != expected:
            faults.append(f"hardware.md, {name}: expected {expected}, got {tuple(rows[name][1:3])}")
    sys.exit("\n".join(faults) or 0)


main(sys.argv[1])
