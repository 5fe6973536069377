#!/usr/bin/env python3
"""The model of gpt.c in plain PyTorch: torch.compile, BF16 autocast, fused AdamW, clipped gradients.

It prints tokens/s and loss for the same sizes, so that both can be timed in one session on the same GPU:

    ./gpt          --text FILE --recipes bf16 --steps 100 --layers 12 --hidden 768 --heads 12 --sequence 1024 --batch 16 --vocabulary 50304
    gpt_torch.py   --text FILE                --steps 100 --layers 12 --hidden 768 --heads 12 --sequence 1024 --batch 16 --vocabulary 50304
"""

import argparse
import math
import time

import torch
import torch.nn.functional as F
from torch import nn


class Layer(nn.Module):
    """Causal self attention and an MLP, each behind a norm and with a residual around it."""

    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.proj = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.fc1, self.fc2 = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x):
        batch, length, hidden = x.shape
        parts = self.qkv(self.norm1(x)).split(hidden, dim=2)
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(batch, length, hidden))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x)), approximate="tanh"))


class Model(nn.Module):
    """Embeddings, layers, norm, and a head that shares the embedding's weight."""

    def __init__(self, o):
        super().__init__()
        self.tokens = nn.Embedding(o.vocabulary, o.hidden)
        self.positions = nn.Embedding(o.sequence, o.hidden)
        self.layers = nn.ModuleList(Layer(o.hidden, o.heads) for _ in range(o.layers))
        self.norm = nn.LayerNorm(o.hidden)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                last = name.endswith(("proj.weight", "fc2.weight"))
                nn.init.normal_(weight, std=0.023 / (math.sqrt(2 * o.layers) if last else 1))
            elif name.endswith("bias"):
                nn.init.zeros_(weight)

    def forward(self, tokens, targets):
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for layer in self.layers:
            x = layer(x)
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1))


def options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", default="gpt.c", help="bytes to learn")
    parser.add_argument("--tokens", help="uint16 tokens to learn, instead of --text")
    numbers = dict(
        steps=100, layers=12, hidden=768, heads=12, sequence=1024, batch=16, vocabulary=50304, seed=1
    )
    for name, default in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--peak", type=float, default=989, help="TFLOP/s of the GPU in BF16")
    return parser.parse_args()


def main():
    o = options()
    torch.manual_seed(o.seed)
    torch.set_float32_matmul_precision("high")
    with open(o.tokens or o.text, "rb") as file:
        data = torch.frombuffer(bytearray(file.read()), dtype=torch.int16 if o.tokens else torch.uint8)
    data = data.to(torch.int64) & 0xFFFF
    model = Model(o).cuda()
    groups = [
        {"params": [p for p in model.parameters() if p.dim() == 2], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.dim() != 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.3 / o.hidden, betas=(0.9, 0.95), fused=True)
    compiled = torch.compile(model)
    warm, start = 10, 0.0
    for step in range(1, o.steps + 1):
        places = torch.randint(len(data) - o.sequence - 1, (o.batch,))
        rows = torch.stack([data[i : i + o.sequence + 1] for i in places.tolist()])
        rows = rows.pin_memory().cuda(non_blocking=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = compiled(rows[:, :-1], rows[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step == warm:
            torch.cuda.synchronize()
            start = time.time()
    torch.cuda.synchronize()
    tokens = (o.steps - warm) * o.batch * o.sequence
    rate = tokens / (time.time() - start)
    weights = o.hidden * (12 * o.layers * o.hidden + o.vocabulary)
    work = 6 * weights + 12 * o.layers * o.hidden * o.sequence
    print(
        f"torch {torch.__version__}: loss {loss.item():.4f}   {rate:.0f} tokens/s   "
        f"{work * rate / o.peak / 1e10:.1f} % of {o.peak:.0f} TFLOP/s"
    )


if __name__ == "__main__":
    main()
