"""What needs nothing but Python: the buffer protocol, DLPack by hand, operators, modules, errors."""

import array
import ctypes
import gc
import math
import random
import sys
import unittest
from pathlib import Path

import nvte
from nvte import _abi, _tensor


def numbers(count, seed):
    """Numbers between -1 and 1 that float32 has."""
    source = random.Random(seed)
    return array.array("f", [source.uniform(-1, 1) for _ in range(count)])


def matrix(values, rows, columns):
    """A view of floats as a matrix, through the buffer protocol."""
    return memoryview(values).cast("B").cast("f", (rows, columns))


def product(a, b):
    """`a @ b` of lists of rows."""
    return [[math.fsum(x * y for x, y in zip(row, column)) for column in zip(*b)] for row in a]


def transposed(a):
    return [list(row) for row in zip(*a)]


class ByHand:
    """An array that has DLPack's functions and nothing else, over memory of ctypes."""

    def __init__(self, values, shape, strides=None, code=2, bits=32, device=1):
        self.memory = (ctypes.c_float * len(values))(*values)
        self.device = device
        dims = (ctypes.c_int64 * len(shape))(*shape)
        steps = strides and (ctypes.c_int64 * len(strides))(*strides)
        pointer = ctypes.POINTER(ctypes.c_int64)
        self.deleted = 0
        self.managed = _tensor._DLManagedTensor()
        self.managed.dl_tensor = _tensor._DLTensor(
            ctypes.addressof(self.memory), _tensor._DLDevice(device, 0), len(shape),
            _tensor._DLDataType(code, bits, 1), ctypes.cast(dims, pointer),
            ctypes.cast(steps, pointer) if steps else None, 0)
        self.kept = dims, steps

    def __dlpack_device__(self):
        return self.device, 0

    def __dlpack__(self, stream=None):
        return _tensor._capsule_new(ctypes.addressof(self.managed), b"dltensor", None)


