"""
Runs examples/generate.c on models whose next tokens are known: `check.py GENERATE GPT FOLDER`.

A model of the Llama family has random weights, and what it writes is computed here in float64, all tokens anew for each one. A
model of gpt.c has learned a text that repeats.
"""

import json
import math
import random
import struct
import subprocess
import sys
from pathlib import Path

HIDDEN, FFN, LAYERS, HEADS, GROUPS, DIM, VOCABULARY, BASE, EPSILON = 32, 48, 2, 4, 2, 12, 61, 10000.0, 1e-5
QUERIES, KEYS = HEADS * DIM, GROUPS * DIM


def shapes(norms_of_heads):
    """Names and shapes of the tensors, as Hugging Face has them."""
    yield "model.embed_tokens.weight", (VOCABULARY, HIDDEN)
    for i in range(LAYERS):
        layer = f"model.layers.{i}."
        yield layer + "input_layernorm.weight", (HIDDEN,)
        yield layer + "self_attn.q_proj.weight", (QUERIES, HIDDEN)
        yield layer + "self_attn.k_proj.weight", (KEYS, HIDDEN)
        yield layer + "self_attn.v_proj.weight", (KEYS, HIDDEN)
        yield layer + "self_attn.o_proj.weight", (HIDDEN, QUERIES)
        if norms_of_heads:
            yield layer + "self_attn.q_norm.weight", (DIM,)
            yield layer + "self_attn.k_norm.weight", (DIM,)
        yield layer + "post_attention_layernorm.weight", (HIDDEN,)
        yield layer + "mlp.gate_proj.weight", (FFN, HIDDEN)
        yield layer + "mlp.up_proj.weight", (FFN, HIDDEN)
        yield layer + "mlp.down_proj.weight", (HIDDEN, FFN)
    yield "model.norm.weight", (HIDDEN,)
    yield "lm_head.weight", (VOCABULARY, HIDDEN)


def write_model(folder, kind):
    """Writes config and weights, and returns the weights as rows."""
    folder.mkdir(parents=True, exist_ok=True)
    sizes = {
        "vocab_size": VOCABULARY, "hidden_size": HIDDEN, "intermediate_size": FFN, "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS, "num_key_value_heads": GROUPS, "head_dim": DIM, "rms_norm_eps": EPSILON,
        "rope_theta": BASE, "hidden_act": "silu", "tie_word_embeddings": False, "model_type": kind,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(sizes))
    numbers, weights, header, data = random.Random(1), {}, {}, b""
    for name, shape in shapes(kind == "qwen3"):
        rows, columns = (shape[0], shape[1]) if len(shape) == 2 else (1, shape[0])
        around, width = (1, 0.3) if len(shape) == 1 else (0, 1 / math.sqrt(columns))
        floats = struct.pack(f"<{rows * columns}f", *(around + width * numbers.gauss(0, 1) for _ in range(rows * columns)))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(floats)]}
        data += floats
        values = struct.unpack(f"<{rows * columns}f", floats)
        weights[name] = [values[r * columns : (r + 1) * columns] for r in range(rows)]
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    return weights


def product(rows, x):
    return [sum(w * v for w, v in zip(row, x)) for row in rows]


def norm(x, gain):
    factor = 1 / math.sqrt(sum(v * v for v in x) / len(x) + EPSILON)
    return [v * factor * g for v, g in zip(x, gain)]


def rotated(head, position):
    """Pairs of one element of each half."""
    half, result = DIM // 2, list(head)
    for i in range(half):
        angle = position * BASE ** (-2 * i / DIM)
        a, b = head[i], head[half + i]
        result[i] = a * math.cos(angle) - b * math.sin(angle)
        result[half + i] = b * math.cos(angle) + a * math.sin(angle)
    return result


