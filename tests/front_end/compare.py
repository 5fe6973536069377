"""Compares two reports of score.py or score_jax.py: which cases that pass with the first core pass
with the second.

    compare.py THEIRS.json OURS.json [--details FILE]

A case counts if it passes with the first core. It is a hit if it passes with the second, with
every array within the tolerance of its type and recipe, and with every bit-equality that held
with the first (repeated runs, captured against eager steps, recomputed against plain ones).
Exits with 0 if at least --floor percent are hits and nothing crashed.
"""

import argparse
import json
import os
import re
import sys

import numpy as np

from harness import REPEATED, file_name

# Relative error of an array, as the root of the mean square. FP8 arrays differ where a value of 16
# bits that is rounded otherwise falls on the other side of a rounding boundary of FP8.
TOLERANCES = {
    "exact": 0.0,
    "fp32": 2e-5,
    "fp32_products": 2e-3,
    "fp16": 4e-3,
    "bf16": 1.5e-2,
    "fp8": 6e-2,
    "fp8_chain": 0.12,
    "statistics": 0.05,
}
WITH_PRODUCTS = (
    "linear",
    "layernorm_linear",
    "layernorm_mlp",
    "grouped_linear",
    "operations",
    "attention",
    "attention_layers",
    "dense",
    "mlp",
    "flax",
    "others",
)
CHAINS = (
    "attention_layers",
    "attention_fp8",
    "caches",
    "compile",
    "graphs",
    "recompute",
    "checkpoint",
    "exchange",
    "quantized_weights",
    "flax",
)


def tolerance_of(name, entry):
    if entry["compare"] == "statistics":
        return TOLERANCES["statistics"]
    if entry["tolerance"] != "auto":
        return TOLERANCES[entry["tolerance"]]
    group, params = name.split("/")[0], entry["params"]
    if (
        group == "attention_fp8"
        or params.get("recipe", "none") != "none"
        and "quantizer" not in group
    ):
        return TOLERANCES["fp8_chain" if group in CHAINS else "fp8"]
    kind = params.get("dtype", "bf16")
    if (
        group in ("norms", "router", "permute", "optimizers", "quantizers", "cross_entropy", "rope")
        and "dtype" not in params
    ):
        kind = "bf16" if group in ("norms", "permute", "rope") else "fp32"
    return TOLERANCES["fp32_products" if kind == "fp32" and group in WITH_PRODUCTS else kind]


def differs(name, theirs, ours, old, new, tolerance, statistics, floor):
    """Why an array does not agree, or None. `old` and `new` are the samples of its values; an array
    whose norm is below `floor` is compared with that."""
    if theirs["shape"] != ours["shape"] or theirs["dtype"] != ours["dtype"]:
        return f"{name}: {theirs['dtype']}{theirs['shape']} became {ours['dtype']}{ours['shape']}"
    if theirs["sha256"] == ours["sha256"]:
        return None
    if theirs["not_finite"] != ours["not_finite"]:
        return (
            f"{name}: {theirs['not_finite']} values that are not finite became {ours['not_finite']}"
        )
    if statistics:
        change = abs(theirs["norm"] - ours["norm"]) / max(theirs["norm"], 1e-30)
        return f"{name}: the norm differs by {change:.2%}" if change > tolerance else None
    if "int" in theirs["dtype"] or theirs["dtype"] == "bool":
        part = float(np.mean(old != new)) if old.size else 0.0
        return f"{name}: {part:.2%} of the whole numbers differ" if part > 0.005 else None
    good = np.isfinite(old) & np.isfinite(new)
    old, new = old[good].astype(np.float64), new[good].astype(np.float64)
    scale = max(float(np.linalg.norm(old)), floor, 1e-20)
    error, worst = float(np.linalg.norm(new - old)) / scale, float(
        np.max(np.abs(new - old), initial=0.0)
    )
    change = abs(theirs["norm"] - ours["norm"]) / max(theirs["norm"], floor, 1e-20)
    if max(error, change) > tolerance:
        return f"{name}: relative error {max(error, change):.3g} above {tolerance:g}"
    if worst > 10 * tolerance * max(theirs["max"], floor, 1e-20):
        return f"{name}: one value differs by {worst:.3g}, the largest is {theirs['max']:.3g}"
    return None


