"""Times what else computes the rows of `cargo xtask bench field` in this machine's Python: PyTorch's products, attention
(FlashAttention, cuDNN), norms and top-k, and cuDNN's FP8 attention through its front end where that is installed.

    field.py SECONDS ROW...

Prints `ROW<tab>WHO<tab>SECONDS<tab>SUSTAINED<tab>MHZ<tab>WATTS` for each that runs, and `ROW<tab>WHO<tab>! REASON` for
each that does not. Times are medians of nine samples of calls queued one after the other, each after a rest of 50 ms;
SUSTAINED is the mean over the last of SECONDS without a rest, with the clock and the power at their end.
"""

import math
import os
import re
import statistics
import subprocess
import sys
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

REST, SAMPLES, SAMPLE_SECONDS = 0.05, 9, 0.01
E4M3 = torch.float8_e4m3fn


def random(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, device="cuda", dtype=torch.float32).to(dtype)


def timed(call, count):
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(count):
        call()
    end.record()
    return begin, end


def elapsed(events):
    events[1].synchronize()
    return events[0].elapsed_time(events[1]) / 1e3


def state():
    gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0] or "0"
    query = ["nvidia-smi", "--query-gpu=clocks.sm,power.draw", "--format=csv,noheader,nounits"]
    query += ["-i", gpu]
    line = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()[0]
    return [float(x) for x in line.split(",")]


def measure(call, seconds):
    for _ in range(3):
        call()
    once = elapsed(timed(call, 5)) / 5
    count = max(1, int(SAMPLE_SECONDS / once))
    samples = []
    for _ in range(SAMPLES):
        torch.cuda.synchronize()
        time.sleep(REST)
        samples.append(elapsed(timed(call, count)) / count)
    if seconds == 0:
        return statistics.median(samples), 0.0, 0.0, 0.0
    begin = time.monotonic()
    while time.monotonic() - begin < seconds * 0.8:
        elapsed(timed(call, 10 * count))
    last = timed(call, max(1, int(0.2 * seconds / once)))
    mhz, watts = state()
    sustained = elapsed(last) / max(1, int(0.2 * seconds / once))
    return statistics.median(samples), sustained, mhz, watts


def rotating(*calls):
    """Calls of the same operator on inputs of their own, in turn, so that L2 holds none of them."""
    turn = [0]

    def call():
        turn[0] = (turn[0] + 1) % len(calls)
        calls[turn[0]]()

    return call


def products(dtype, layout, m, n, k):
    if layout != "TN":
        return
    sets = 3 if m * k >= 1 << 24 else 8
    if dtype == "bf16":
        operands = [(random(m, k), random(n, k)) for _ in range(sets)]
        yield "torch.matmul", rotating(*[lambda a=a, b=b: a @ b.t() for a, b in operands])
    elif dtype == "fp8":
        one = torch.ones((), device="cuda")
        operands = [(random(m, k, dtype=E4M3), random(n, k, dtype=E4M3)) for _ in range(sets)]

        def product(a, b, fast):
            return lambda: torch._scaled_mm(
                a, b.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=fast
            )

        yield "torch._scaled_mm", rotating(*[product(a, b, True) for a, b in operands])
        rows = [torch.ones(m, 1, device="cuda"), torch.ones(1, n, device="cuda")]
        yield "torch._scaled_mm, a scale for each row", rotating(
            *[
                lambda a=a, b=b: torch._scaled_mm(
                    a, b.t(), *rows, out_dtype=torch.bfloat16, use_fast_accum=True
                )
                for a, b in operands
            ]
        )


