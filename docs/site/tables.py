"""The tables of dtypes and scaling modes, from the generated headers."""

import re

# Elements, by name: bits, what they hold, where they are used. Their numbers come from the header.
ELEMENTS = {
    "kNVTEByte": (8, "bytes: masks, workspaces, codes"),
    "kNVTEInt16": (16, "low halves of masters"),
    "kNVTEInt32": (32, "indices, sequence lengths, counters"),
    "kNVTEInt64": (64, "sizes and offsets of groups, targets, random states"),
    "kNVTEFloat32": (32, "high precision, scales, amax, masters"),
    "kNVTEFloat16": (16, "high precision, largest value 65504"),
    "kNVTEBFloat16": (16, "high precision, 8 bits of exponent"),
    "kNVTEFloat8E4M3": (8, "4 bits of exponent, 3 of mantissa, largest value 448, no infinity"),
    "kNVTEFloat8E5M2": (8, "5 bits of exponent, 2 of mantissa, largest finite value 57344"),
    "kNVTEFloat8E8M0": (8, "powers of two, 2^-127 to 2^127: scales of MXFP8"),
    "kNVTEFloat4E2M1": (4, "0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives; two in a byte"),
}
MODES = {
    "NVTE_DELAYED_TENSOR_SCALING": "per tensor (delayed and current scaling), or not quantized",
    "NVTE_MXFP8_1D_SCALING": "MXFP8",
    "NVTE_BLOCK_SCALING_1D": "FP8 blocks, 1D",
    "NVTE_BLOCK_SCALING_2D": "FP8 blocks, 2D",
    "NVTE_NVFP4_1D_SCALING": "NVFP4",
}


def item(reference, name):
    for items in [*reference.headers.values(), *reference.backend.values()]:
        for found in items:
            if found.name == name:
                return found
    raise SystemExit(f"tables.py: no {name} in the headers")


def row(*cells):
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def dtypes(reference):
    lines = [row("number", "name", "bits", "holds"), "|--:|---|--:|---|"]
    for part in item(reference, "NVTEDType").parts:
        name, number = part.signature.split(" = ")
        if name != "kNVTENumTypes":
            # A dtype without a row here stops the build.
            lines.append(row(number, f"`{name}`", *ELEMENTS[name]))
    return lines


def modes(root):
    text = (root / "include/nvte/backend/scaling.h").read_text()
    lines = [
        row("mode", "for", "elements that share a scale", "dtype of scales", "scale matrix of `[R, C]`, row-wise", "column-wise data"),
        "|---|---|---|---|---|---|",
    ]
    for found in re.findall(r"^  ROW\(([^)]*)\)", text, re.MULTILINE):
        name, height, width, pad_lines, pad_blocks, transposes, block_major, size = (w.strip() for w in found.split(","))
        scales = {("4", True): "Float32", ("1", True): "Float8E4M3", ("1", False): "Float8E8M0"}[size, transposes == "true"]
        if height == "0":
            area, shape = "all", "`[1]`"
        else:
            rows = "R" if height == "1" else f"R/{height}"
            blocks = f"C/{width}"
            area = f"{height} x {width}"
            shape = f"`[{blocks}, {rows}]`" if block_major == "true" else f"`[{rows}, {blocks}]`"
            if pad_lines != "1":
                shape += f", rounded up to multiples of {pad_lines} and {pad_blocks}"
        column = "transposed" if transposes == "true" else "not transposed, scales along the other dimension"
        lines.append(row(f"`{name}`", MODES[name], area, scales, shape, column))
    return lines


def page(root, reference):
    lines = [
        "# Dtypes, scaling modes, recipes, hardware", "",
        "The first two tables and the list of architectures are made from the sources when this site is built; a test compares "
        "scales and dtypes of the recipes with what a layer does.", "",
        "## Dtypes", "", *dtypes(reference), "",
        "## Scaling modes", "", *modes(root), "",
        "A scale matrix has an element for each block of each line; column-wise scales are those of the transpose, except in MXFP8. "
        "[Scaling](guide/scaling.md) has pictures.", "",
    ]
    hardware = (root / "docs/site/hardware.md").read_text()
    return "\n".join(lines) + hardware.replace("@architectures@", architectures(root))


def architectures(root):
    """What NVTE_CUDA_ARCHS knows, from the build script."""
    text = (root / "build/toolkit.rs").read_text()
    found = re.search(r"const ALL_ARCHS: \[&str; \d+\] = \[(.*?)\];", text)
    default = re.search(r'const DEFAULT_ARCH: &str = "(\w+)";', text)
    if not found or not default:
        raise SystemExit("tables.py: no list of architectures in build/toolkit.rs")
    names = re.findall(r'"(\w+)"', found.group(1))
    return ", ".join(f"{name} (the default)" if name == default.group(1) else name for name in names)
