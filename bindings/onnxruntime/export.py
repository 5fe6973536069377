"""
Writes the language model of a checkpoint as a graph of ONNX: `export.py CHECKPOINT --heads N [--recipe NAME] --out MODEL.onnx`.

The checkpoint is one of `nvtex_checkpoint_save` with a model of `nvtex_language_model_create`, such as examples/gpt.c writes:
layers with LayerNorm, biases and GELU, causal attention, a table of positions or none, and a head with the weight of the
embedding. The graph computes logits `[batch, length, vocabulary]` from tokens `[batch, length]`. Products of weights are nodes
`Linear` of this folder's library, with the recipe; all else are nodes of ONNX. It needs the packages onnx and numpy.
"""

import argparse
import json
import re
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

RECIPES = ("none", "current_scaling", "block_scaling", "mxfp8")


def read(path):
    """The tensors of a safetensors file in float32, without those of optimizer, recipe and loader."""
    data = Path(path).read_bytes()
    size = int.from_bytes(data[:8], "little")
    tensors = {}
    for name, about in json.loads(data[8 : 8 + size]).items():
        if name == "__metadata__" or re.match(r"(optimizer|recipe|tokens|extra)\.", name):
            continue
        first, end = about["data_offsets"]
        raw = data[8 + size + first : 8 + size + end]
        if about["dtype"] == "BF16":
            values = (np.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4")
        else:
            values = np.frombuffer(raw, {"F32": "<f4", "F16": "<f2"}[about["dtype"]]).astype(np.float32)
        tensors[name] = values.reshape(about["shape"])
    return tensors


class Graph:
    def __init__(self, weights, recipe):
        self.weights, self.recipe = weights, recipe
        self.nodes, self.initializers, self.taken = [], [], set()

    def constant(self, value, name=None):
        """A name for a value, which is stored once."""
        name = name or f"constant_{len(self.initializers)}"
        if name not in self.taken:
            self.taken.add(name)
            self.initializers.append(numpy_helper.from_array(np.asarray(value, order="C"), name))
        return name

    def weight(self, name):
        if name not in self.weights:
            raise SystemExit(f"{name}: expected in the checkpoint, which has {', '.join(self.weights)}")
        return self.constant(self.weights[name], name)

    def __call__(self, op, *inputs, domain="", **attributes):
        """Adds a node; numbers and lists among the inputs become constants."""
        inputs = [i if isinstance(i, str) else self.constant(np.asarray(i)) for i in inputs]
        output = f"{op}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [output], domain=domain, **attributes))
        return output

    def norm(self, x, weight, bias):
        return self("LayerNormalization", x, self.weight(weight), self.weight(bias), axis=-1, epsilon=1e-5)

    def linear(self, x, weight, bias):
        return self("Linear", x, self.weight(weight), self.weight(bias), domain="nvte", recipe=self.recipe)


def attention(g, x, name, heads, mask):
    """Rows of the first weight are, for each head, those of its query, its key and its value."""
    hidden = g.weights[f"{name}.proj.weight"].shape[0]
    normed = g.norm(x, f"{name}.layernorm_qkv.layer_norm_weight", f"{name}.layernorm_qkv.layer_norm_bias")
    qkv = g.linear(normed, f"{name}.layernorm_qkv.weight", f"{name}.layernorm_qkv.bias")
    qkv = g("Transpose", g("Reshape", qkv, np.int64([0, 0, heads, 3, hidden // heads])), perm=[3, 0, 2, 1, 4])
    q, k, v = (g("Gather", qkv, np.int64(i), axis=0) for i in range(3))
    scores = g("Mul", g("MatMul", q, g("Transpose", k, perm=[0, 1, 3, 2])), np.float32((hidden // heads) ** -0.5))
    mixed = g("MatMul", g("Softmax", g("Add", scores, mask), axis=-1), v)
    rows = g("Reshape", g("Transpose", mixed, perm=[0, 2, 1, 3]), np.int64([0, 0, hidden]))
    return g("Add", x, g.linear(rows, f"{name}.proj.weight", f"{name}.proj.bias"))


def mlp(g, x, name):
    wide = g.linear(g.norm(x, f"{name}.layer_norm_weight", f"{name}.layer_norm_bias"), f"{name}.fc1_weight", f"{name}.fc1_bias")
    active = g("Gelu", wide, approximate="tanh")
    return g("Add", x, g.linear(active, f"{name}.fc2_weight", f"{name}.fc2_bias"))


def model(weights, heads, recipe):
    """The graph of all parts, which are numbered in their row."""
    if "0.weight" not in weights or not all(name.split(".")[0].isdigit() for name in weights):
        raise SystemExit(f"{', '.join(weights)}: not of a model that this program knows")
    parts = sorted({int(name.split(".")[0]) for name in weights})
    layers, last = parts[1:-1], parts[-1]
    vocabulary, hidden = weights["0.weight"].shape
    if hidden % heads:
        raise SystemExit(f"--heads: expected a divisor of {hidden}, got {heads}")
    g = Graph(weights, recipe)
    x = g("Gather", g.weight("0.weight"), "tokens")
    length = g("Gather", g("Shape", "tokens"), np.int64(1))
    if "0.position_weight" in weights:
        places = g("Range", np.int64(0), length, np.int64(1))
        x = g("Add", x, g("Gather", g.weight("0.position_weight"), places))
    square = g("Unsqueeze", length, np.int64([0]))
    nothing = helper.make_tensor("nothing", TensorProto.FLOAT, [1], [float("-inf")])
    mask = g("Trilu", g("ConstantOfShape", g("Concat", square, square, axis=0), value=nothing), np.int64(1), upper=1)
    for part in layers:
        x = mlp(g, attention(g, x, f"{part}.self_attention", heads, mask), f"{part}.layernorm_mlp")
    x = g.norm(x, f"{last}.weight", f"{last}.bias")
    g.nodes.append(helper.make_node("MatMul", [x, g.constant(weights["0.weight"].T, "head")], ["logits"]))
    unused = set(weights) - g.taken
    if unused:
        raise SystemExit(f"{', '.join(sorted(unused))}: not of a model that this program knows")
    tokens = helper.make_tensor_value_info("tokens", TensorProto.INT64, ["batch", "length"])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "length", vocabulary])
    graph = helper.make_graph(g.nodes, "nvte", [tokens], [logits], g.initializers)
    versions = [helper.make_opsetid("", 20), helper.make_opsetid("nvte", 1)]
    return helper.make_model(graph, opset_imports=versions, ir_version=9)


def main(arguments=None):
    parser = argparse.ArgumentParser(description="Writes the language model of a checkpoint as a graph of ONNX.")
    parser.add_argument("checkpoint")
    parser.add_argument("--heads", type=int, required=True, help="heads of each attention")
    parser.add_argument("--recipe", choices=RECIPES, default="none", help="of the products of weights")
    parser.add_argument("--out", required=True)
    options = parser.parse_args(arguments)
    # Names begin with that of the model.
    weights = {name.split(".", 1)[1]: values for name, values in read(options.checkpoint).items()}
    onnx.save(model(weights, options.heads, options.recipe), options.out)


if __name__ == "__main__":
    main()