def block_products(m, n, k):
    operands = [(random(m, k, dtype=E4M3), random(n, k, dtype=E4M3)) for _ in range(4)]
    a_scale = torch.ones(k // 128, m, device="cuda").t()
    b_scale = torch.ones(n // 128, k // 128, device="cuda").t()
    yield "torch._scaled_mm", rotating(
        *[
            lambda a=a, b=b: torch._scaled_mm(
                a, b.t(), a_scale, b_scale, out_dtype=torch.bfloat16
            )
            for a, b in operands
        ]
    )


def attention(direction, causal, batch, length, heads, width):
    q, k, v, grad = (random(batch, heads, length, width) for _ in range(4))
    for name, backend in (
        ("PyTorch, FlashAttention", SDPBackend.FLASH_ATTENTION),
        ("PyTorch, cuDNN", SDPBackend.CUDNN_ATTENTION),
    ):
        def forward(backend=backend):
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

        def backward(backend=backend):
            inputs = [x.detach().requires_grad_() for x in (q, k, v)]
            with sdpa_kernel(backend):
                out = F.scaled_dot_product_attention(*inputs, is_causal=causal)
            return lambda: torch.autograd.grad(out, inputs, grad, retain_graph=True)

        yield name, forward if direction == "forward" else backward


def fp8_attention(direction, causal, batch, length, heads, width):
    import cudnn

    handle = cudnn.create_handle()
    cudnn.set_stream(handle=handle, stream=torch.cuda.current_stream().cuda_stream)
    fp8, f32 = cudnn.data_type.FP8_E4M3, cudnn.data_type.FLOAT
    graph = cudnn.pygraph(
        io_data_type=fp8, intermediate_data_type=f32, compute_data_type=f32, handle=handle
    )
    shape = (batch, heads, length, width)
    stride = (length * heads * width, width, heads * width, 1)  # [batch, length, heads, width]
    memory = {}

    def operand(name):
        tensor = graph.tensor(name=name, dim=shape, stride=stride, data_type=fp8)
        memory[tensor] = random(batch, length, heads, width, dtype=E4M3)
        return tensor

    def one(name):
        tensor = graph.tensor(name=name, dim=(1, 1, 1, 1), stride=(1, 1, 1, 1), data_type=f32)
        memory[tensor] = torch.ones(1, device="cuda")
        return tensor

    def result(tensor, dim, strides, dtype, torch_dtype):
        tensor.set_output(True).set_dim(dim).set_stride(strides).set_data_type(dtype)
        memory[tensor] = torch.empty(
            batch, length, heads, dim[3], dtype=torch.float32, device="cuda"
        ).to(torch_dtype)

    rows = (batch, heads, length, 1), (heads * length, length, 1, 1)
    if direction == "forward":
        names = ("descale_q", "descale_k", "descale_v", "descale_s", "scale_s", "scale_o")
        out, stats, *maxima = graph.sdpa_fp8(
            operand("q"),
            operand("k"),
            operand("v"),
            *[one(name) for name in names],
            generate_stats=True,
            attn_scale=width**-0.5,
            use_causal_mask=causal,
        )
        result(out, shape, stride, fp8, E4M3)
        result(stats, *rows, f32, torch.float32)
    else:
        stats = graph.tensor(name="stats", dim=rows[0], stride=rows[1], data_type=f32)
        # About the logarithm of a row's sum, so that probabilities are those of such rows.
        memory[stats] = torch.full(rows[0], math.log(length) + 0.5, device="cuda")
        names = [f"descale_{name}" for name in ("q", "k", "v", "o", "dO", "s", "dP")]
        names += [f"scale_{name}" for name in ("s", "dQ", "dK", "dV", "dP")]
        *gradients, amax_dq, amax_dk, amax_dv, amax_dp = graph.sdpa_fp8_backward(
            **{name: operand(name) for name in ("q", "k", "v", "o", "dO")},
            stats=stats,
            **{name: one(name) for name in names},
            attn_scale=width**-0.5,
            use_causal_mask=causal,
        )
        maxima = amax_dq, amax_dk, amax_dv, amax_dp
        for gradient in gradients:
            result(gradient, shape, stride, fp8, E4M3)
    for amax in maxima:
        amax.set_output(True).set_dim((1, 1, 1, 1)).set_stride((1, 1, 1, 1)).set_data_type(f32)
        memory[amax] = torch.zeros(1, device="cuda")
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    graph.check_support()
    graph.build_plans()
    workspace = torch.empty(max(1, graph.get_workspace_size()), dtype=torch.uint8, device="cuda")
    version = cudnn.backend_version()
    yield f"cuDNN {version}, front end", lambda: graph.execute(memory, workspace, handle=handle)


def norms(kind, rows, cols):
    sets = [(random(rows, cols), random(cols), random(cols)) for _ in range(3)]
    if kind == "layernorm":
        calls = [lambda x=x, w=w, b=b: F.layer_norm(x, (cols,), w, b) for x, w, b in sets]
    else:
        calls = [lambda x=x, w=w: F.rms_norm(x, (cols,), w) for x, w, _ in sets]
    yield "PyTorch", rotating(*calls)
    function = torch.compile(
        (lambda x, w, b: F.layer_norm(x, (cols,), w, b))
        if kind == "layernorm"
        else (lambda x, w, b: F.rms_norm(x, (cols,), w))
    )
    yield "PyTorch, compiled (Triton)", rotating(*[lambda s=s: function(*s) for s in sets])


def topk(dtype, rows, cols, k):
    x = random(rows, cols, dtype=torch.float32 if dtype == "f32" else torch.bfloat16)
    yield "torch.topk", lambda: torch.topk(x, k, dim=1, sorted=False)


def ints(*texts):
    return [int(text) for text in texts]


def implementations(row):
    if m := re.fullmatch(r"gemm (bf16|fp8) (\w\w) (\d+)x(\d+)x(\d+)", row):
        return products(m[1], m[2], *ints(*m.groups()[2:]))
    if m := re.fullmatch(r"gemm fp8 block 1d x 2d TN (\d+)x(\d+)x(\d+)", row):
        return block_products(*ints(*m.groups()))
    if m := re.fullmatch(r"attention (fp8 )?(\w+) (causal|full) (\d+)x(\d+)x(\d+)x(\d+)", row):
        function = fp8_attention if m[1] else attention
        return function(m[2], m[3] == "causal", *ints(*m.groups()[3:]))
    if m := re.fullmatch(r"(layernorm|rmsnorm) (\d+)x(\d+) -> bf16", row):
        return norms(m[1], *ints(m[2], m[3]))
    if m := re.fullmatch(r"topk (bf16|f32) (\d+)x(\d+), (\d+)", row):
        return topk(m[1], *ints(*m.groups()[1:]))
    return iter(())


def main():
    torch.manual_seed(0)
    seconds = float(sys.argv[1])
    for row in sys.argv[2:]:
        found = implementations(row)
        while True:
            who = "Python"
            try:
                who, call = next(found)
                if row.startswith("attention backward"):
                    call = call()
                figures = measure(call, seconds)
                print(row, who, *[f"{x:.9g}" for x in figures], sep="\t", flush=True)
            except StopIteration:
                break
            except Exception as error:  # A peer that is missing must not end the others.
                reason = (str(error).strip() or repr(error)).splitlines()[0]
                print(row, who, "! " + reason, sep="\t", flush=True)
                if who == "Python":
                    break
            torch.cuda.empty_cache()


main()