def judge(name, theirs, ours, folders):
    """None for a hit, or why it is a miss."""
    if ours is None:
        return "not in the second report"
    if ours["status"] != "pass":
        return f"{ours['status']}: {ours.get('error', '')}"
    missing = theirs["arrays"].keys() - ours["arrays"].keys()
    if missing:
        return f"arrays are missing: {', '.join(sorted(missing))}"
    for flag, value in theirs["flags"].items():
        if value and not ours["flags"].get(flag):
            return f"held, does not any more: {flag}"
    with np.load(os.path.join(folders[0], file_name(name))) as old, np.load(
        os.path.join(folders[1], file_name(name))
    ) as new:
        place = {array: i for i, array in enumerate(ours["arrays"])}
        # What is zero but for rounding, as the gradient of the only key that a query sees, has no
        # digits to compare.
        floats = [a["norm"] for a in theirs["arrays"].values() if a["dtype"].startswith("float")]
        floor = 1e-6 * max(floats, default=0.0)
        for i, (array, facts) in enumerate(theirs["arrays"].items()):
            why = differs(
                array,
                facts,
                ours["arrays"][array],
                old[f"a{i}"],
                new[f"a{place[array]}"],
                tolerance_of(name, theirs),
                theirs["compare"] == "statistics",
                floor,
            )
            if why:
                return why
    return None


def form(text):
    """An error without its numbers and addresses, by which misses are grouped."""
    line = re.sub(r"d\.[\w.\[\]']+|out\d+(\.\d+)?", "ARRAY", text.strip())
    return re.sub(r"0x[0-9a-f]+|-?\d+(\.\d+)?(e-?\d+)?", "#", line)[:400]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("theirs")
    parser.add_argument("ours")
    parser.add_argument("--floor", type=float, default=99.5)
    parser.add_argument(
        "--details", help="file that gets every miss, and every case that fails with the first core"
    )
    parser.add_argument("--shown", type=int, default=3, help="cases named per group of misses")
    options = parser.parse_args()
    reports, folders = [], []
    for path in (options.theirs, options.ours):
        with open(path) as file:
            reports.append(json.load(file)["cases"])
        folders.append(path.removesuffix(".json"))
    theirs, ours = reports
    groups, misses, unusable, better = {}, {}, {}, 0
    for name, entry in theirs.items():
        if entry["status"] != "pass":
            if entry["status"] != "skip":
                unusable[name] = f"{entry['status']}: {entry.get('error', '')}"
                better += ours.get(name, {}).get("status") == "pass"
            continue
        row = groups.setdefault(name.split("/")[0], [0, 0])
        row[0] += 1
        why = judge(name, entry, ours.get(name), folders)
        if why is None:
            row[1] += 1
        else:
            misses[name] = why
    crashes = [
        name
        for name, entry in ours.items()
        if entry["status"] in ("crash", "timeout")
        and theirs.get(name, {}).get("status") not in ("crash", "timeout")
    ]
    for group, (total, hits) in groups.items():
        print(f"{group:22s} {hits:5d} of {total:5d}  {100 * hits / total:6.2f} %")

    def by_form(found, title):
        kinds = {}
        for name, why in found.items():
            kinds.setdefault(form(why), []).append((name, why))
        print(f"\n{title}: {len(found)}, in {len(kinds)} kinds")
        for members in sorted(kinds.values(), key=len, reverse=True):
            print(f"{len(members):5d}  {members[0][1][:500]}")
            for name, _ in members[: options.shown]:
                print(f"         {name}")

    by_form(misses, "Misses")
    by_form(unusable, "Fail with the first core and do not count")
    if options.details:
        with open(options.details, "w") as file:
            json.dump({"misses": misses, "fail with the first core": unusable}, file, indent=1)
    total, hits = sum(row[0] for row in groups.values()), sum(row[1] for row in groups.values())
    score = 100 * hits / max(total, 1)
    repeats = [
        name
        for name in theirs
        if theirs[name]["status"] == "pass" and not theirs[name]["flags"].get(REPEATED, True)
    ]
    print(
        f"\nscore {score:.2f} % ({hits} of {total}); "
        f"crashes with the second core alone: {len(crashes)}; "
        f"pass with the second core alone: {better}; "
        f"not repeatable with the first core: {len(repeats)}"
    )
    sys.exit(0 if score >= options.floor and not crashes else 1)


if __name__ == "__main__":
    main()