def next_token(weights, tokens):
    """The most probable token, and by how much its logit is above the next one."""
    rows = [list(weights["model.embed_tokens.weight"][t]) for t in tokens]
    for i in range(LAYERS):
        of = {name.split(f"layers.{i}.")[1]: rows for name, rows in weights.items() if f"layers.{i}." in name}
        heads = []
        for position, x in enumerate(rows):
            x = norm(x, of["input_layernorm.weight"][0])
            q, k, v = (product(of[f"self_attn.{part}_proj.weight"], x) for part in "qkv")
            q, k, v = ([part[h : h + DIM] for h in range(0, len(part), DIM)] for part in (q, k, v))
            if "self_attn.q_norm.weight" in of:
                q = [norm(head, of["self_attn.q_norm.weight"][0]) for head in q]
                k = [norm(head, of["self_attn.k_norm.weight"][0]) for head in k]
            heads.append(([rotated(head, position) for head in q], [rotated(head, position) for head in k], v))
        for position, x in enumerate(rows):
            attended = []
            for h in range(HEADS):
                group = h // (HEADS // GROUPS)
                seen = heads[: position + 1]
                scores = [sum(a * b for a, b in zip(heads[position][0][h], k[group])) / math.sqrt(DIM) for _, k, _ in seen]
                parts = [math.exp(score - max(scores)) for score in scores]
                attended += [sum(p * v[group][d] for p, (_, _, v) in zip(parts, seen)) / sum(parts) for d in range(DIM)]
            x = [a + b for a, b in zip(x, product(of["self_attn.o_proj.weight"], attended))]
            y = norm(x, of["post_attention_layernorm.weight"][0])
            gate, up = product(of["mlp.gate_proj.weight"], y), product(of["mlp.up_proj.weight"], y)
            y = product(of["mlp.down_proj.weight"], [g / (1 + math.exp(-g)) * u for g, u in zip(gate, up)])
            rows[position] = [a + b for a, b in zip(x, y)]
    logits = product(weights["lm_head.weight"], norm(rows[-1], weights["model.norm.weight"][0]))
    ordered = sorted(range(VOCABULARY), key=lambda token: -logits[token])
    return ordered[0], logits[ordered[0]] - logits[ordered[1]]


def run(*command):
    done = subprocess.run([str(word) for word in command], text=True, capture_output=True, timeout=300)
    if done.returncode:
        sys.exit(f"{command}: {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def check_llama(generate, folder, kind):
    weights = write_model(folder / kind, kind)
    prompt = [3, 14, 15, 9, 26, 5, 35]
    written = run(generate, "--model", folder / kind, "--prompt", " ".join(map(str, prompt)), "--tokens", 8)
    tokens = list(prompt)
    for i, token in enumerate(map(int, written.split())):
        expected, margin = next_token(weights, tokens)
        # Where two are as good as equal in float32 either may come; the reference goes on with it.
        if token != expected and margin > 1e-4:
            sys.exit(f"{kind}: token {i} is {token}, expected {expected}; all: {written}")
        tokens.append(token)
    if len(tokens) != len(prompt) + 8:
        sys.exit(f"{kind}: {len(tokens) - len(prompt)} tokens instead of 8: {written}")
    # A seed determines what is drawn, and a temperature makes it vary.
    drawn = [
        run(generate, "--model", folder / kind, "--prompt", "3 14", "--temperature", 2, "--seed", seed, "--tokens", 12)
        for seed in (1, 1, 2)
    ]
    if drawn[0] != drawn[1] or drawn[0] == drawn[2]:
        sys.exit(f"{kind}: drawn by seeds 1, 1 and 2: {drawn}")


def check_gpt(generate, gpt, folder):
    line = "the quick brown fox jumps over a lazy dog; "
    (folder / "text").write_text(line * 200)
    sizes = ["--layers", 1, "--hidden", 64, "--heads", 2, "--sequence", 64]
    saved = folder / "checkpoint"
    for old in folder.glob("checkpoint*"):
        old.unlink()
    run(gpt, "--text", folder / "text", "--recipes", "bf16", "--steps", 150, "--checkpoint", saved, *sizes)
    written = run(generate, "--checkpoint", f"{saved}.bf16", *sizes, "--prompt", line[:12], "--tokens", 40)
    if written.rstrip("\n") != (line * 2)[12:52]:
        sys.exit(f"a model of {line!r} went on from {line[:12]!r} with {written!r}")
    # There are learned positions for 64 tokens.
    command = [str(word) for word in (generate, "--checkpoint", f"{saved}.bf16", *sizes, "--prompt", "ab", "--tokens", 63)]
    done = subprocess.run(command, text=True, capture_output=True, timeout=300)
    if done.returncode != 1 or "64 positions" not in done.stderr:
        sys.exit(f"65 tokens of a model for 64: {done.returncode}\n{done.stdout}{done.stderr}")


def main():
    generate, gpt, folder = (Path(argument).absolute() for argument in sys.argv[1:4])
    folder.mkdir(parents=True, exist_ok=True)
    for kind in ("llama", "qwen3"):
        check_llama(generate, folder, kind)
    check_gpt(generate, gpt, folder)


main()
