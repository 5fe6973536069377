"""Times te.TransformerLayer (forward and backward) and the host cost of a small FP8 te.Linear on
the core that is loaded.

    layers.py [--out FILE.json] [--rows large|host]      run per core, on the same machine; then
    layers.py --theirs FILE.json... --ours FILE.json...

Rows of `host` take as long as Python takes, which changes from minute to minute: run them several
times, one core after the other in turn. The comparison takes the median over the files of a core.

A rested time is the median over bursts of a few steps, each after a pause that lets the GPU's
clocks recover; the pause makes the first step of a burst wait for the host, as in a real
program. A hot time has no pauses.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

FLOORS = {
    "none": 0.96,
    "delayed": 0.92,
    "current": 0.92,
    "block": 0.92,
    "attention": 0.92,
    "dropout": 0.94,
    "small": 0.90,
}


def burst(torch, step, count):
    """Milliseconds per step of `count` steps in a row, on the GPU's clock."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(count):
        step()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / count


def recipes():
    from transformer_engine.common import recipe

    delayed = dict(fp8_format=recipe.Format.HYBRID, amax_history_len=16, amax_compute_algo="max")
    return {
        "none": None,
        "delayed": recipe.DelayedScaling(**delayed),
        "current": recipe.Float8CurrentScaling(),
        "block": recipe.Float8BlockScaling(),
        "delayed_dpa": recipe.DelayedScaling(fp8_dpa=True, **delayed),
        "delayed_mha": recipe.DelayedScaling(fp8_dpa=True, fp8_mha=True, **delayed),
    }


def measure(name, floor, kind, sequence, batch, rec, dropout=0.0):
    import torch
    import transformer_engine.pytorch as te

    torch.manual_seed(1234)
    common = dict(
        hidden_dropout=dropout,
        attention_dropout=dropout,
        self_attn_mask_type="causal",
        attn_input_format="sbhd",
        fuse_qkv_params=True,
        params_dtype=torch.bfloat16,
    )
    call = {}
    if kind == "llama":
        layer = te.TransformerLayer(
            4096,
            14336,
            32,
            num_gqa_groups=8,
            normalization="RMSNorm",
            activation="swiglu",
            bias=False,
            **common,
        )
        call["rotary_pos_emb"] = te.RotaryPositionEmbedding(128)(sequence).cuda()
    else:
        layer = te.TransformerLayer(4096, 16384, 32, **common)
    chosen = recipes()[rec]
    x = torch.randn(sequence, batch, 4096, dtype=torch.bfloat16, device="cuda", requires_grad=True)
    dy = torch.randn_like(x)

    def step():
        with te.autocast(enabled=chosen is not None, recipe=chosen):
            y = layer(x, **call)
        y.backward(dy)

    for _ in range(5):
        step()
    x.grad = None
    step()
    gradient = float(x.grad.float().norm())
    torch.cuda.synchronize()
    rested = []
    for _ in range(7):
        time.sleep(0.05)
        rested.append(burst(torch, step, 6))
    hot = burst(torch, step, 40 if sequence > 100 else 200)
    return dict(
        name=name,
        floor=floor,
        rested=statistics.median(rested),
        hot=hot,
        gradient=gradient,
        recipe=rec,
    )


def measure_linear(rec):
    """Host time of a forward and backward step of te.Linear with 16 tokens: the GPU has so
    little to do that it waits."""
    import torch
    import transformer_engine.pytorch as te

    torch.manual_seed(1234)
    layer = te.Linear(4096, 4096, params_dtype=torch.bfloat16)
    chosen = recipes()[rec]
    x = torch.randn(16, 4096, dtype=torch.bfloat16, device="cuda", requires_grad=True)
    dy = torch.randn_like(x)

    def forward():
        with te.autocast(enabled=chosen is not None, recipe=chosen):
            return layer(x)

    def both():
        forward().backward(dy)

    times = {}
    for part, step in (("forward", forward), ("forward and backward", both)):
        for _ in range(50):
            step()
        torch.cuda.synchronize()
        rounds = []
        for _ in range(9):
            begin = time.perf_counter()
            for _ in range(30):
                step()
            rounds.append((time.perf_counter() - begin) / 30 * 1e6)
            torch.cuda.synchronize()
        times[part] = statistics.median(rounds)
    return [
        dict(name=f"linear 16 tokens, {part}", floor="host", us=value, recipe=rec)
        for part, value in times.items()
    ]


SIZES = (("gpt 4096, 8k tokens", "gpt", 2048, 4), ("llama-3-8b, 8k tokens", "llama", 4096, 2))


def plan():
    for name, kind, sequence, batch in SIZES:
        for rec in ("none", "delayed", "current", "block"):
            yield name, rec, kind, sequence, batch, rec
        for rec in ("delayed_dpa", "delayed_mha"):
            yield name + ", FP8 attention", "attention", kind, sequence, batch, rec
    for rec in ("none", "delayed"):
        yield "gpt 4096, dropout", "dropout", "gpt", 2048, 4, rec, 0.1
    for rec in ("none", "delayed", "current", "block"):
        yield "gpt 4096, 16 tokens", "small", "gpt", 16, 1, rec


