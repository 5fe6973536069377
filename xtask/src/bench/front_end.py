"""Times forward and backward passes of transformer_engine.pytorch.TransformerLayer, the models of `cargo xtask bench layer`.

Prints a line `NAME<tab>MILLISECONDS` for each: the median of five samples of six steps, each after a rest of 50 ms.
With --check it runs one step of each model instead, so that the debug output of the front end, which NVTE_DEBUG=1 and
NVTE_DEBUG_LEVEL=2 turn on, says which attention it chose.
"""

import gc
import statistics
import sys
import time

import torch
import transformer_engine.pytorch as te
from transformer_engine.common import recipe as recipes

REST, SAMPLES, STEPS, WARM_UP = 0.05, 5, 6, 5
RECIPES = {
    "no FP8": lambda: None,
    "delayed": lambda: recipes.DelayedScaling(
        fp8_format=recipes.Format.HYBRID, amax_history_len=16, amax_compute_algo="max"
    ),
    "current": lambda: recipes.Float8CurrentScaling(),
    "block": lambda: recipes.Float8BlockScaling(),
}
FOUR, TWO = list(RECIPES), ["no FP8", "delayed"]
BF16, F16 = ("bf16", torch.bfloat16), ("fp16", torch.float16)
# Name, sequence, batch, dropout, dtype, recipes.
MODELS = [
    ("GPT layer 4096", 2048, 4, 0.0, BF16, FOUR),
    ("GPT layer 4096, dropout", 2048, 4, 0.1, BF16, FOUR),
    ("GPT layer 4096", 2048, 4, 0.0, F16, TWO),
    ("GPT layer 4096, dropout", 2048, 4, 0.1, F16, TWO),
    ("Llama-3-8B layer", 4096, 2, 0.0, BF16, FOUR),
    ("GPT layer 4096, 16 tokens", 16, 1, 0.0, BF16, FOUR),
]


def layer_of(name, dropout, dtype):
    options = dict(
        params_dtype=dtype,
        fuse_qkv_params=True,
        self_attn_mask_type="causal",
        attn_input_format="sbhd",
        attention_dropout=dropout,
        hidden_dropout=dropout,
        device="cuda",
    )
    if name.startswith("Llama"):
        options.update(num_gqa_groups=8, normalization="RMSNorm", activation="swiglu", bias=False)
        return te.TransformerLayer(4096, 14336, 32, **options)
    return te.TransformerLayer(4096, 16384, 32, layernorm_epsilon=1e-5, **options)


def step_of(model, recipe):
    name, sequence, batch, dropout, (_, dtype), _ = model
    layer = layer_of(name, dropout, dtype)
    x = torch.randn(sequence, batch, 4096, dtype=dtype, device="cuda", requires_grad=True)
    dy = torch.randn_like(x)
    extra = {}
    if name.startswith("Llama"):
        from transformer_engine.pytorch.attention import RotaryPositionEmbedding

        extra["rotary_pos_emb"] = RotaryPositionEmbedding(128)(sequence).to("cuda")

    def step():
        with te.autocast(enabled=recipe is not None, recipe=recipe):
            y = layer(x, **extra)
        y.backward(dy)

    return step


def milliseconds(step):
    for _ in range(WARM_UP):
        step()
    torch.cuda.synchronize()
    samples = []
    for _ in range(SAMPLES):
        time.sleep(REST)
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(STEPS):
            step()
        end.record()
        torch.cuda.synchronize()
        samples.append(begin.elapsed_time(end) / STEPS)
    return statistics.median(samples)


def main():
    torch.manual_seed(0)
    for model in MODELS:
        for recipe in model[5]:
            name = f"{model[0]}, {model[4][0]}, {recipe}"
            step = step_of(model, RECIPES[recipe]())
            if "--check" in sys.argv:
                step()
                torch.cuda.synchronize()
                print(f"checked {name}", flush=True)
            else:
                print(f"{name}\t{milliseconds(step):.4f}", flush=True)
            del step
            gc.collect()
            torch.cuda.empty_cache()


main()
