"""
The operators in graphs of ONNX Runtime, compared with NumPy: `test_onnxruntime.py LIBRARY`.

Graphs are written as bytes of protobuf, so that the test needs no package but onnxruntime and NumPy.
"""

import struct
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnxruntime

FLOAT = 1
LIBRARY = sys.argv[1]


def number(value):
    digits = b""
    while value > 127:
        digits, value = digits + bytes([value & 127 | 128]), value >> 7
    return digits + bytes([value])


def field(index, value):
    """A field of protobuf: a number, a float, or bytes and text with their length."""
    if isinstance(value, int):
        return number(index << 3) + number(value)
    if isinstance(value, float):
        return number(index << 3 | 5) + struct.pack("<f", value)
    value = value.encode() if isinstance(value, str) else value
    return number(index << 3 | 2) + number(len(value)) + value


def attribute(name, value):
    kind, index = (1, 2) if isinstance(value, float) else (3, 4)
    return field(1, name) + field(index, value) + field(20, kind)


def node(op, inputs, output, **attributes):
    parts = [field(1, name) for name in inputs] + [field(2, output), field(4, op)]
    parts += [field(5, attribute(*pair)) for pair in attributes.items()]
    return b"".join(parts) + field(7, "nvte")


def value(name, rank):
    shape = b"".join(field(1, field(2, f"{name}{i}")) for i in range(rank))
    return field(1, name) + field(2, field(1, field(1, FLOAT) + field(2, shape)))


def session(nodes, **ranks):
    """A graph whose inputs have these ranks; its output is y."""
    graph = b"".join(field(1, one) for one in nodes) + field(2, "graph")
    graph += b"".join(field(11, value(name, rank)) for name, rank in ranks.items()) + field(12, value("y", ranks["x"]))
    model = field(1, 8) + field(7, graph) + field(8, field(2, 17)) + field(8, field(1, "nvte") + field(2, 1))
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(LIBRARY)
    options.log_severity_level = 4  # errors are raised, too
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def check(what, good):
    print(f"{what} ... {'ok' if good else 'FAILED'}")
    if not good:
        sys.exit(1)


def raises(what, text, call):
    try:
        call()
    except Exception as error:
        check(what, text in str(error) or print(error))
        return
    check(what, False)


def floats(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def main():
    x, weight, bias, gamma = floats(1, 3, 5, 64), floats(2, 64, 64), floats(3, 64), floats(4, 64)

    norm = session([node("RMSNorm", ["x", "gamma"], "y", epsilon=0.25)], x=3, gamma=1)
    expected = x / np.sqrt((x.astype(np.float64) ** 2).mean(-1, keepdims=True) + 0.25) * gamma
    check("RMSNorm", np.allclose(norm.run(None, {"x": x, "gamma": gamma})[0], expected, rtol=1e-5, atol=1e-6))
    ranks = {"x": 3, "weight": 2}
    exact = x.astype(np.float64) @ weight.T

    plain = session([node("Linear", ["x", "weight"], "y")], **ranks)
    check("Linear", np.allclose(plain.run(None, {"x": x, "weight": weight})[0], exact, rtol=1e-5, atol=1e-5))
    biased = session([node("Linear", ["x", "weight", "bias"], "y", recipe="none")], **ranks, bias=1)
    got = biased.run(None, {"x": x, "weight": weight, "bias": bias})[0]
    check("Linear with a bias", np.allclose(got, exact + bias, rtol=1e-5, atol=1e-5))

    # With a largest magnitude of 7 the scale is 448 / 7 = 64, a power of two: E4M3 keeps 3 bits behind the point, so
    # that 1.0625 becomes 1 (to the even neighbour), and all else here stays as it is.
    rounded = np.random.default_rng(5).choice(np.float32([-7, -3, 1, 1.0625, 2.5]), (4, 64))
    rounded[0, 0] = 7
    whole = np.random.default_rng(6).integers(-7, 8, (32, 64)).astype(np.float32)
    whole[0, 0] = 7
    fp8 = session([node("Linear", ["x", "weight"], "y", recipe="current_scaling")], x=2, weight=2)
    expected = np.where(rounded == 1.0625, 1, rounded) @ whole.T
    check("Linear in FP8 of numbers whose codes are known", np.array_equal(fp8.run(None, {"x": rounded, "weight": whole})[0], expected))

    for recipe in ("current_scaling", "block_scaling", "mxfp8"):
        linear = session([node("Linear", ["x", "weight"], "y", recipe=recipe)], **ranks)
        got = linear.run(None, {"x": x, "weight": weight})[0]
        error = np.linalg.norm(got - exact) / np.linalg.norm(exact)
        # Two operands with 3 bits behind the point, each off by 2 to 3 % of its norm.
        check(f"Linear, {recipe}: {error:.2%}", 0.005 < error < 0.06)
        # A module is made anew for a weight of another shape.
        got = linear.run(None, {"x": x, "weight": weight[:32]})[0]
        check(f"Linear, {recipe}, another weight", np.linalg.norm(got - exact[..., :32]) < 0.06 * np.linalg.norm(exact[..., :32]))

    both = [node("RMSNorm", ["x", "gamma"], "h"), node("Linear", ["h", "weight"], "y")]
    chain = session(both, x=3, gamma=1, weight=2)
    normed = x / np.sqrt((x.astype(np.float64) ** 2).mean(-1, keepdims=True) + 1e-5) * gamma
    inputs = {"x": x, "gamma": gamma, "weight": weight}
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: chain.run(None, inputs)[0], range(32)))
    good = all(np.allclose(result, normed @ weight.T, rtol=1e-4, atol=1e-4) for result in results)
    check("both in a row, from 4 threads", good and all(np.array_equal(result, results[0]) for result in results))

    raises("shapes that do not go together", "the same last dimension", lambda: plain.run(None, {"x": x, "weight": weight[:, :48]}))
    unknown = [node("Linear", ["x", "weight"], "y", recipe="int3")]
    raises("a recipe that does not exist", "got \"int3\"", lambda: session(unknown, **ranks))
    raises("features that FP8 does not take", "16", lambda: fp8.run(None, {"x": rounded[:, :20], "weight": whole[:, :20]}))


main()