def backend():
    """Which attention the front end chooses, by its own words: theirs counts only where it is
    fused."""
    code = (
        "import torch, transformer_engine.pytorch as te\n"
        "m = te.DotProductAttention(32, 128)\n"
        "q = torch.randn(2048, 4, 32, 128, dtype=torch.bfloat16, device='cuda')\n"
        "m(q, q, q)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=dict(os.environ, NVTE_DEBUG="1", NVTE_DEBUG_LEVEL="2"),
        capture_output=True,
        text=True,
    )
    lines = [
        line.strip()
        for line in (done.stdout + done.stderr).splitlines()
        if "Selected backend" in line
    ]
    return lines[-1] if lines else "no line 'Selected backend': " + done.stderr[-300:]


def run(options):
    import gc

    import torch

    print(torch.cuda.get_device_name(), "torch", torch.__version__, flush=True)
    rows = []
    for name, floor, *sizes in plan():
        if options.rows not in ("all", "host" if floor == "small" else "large"):
            continue
        try:
            rows.append(measure(name, floor, *sizes))
            row = rows[-1]
            print(
                f"{name:38s} {row['recipe']:12s} rested {row['rested']:8.3f} ms   "
                f"hot {row['hot']:8.3f} ms   gradient {row['gradient']:.5g}",
                flush=True,
            )
        except Exception as error:
            rows.append(
                dict(
                    name=name,
                    floor=floor,
                    recipe=sizes[4],
                    error=f"{type(error).__name__}: {str(error)[:400]}",
                )
            )
            print(f"{name:38s} {sizes[4]:12s} FAILED {rows[-1]['error']}", flush=True)
        gc.collect()
        torch.cuda.empty_cache()
    for rec in ("none", "delayed", "current", "block") if options.rows != "large" else ():
        try:
            rows += measure_linear(rec)
            print(
                f"linear 16 tokens {rec:12s} {rows[-2]['us']:7.1f} us forward, "
                f"{rows[-1]['us']:7.1f} us with backward",
                flush=True,
            )
        except Exception as error:
            rows.append(
                dict(
                    name="linear 16 tokens",
                    floor="host",
                    recipe=rec,
                    error=f"{type(error).__name__}: {str(error)[:400]}",
                )
            )
            print(f"linear 16 tokens {rec:12s} FAILED {rows[-1]['error']}", flush=True)
    chosen = backend()
    print("attention:", chosen)
    with open(options.out, "w") as file:
        json.dump({"backend": chosen, "rows": rows}, file, indent=1)


def merged(paths):
    """The rows of some reports of one core; of numbers the median."""
    found = {}
    for path in paths:
        report = json.load(open(path))
        print(f"{path}: {report['backend']}")
        for row in report["rows"]:
            found.setdefault((row["name"], row["recipe"]), []).append(row)
    rows = {}
    for key, times in found.items():
        good = [row for row in times if "error" not in row]
        rows[key] = dict((good or times)[0])
        for field in ("rested", "hot", "us"):
            if field in rows[key]:
                rows[key][field] = statistics.median(row[field] for row in good)
    return rows


def compare(theirs, ours):
    theirs, ours = merged(theirs), merged(ours)
    print(
        f"{'':38s} {'recipe':12s} {'theirs':>9s} {'ours':>9s} {'ratio':>6s} {'floor':>6s} "
        f"{'hot':>6s}  gradients"
    )
    missed = 0
    for key, one in theirs.items():
        other = ours.get(key, {"error": "not measured"})
        if "error" in one or "error" in other:
            print(
                f"{key[0]:38s} {key[1]:12s} {'failed' if 'error' in one else 'ok'}"
                f" / {other.get('error', 'ok')}"
            )
            missed += "error" not in one
            continue
        field = "us" if "us" in one else "rested"
        ratio, floor = other[field] / one[field], FLOORS.get(one["floor"])
        missed += floor is not None and ratio > floor
        more = ""
        if field == "rested":
            change = abs(other["gradient"] / one["gradient"] - 1)
            more = f"{other['hot'] / one['hot']:6.3f}  {change:.2%}"
        print(
            f"{key[0]:38s} {key[1]:12s} {one[field]:9.3f} {other[field]:9.3f} {ratio:6.3f} "
            f"{floor or '':>6} {more}{'  MISSED' if floor and ratio > floor else ''}"
        )
    print(f"floors missed: {missed}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", default="layers.json")
    parser.add_argument("--rows", choices=("all", "large", "host"), default="all")
    parser.add_argument("--theirs", nargs="+")
    parser.add_argument("--ours", nargs="+")
    chosen = parser.parse_args()
    compare(chosen.theirs, chosen.ours) if chosen.theirs else run(chosen)