class Test(unittest.TestCase):
    def assertClose(self, got, expected, tolerance):
        self.assertEqual(len(got), len(expected))
        for row, (left, right) in enumerate(zip(got, expected)):
            self.assertEqual(len(left), len(right))
            for column, (x, y) in enumerate(zip(left, right)):
                self.assertLessEqual(abs(x - y), tolerance, f"[{row}, {column}]: expected {y}, got {x}")

    def test_layouts(self):
        """Structs have the layouts that a C compiler gives them."""
        lines = (Path(__file__).parents[2] / "layouts.txt").read_text().splitlines()
        self.assertGreater(len(lines), 20)
        for line in lines:
            name, size, alignment, *fields = line.split()
            struct = getattr(_abi, name)
            self.assertEqual(ctypes.sizeof(struct), int(size), name)
            self.assertEqual(ctypes.alignment(struct), int(alignment), name)
            offsets = [f"{field}={getattr(struct, field).offset}" for field, _ in struct._fields_]
            self.assertEqual(offsets, fields, name)

    def test_functions(self):
        """The library has every function that the headers declare."""
        for name in _abi.FUNCTIONS:
            nvte._library._function(name)

    def test_memory(self):
        x = nvte.array([[1, 2, 3], [4, 5, 6]])
        self.assertEqual((x.shape, x.dtype, x.size, x.nbytes), ((2, 3), "float32", 6, 24))
        self.assertEqual(x.tolist(), [[1, 2, 3], [4, 5, 6]])
        self.assertEqual(x.reshape(3, 2).tolist(), [[1, 2], [3, 4], [5, 6]])
        self.assertEqual(nvte.array([7, -8], "int64").tolist(), [7, -8])
        self.assertEqual(nvte.array([0.5, 1.75], "bfloat16").tobytes(), b"\x00\x3f\xe0\x3f")
        self.assertEqual(nvte.array([0.5, -2], "float16").tolist(), [0.5, -2])
        self.assertEqual(nvte.zeros((2, 0)).tolist(), [[], []])
        self.assertEqual(nvte.array(3).tolist(), 3)
        with self.assertRaisesRegex(ValueError, "different lengths"):
            nvte.array([[1, 2], [3]])
        with self.assertRaisesRegex(ValueError, "dtype: expected one of"):
            nvte.empty((2,), "float31")

    def test_buffers(self):
        values = array.array("f", [1, 2, 3, 4])
        tensor = nvte.as_tensor(matrix(values, 2, 2))
        self.assertEqual(tensor.tolist(), [[1, 2], [3, 4]])
        values[3] = 9
        self.assertEqual(tensor.tolist(), [[1, 2], [3, 9]])
        self.assertEqual(nvte.as_tensor(array.array("q", [5])).dtype, "int64")
        self.assertEqual(nvte.as_tensor(bytearray(b"\x38"), "float8e4m3").dtype, "float8e4m3")
        for wrong, error, text in [
            (b"1234", ValueError, "read-only"), (array.array("d", [1]), TypeError, "format 'd'"),
            (memoryview(array.array("f", [1, 2, 3]))[::2], ValueError, "contiguous"), (3, TypeError, "got int"),
        ]:
            with self.assertRaisesRegex(error, text):
                nvte.as_tensor(wrong)
        with self.assertRaisesRegex(ValueError, "not of the size"):
            nvte.as_tensor(values, "bfloat16")

    def test_dlpack(self):
        source = ByHand([1, 2, 3, 4, 5, 6], (2, 3))
        tensor = nvte.as_tensor(source)
        self.assertEqual(tensor.tolist(), [[1, 2, 3], [4, 5, 6]])
        # A view of the same memory.
        source.memory[5] = 7
        self.assertEqual(tensor.tolist(), [[1, 2, 3], [4, 5, 7]])
        # Strides of dimensions of 1 do not matter.
        self.assertEqual(nvte.as_tensor(ByHand([1, 2], (1, 2), (77, 1))).tolist(), [[1, 2]])
        for wrong, error, text in [
            (ByHand([1, 2, 3, 4], (2, 2), (1, 2)), ValueError, "contiguous"),
            (ByHand([1, 2], (2,), code=5), TypeError, "type \\(5, 32\\)"),
            (ByHand([1, 2], (2,), device=2), nvte.Error, "device type 2"),
        ]:
            with self.assertRaisesRegex(error, text):
                nvte.as_tensor(wrong)

    def test_dlpack_export(self):
        """A tensor goes out and back, and its memory is freed once, whether or not somebody takes the capsule."""
        before = len(_tensor._exported)
        tensor = nvte.array([[1, 2], [3, 4]])
        back = nvte.as_tensor(type("Array", (), {"__dlpack__": lambda self: tensor.__dlpack__()})())
        self.assertEqual((back.data, back.tolist()), (tensor.data, [[1, 2], [3, 4]]))
        self.assertEqual(len(_tensor._exported), before + 1)
        del back
        gc.collect()
        self.assertEqual(len(_tensor._exported), before)
        # What a package does that takes the capsule: it renames it, and calls the deleter in the end.
        capsule = tensor.__dlpack__()
        address = _tensor._capsule_get(capsule, b"dltensor")
        rename = ctypes.pythonapi.PyCapsule_SetName
        rename.argtypes = [ctypes.py_object, ctypes.c_char_p]
        rename(capsule, b"used_dltensor")
        del capsule
        self.assertEqual(len(_tensor._exported), before + 1)
        managed = ctypes.cast(address, ctypes.POINTER(_tensor._DLManagedTensor))
        managed.contents.deleter(managed)
        self.assertEqual(len(_tensor._exported), before)

    def test_quantize_per_tensor(self):
        """With a scale of 2, E4M3 has 1, -2.5 and 6, and 1000 is saturated to 448."""
        x = nvte.array([[0.5, -1.25, 3, 1000]])
        q = nvte.quantize(x, scale=2)
        self.assertEqual(q.rowwise.tobytes(), b"\x38\xc2\x4c\x7e")
        self.assertEqual(nvte.dequantize(q).tolist(), [[0.5, -1.25, 3, 224]])
        # The largest magnitude becomes the largest number: 448.
        q = nvte.quantize(nvte.array([[7.0, -3.5, 0, 1.75]]), columnwise=True)
        self.assertEqual(q.rowwise.tobytes(), b"\x7e\xf6\x00\x6e")
        self.assertEqual(q.amax.tolist(), [7])
        self.assertEqual((q.columnwise.shape, q.columnwise.tobytes()), ((4, 1), b"\x7e\xf6\x00\x6e"))

    def test_quantize_in_blocks(self):
        """Powers of two are exact in each scaling, whatever the blocks: each block has one of them only."""
        rows = [[2.0 ** (r // 128 + c // 128 - 3)] * 128 for r in range(256) for c in (0, 128)]
        x = nvte.array([rows[2 * r] + rows[2 * r + 1] for r in range(256)])
        for scaling in ("block_1d", "block_2d", "mxfp8"):
            for dtype in ("float8e4m3", "float8e5m2"):
                q = nvte.quantize(x, dtype, scaling, columnwise=True, power_2_scales=True)
                self.assertEqual(nvte.dequantize(q).tolist(), x.tolist(), (scaling, dtype))
        with self.assertRaisesRegex(ValueError, "scaling: expected one of tensor"):
            nvte.quantize(x, scaling="blocks")

    def test_gemm(self):
        m, n, k = 6, 4, 5
        a, b, bias = numbers(m * k, 1), numbers(k * n, 2), numbers(n, 3)
        left, right = matrix(a, m, k), matrix(b, k, n)
        expected = product(left.tolist(), right.tolist())
        self.assertClose(nvte.gemm(left, right).tolist(), expected, 1e-6)
        across = nvte.array(transposed(left.tolist())), nvte.array(transposed(right.tolist()))
        self.assertClose(nvte.gemm(*across, transpose_a=True, transpose_b=True).tolist(), expected, 1e-6)
        out = array.array("f", [1] * (m * n))
        nvte.gemm(left, right, out=matrix(out, m, n), accumulate=True)
        self.assertClose(matrix(out, m, n).tolist(), [[1 + x for x in row] for row in expected], 1e-6)
        with_bias = [[x + y for x, y in zip(row, bias)] for row in expected]
        self.assertClose(nvte.gemm(left, right, bias=bias).tolist(), with_bias, 1e-6)
        with self.assertRaisesRegex(ValueError, "inner dimensions, got 5 and 6"):
            nvte.gemm(left, left, transpose_a=False)

    def test_gemm_fp8(self):
        """Small integers are numbers of E4M3, so the products are exact but for the scales."""
        source = random.Random(4)
        a = [[float(source.randint(-8, 8)) for _ in range(48)] for _ in range(32)]
        b = [[float(source.randint(-8, 8)) for _ in range(48)] for _ in range(16)]
        left, right = (nvte.quantize(nvte.array(x), scale=2) for x in (a, b))
        self.assertEqual(nvte.gemm(left, right, transpose_b=True).tolist(), product(a, transposed(b)))
        half = nvte.gemm(left, right, transpose_b=True, dtype="bfloat16")
        self.assertEqual(half.dtype, "bfloat16")

    def test_norms(self):
        n, h = 3, 7
        x, gamma, beta = numbers(n * h, 5), numbers(h, 6), numbers(h, 7)
        rows = matrix(x, n, h).tolist()
        y, mu, rsigma = nvte.layernorm(matrix(x, n, h), gamma, beta)
        means = [math.fsum(row) / h for row in rows]
        variances = [math.fsum((v - mean) ** 2 for v in row) / h for row, mean in zip(rows, means)]
        expected = [[(v - mean) / math.sqrt(variance + 1e-5) * g + b for v, g, b in zip(row, gamma, beta)]
                    for row, mean, variance in zip(rows, means, variances)]
        self.assertClose(y.tolist(), expected, 1e-5)
        self.assertClose([mu.tolist()], [means], 1e-6)
        y, rsigma = nvte.rmsnorm(matrix(x, n, h), gamma)
        roots = [1 / math.sqrt(math.fsum(v * v for v in row) / h + 1e-5) for row in rows]
        self.assertClose(y.tolist(), [[v * r * g for v, g in zip(row, gamma)] for row, r in zip(rows, roots)], 1e-5)
        # With a gradient of ones for y = x * rsigma * gamma, dgamma sums x * rsigma over the rows.
        ones = nvte.array([[1.0] * h] * n)
        dx, dgamma = nvte.rmsnorm_backward(ones, matrix(x, n, h), rsigma, gamma)
        sums = [math.fsum(row[i] * r for row, r in zip(rows, roots)) for i in range(h)]
        self.assertClose([dgamma.tolist()], [sums], 1e-5)
        self.assertEqual(dx.shape, (n, h))
        dx, dgamma, dbeta = nvte.layernorm_backward(
            ones, matrix(x, n, h), *nvte.layernorm(matrix(x, n, h), gamma, beta)[1:], gamma)
        self.assertClose([dbeta.tolist()], [[n] * h], 1e-6)

    def linear(self, recipe, tolerance):
        m, k, n = 32, 16, 48
        w, x, dy = (nvte.array(matrix(numbers(r * c, s), r, c).tolist()) for r, c, s in
                    [(n, k, 1), (m, k, 2), (m, n, 3)])
        context = nvte.Context()
        layer = nvte.Linear(context, name="layer", in_features=k, out_features=n, bias=False)
        layer.bind("weight", w)
        gradients = layer.make_gradients()
        if recipe:
            with context.autocast(nvte.Recipe(recipe)):
                y, tape = layer.forward(x)
        else:
            y, tape = layer.forward(x)
        dx = layer.backward(tape, dy)
        w, x, dy = w.tolist(), x.tolist(), dy.tolist()
        self.assertClose(y.tolist(), product(x, transposed(w)), tolerance)
        self.assertClose(dx.tolist(), product(dy, w), tolerance)
        self.assertClose(gradients["weight"].tolist(), product(transposed(dy), x), tolerance)
        return layer.precision("weight")

    def test_linear(self):
        self.assertEqual(self.linear(None, 1e-5), ("high_precision", "float32"))

    def test_linear_fp8(self):
        """Elements up to 1 are rounded by up to 1/16 or 1/8; the errors of up to 48 products have both signs."""
        self.assertEqual(self.linear("current_scaling", 2), ("current", "float8e4m3"))

    def test_transformer_layer(self):
        context = nvte.Context()
        layer = nvte.TransformerLayer(
            context, attention={"num_attention_heads": 2, "attn_mask_type": "no_mask"},
            mlp={"hidden_size": 32, "ffn_hidden_size": 64, "activation": "swiglu", "norm": {"kind": "rmsnorm"}})
        shapes = {p.name: p.shape for p in layer.parameters}
        self.assertEqual(shapes["layernorm_mlp.fc1_weight"], (128, 32))
        self.assertNotIn("layernorm_mlp.layer_norm_bias", shapes)
        gradients = layer.make_gradients()
        x = nvte.array([matrix(numbers(64, i), 2, 32).tolist() for i in range(8)])
        y, tape = layer.forward(x, rotary_frequencies=nvte.rotary_frequencies(8, 16))
        dx = layer.backward(tape, y)
        self.assertEqual((y.shape, dx.shape), (x.shape, x.shape))
        for name, gradient in gradients.items():
            flat = memoryview(gradient.tobytes()).cast("f").tolist()
            self.assertTrue(all(map(math.isfinite, flat)), name)
            self.assertTrue(any(flat) or name.endswith("bias"), name)

    def test_attention(self):
        """With equal scores and no mask each query gets the mean of the values."""
        context = nvte.Context()
        attention = nvte.Attention(
            context, num_attention_heads=1, head_dim_qk=8, qkv_format="bshd", attn_mask_type="no_mask")
        zeros = nvte.zeros((1, 4, 1, 8))
        values = matrix(numbers(32, 8), 4, 8).tolist()
        v = nvte.array(values).reshape(1, 4, 1, 8)
        y = attention(zeros, zeros, v)
        self.assertEqual(y.shape, (1, 4, 8))
        mean = [math.fsum(column) / 4 for column in zip(*values)]
        self.assertClose(y.tolist()[0], [mean] * 4, 1e-6)

    def test_grouped_linear(self):
        context = nvte.Context()
        layer = nvte.GroupedLinear(
            context, num_gemms=2, linear={"in_features": 16, "out_features": 16, "bias": False})
        x = matrix(numbers(5 * 16, 9), 5, 16)
        y = layer(x, m_splits=[2, 3])
        first, second = (layer.value(i).tolist() for i in range(2))
        expected = product(x.tolist()[:2], transposed(first)) + product(x.tolist()[2:], transposed(second))
        self.assertClose(y.tolist(), expected, 1e-5)

    def test_model(self):
        """Logits that are all equal: the loss is the logarithm of the vocabulary's size, whatever the tokens."""
        context = nvte.Context()
        embedding = nvte.Embedding(context, vocabulary_size=24, hidden_size=16, init_std=0)
        model = nvte.Sequential(context, {
            "embedding": embedding, "linear": nvte.Linear(context, in_features=16, out_features=16),
            "head": nvte.LMHead(context, tied_to=embedding)})
        names = [parameter.name for parameter in model.parameters]
        self.assertEqual(names, ["embedding.weight", "linear.weight", "linear.bias"])
        gradients = model.make_gradients()
        tokens, targets = nvte.array([0, 5, 23, 7], "int32"), nvte.array([5, 23, 7, 0], "int32")
        loss, tape = model.forward(tokens, None, targets)
        self.assertClose([loss.tolist()], [[math.log(24)]], 1e-5)
        self.assertIsNone(model.backward(tape, needs_input_grad=False))
        # The gradient of a logit is its probability, 1 / 24, less 1 for the target; hidden states are 0.
        self.assertTrue(all(not any(row) for row in gradients["linear.weight"].tolist()))

    def test_delayed_scaling(self):
        recipe = nvte.Recipe("delayed_scaling", amax_history_len=4, format="hybrid")
        context = nvte.Context()
        layer = nvte.LayerNormMLP(context, name="mlp", hidden_size=32, ffn_hidden_size=64)
        layer.make_gradients()
        x = nvte.array(matrix(numbers(16 * 32, 10), 16, 32).tolist())
        for _ in range(2):
            with context.autocast(recipe):
                y, tape = layer.forward(x)
            context.forward_update()
            layer.backward(tape, y)
            context.backward_update()
        state = context.save()
        other = nvte.Context()
        other.load(state)
        self.assertEqual(other.save(), state)
        with self.assertRaisesRegex(nvte.Error, "nvtex_context_load") as raised:
            other.load(state[:-1])
        self.assertEqual(raised.exception.status, "invalid_argument")

    def test_errors(self):
        context = nvte.Context()
        with self.assertRaisesRegex(nvte.Error, "config.out_features: expected"):
            nvte.Linear(context, in_features=16)
        with self.assertRaisesRegex(ValueError, "Linear.dtype: expected one of byte"):
            nvte.Linear(context, in_features=16, out_features=16, dtype="double")
        with self.assertRaisesRegex(TypeError, "unknown field 'heads'; there are name, num_attention_heads"):
            nvte.TransformerLayer(context, attention={"heads": 2})
        with self.assertRaisesRegex(ValueError, "kind: expected one of delayed_scaling"):
            nvte.Recipe("fp8")
        layer = nvte.Linear(context, in_features=16, out_features=16)
        with self.assertRaisesRegex(KeyError, "no parameter 'w'; it has weight, bias"):
            layer.bind("w", nvte.zeros((16, 16)))
        with self.assertRaisesRegex(nvte.Error, "inputs"):
            layer(nvte.zeros((4, 8)))
        # The error is told once: later calls succeed.
        self.assertEqual(layer(nvte.zeros((4, 16))).shape, (4, 16))
        with self.assertRaisesRegex(nvte.Error, "expected an open region"):
            nvte.call("nvtex_context_end", context.handle)

    def test_readme(self):
        """The programs of the README run."""
        text = (Path(__file__).parents[1] / "README.md").read_text()
        programs = [block.split("```")[0] for block in text.split("```python\n")[1:]]
        self.assertEqual(len(programs), 1)
        for program in programs:
            exec(compile(program, "README.md", "exec"), {})

    def test_lifetimes(self):
        """Modules keep their contexts and what is bound to them."""
        layer = nvte.Linear(nvte.Context(), in_features=16, out_features=16, bias=False)
        layer.bind("weight", nvte.array([[float(i == j) for j in range(16)] for i in range(16)]))
        gc.collect()
        x = matrix(numbers(32, 11), 2, 16)
        self.assertEqual(layer(x).tolist(), x.tolist())


if __name__ == "__main__":
    sys.exit(not unittest.main(exit=False, verbosity=1).result.wasSuccessful())
