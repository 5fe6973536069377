#!/usr/bin/env bash
# Runs what this folder holds. Logs go to ${OUT:-./out}; the exit status is 1 if anything failed.
set -euo pipefail

usage() {
  cat <<'TEXT'
run.sh COMMAND
  test [FILTER]            C, C++ and Rust tests, the C ones on the CPU and on CUDA
  compare                  CUDA against CPU on random shapes
  sanitize [FILTER [CASE]] GPU tests under memcheck, racecheck and initcheck
  fuzz [OPTION...]         C tests with changed arguments (--seconds N, --seed N, --backend cuda --memcheck)
  differential [OPTION...] random valid calls on the CPU and on CUDA (--seconds N, --seed N, --operator NAME), or on
                           CUDA with another library of this ABI (--against LIB)
  demo                     trains small networks on real data
  bindings [NAME...]       tests of the bindings (rust, candle, onnxruntime, python, jax, torch), which use what is installed; those
                           for JAX and LibTorch are compiled here; only in a bundle that was made with --bindings
  ranks [N]                programs of several ranks on N GPUs of this host, by default all of them, one after the other; then what
                           ranks gain: layers, products, shared sequences, rows of experts and, from 4 GPUs on, a model that they
                           divide. On the CPU with NVTE_BACKEND=cpu and N
  bench [--against LIB]    operators, also of another library with this ABI, and layers
  all                      all of these but ranks
FILTER is a part of a test's name, CASE a part of its cases' names. NVTE_TEST_EVERY=N runs about one of
N cases of each C test, which a sanitizer needs to end in minutes.
TEXT
}

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=${OUT:-./out}
mkdir -p "$out"
out=$(cd "$out" && pwd)
export NVTE_TEST_DATA=$here/golden
passed=0 failed=0 skipped=0

# record NAME COMMAND...: runs it into a log. Status 77 is a skip, as is a Rust test's "skipped".
record() {
  local name=$1 log=$out/$1.log start=$SECONDS status=0
  shift
  "$@" >"$log" 2>&1 </dev/null || status=$?
  if [[ $status -eq 0 ]] && grep -q ': skipped: ' "$log"; then
    status=77
  fi
  local time="$((SECONDS - start)) s"
  case $status in
    0)
      passed=$((passed + 1))
      echo "pass    $name ($time): $(last_line "$log")"
      ;;
    77)
      skipped=$((skipped + 1))
      echo "skipped $name: $(grep -m 1 ': skipped: ' "$log" || last_line "$log")"
      ;;
    *)
      failed=$((failed + 1))
      echo "FAILED  $name ($time), status $status, $log:"
      tail -n 30 "$log" | sed 's/^/  | /'
      ;;
  esac
}

last_line() { grep -v '^[[:space:]]*$' "$1" | tail -n 1 || true; }

# programs FOLDER FILTER
programs() {
  local program
  for program in "$here/$1"/*; do
    [[ $(basename "$program") == *"$2"* ]] && echo "$program"
  done
  return 0
}

run_test() {
  local program backend
  for program in $(programs capi "${1:-}"); do
    for backend in cpu cuda; do
      record "$(basename "$program").$backend" env NVTE_BACKEND=$backend "$program"
    done
  done
  [[ drop_in != *"${1:-}"* ]] || record drop_in env NVTE_BACKEND=cuda "$here/drop-in/loader" \
    "$here/prefix/lib/libtransformer_engine.so" "$here/drop-in/libextension.so" throw
  for program in $(programs rust "${1:-}"); do
    [[ $(basename "$program") == compare ]] || record "rust.$(basename "$program")" "$program" --show-output
  done
}

run_compare() { record compare "$here/rust/compare" --nocapture; }

run_sanitize() {
  local sanitizer tool program
  sanitizer=$(command -v compute-sanitizer || true)
  for home in "${CUDA_HOME:-}" "${CUDA_PATH:-}" /usr/local/cuda; do
    [[ -n $sanitizer || ! -x $home/bin/compute-sanitizer ]] || sanitizer=$home/bin/compute-sanitizer
  done
  if [[ -z $sanitizer ]]; then
    record sanitize sh -c 'echo "compute-sanitizer is not installed"; exit 77'
    return
  fi
  for program in $(programs capi "${1:-}"); do
    # It writes outside of memory on purpose.
    [[ $(basename "$program") != device_errors ]] || continue
    for tool in memcheck racecheck initcheck; do
      # A test that asks for too much memory makes an API call fail on purpose.
      local quiet=
      # It takes what cuBLASLt stores for uninitialised: a product and a cast of it suffice.
      [[ $tool != initcheck || $(basename "$program") != module* ]] || continue
      [[ $tool != memcheck ]] || quiet=--report-api-errors=no
      record "$(basename "$program").$tool" env NVTE_BACKEND=cuda NVTE_VERBOSE=none \
        "$sanitizer" --tool $tool $quiet --error-exitcode 99 "$program" "${@:2}"
    done
  done
}

run_fuzz() {
  local fuzz=("$here/bin/xtask" --root "$here" fuzz)
  if [[ $# -gt 0 ]]; then
    record fuzz "${fuzz[@]}" "$@"
  else
    record fuzz "${fuzz[@]}" --seconds 60
  fi
  cat "$out/fuzz.log"
}

run_differential() {
  OUT=$out record differential "$here/bin/xtask" --root "$here" fuzz --differential --backend cuda "$@"
  cat "$out/differential.log"
}

run_demo() {
  record demo "$here/demo/mlp" "$here/demo/digits.csv"
  record demo_gpt "$here/demo/gpt" --text "$here/demo/sources.txt" --steps 200 --hidden 256
}

run_bindings() {
  local folder=$here/bindings lib=$here/prefix/lib names=("$@") name
  [[ $# -gt 0 ]] || names=(rust candle onnxruntime python jax torch)
  if [[ ! -d $folder ]]; then
    record bindings sh -c 'echo "the bundle was made without --bindings"; exit 77'
    return
  fi
  export NVTE_LIBRARY=$lib/libnvte.so PYTHONDONTWRITEBYTECODE=1 XLA_PYTHON_CLIENT_PREALLOCATE=false
  for name in "${names[@]}"; do
    "bindings_$name"
  done
}

# has PACKAGE: whether python3 has it; otherwise the binding is skipped.
has() {
  python3 -c "import $1" 2>"$out/$1.import.log" && return
  record "binding_for_$1" sh -c "echo 'python3 has no $1'; exit 77"
  return 1
}

bindings_rust() {
  local name
  for name in nvte nvte_sys modules; do
    record "rust_binding.$name" env LD_LIBRARY_PATH="$lib" "$folder/bin/$name" --show-output
  done
  record rust_binding.example env LD_LIBRARY_PATH="$lib" "$folder/bin/mlp" "$here/demo/digits.csv"
}

bindings_candle() {
  record candle env LD_LIBRARY_PATH="$lib" "$folder/bin/gradients" --show-output
  record candle.example env LD_LIBRARY_PATH="$lib" "$folder/bin/train"
}

# Its operators run on the CPU, whatever the machine has.
bindings_onnxruntime() {
  local test
  has onnxruntime || return 0
  for test in onnxruntime export; do
    record "onnxruntime.$test" env NVTE_BACKEND=cpu LD_LIBRARY_PATH="$lib" PYTHONPATH="$folder/python" \
      python3 "$folder/onnxruntime/tests/test_$test.py" "$folder/bin/libnvte_onnxruntime.so" "$(mktemp -d)"
  done
}

# Tests of memory of the host need the CPU backend.
bindings_python() {
  local test backend
  for test in core numpy packages; do
    for backend in cpu cuda; do
      [[ $test == packages || $backend == cpu ]] || continue
      record "python.$test.$backend" env NVTE_BACKEND=$backend PYTHONPATH="$folder/python" \
        python3 "$folder/python/tests/test_$test.py"
    done
  done
  record python.quickstart env NVTE_BACKEND=cuda PYTHONPATH="$folder/python" python3 "$folder/python/examples/quickstart.py"
  cat "$out/python.quickstart.log"
}

bindings_jax() {
  local handlers
  has jax || return 0
  handlers=$(mktemp -d)/handlers.so
  record jax.build python3 "$folder/jax/build.py" --prefix "$here/prefix" --out "$handlers"
  record jax env NVTE_BACKEND=cuda NVTE_JAX_HANDLERS="$handlers" PYTHONPATH="$folder/jax" \
    python3 "$folder/jax/tests/test_jax.py"
}

bindings_torch() {
  local build
  has torch || return 0
  build=$(mktemp -d)
  record torch.build compile_torch "$build"
  record torch env NVTE_BACKEND=cuda "$build/test"
  record torch.python env NVTE_BACKEND=cuda python3 "$folder/torch/test.py" "$build/libnvte_torch.so"
}

# compile_torch FOLDER: the extension and its program, with the PyTorch of python3 and the headers of its CUDA.
compile_torch() {
  local torch cuda flags
  torch=$(python3 -c 'import torch; print(torch.__path__[0])')
  cuda=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
  flags=(-std=c++17 -O1 -fPIC -DNVTE_TORCH_CUDA -I "$here/prefix/include" -isystem "$torch/include"
    -isystem "$torch/include/torch/csrc/api/include" -isystem "${cuda%/bin/nvcc}/include" -L "$lib" -L "$torch/lib" -L "$1"
    "-Wl,-rpath,$lib:$torch/lib:$1" -Wl,--no-as-needed)
  c++ "${flags[@]}" -c "$folder/torch/test.cpp" -o "$1/test.o" &
  c++ "${flags[@]}" -shared "$folder/torch/nvte_torch.cpp" -o "$1/libnvte_torch.so" \
    -lnvte -ltorch -ltorch_cpu -lc10 -lc10_cuda
  wait $!
  c++ "${flags[@]}" "$1/test.o" -o "$1/test" -lnvte_torch -lnvte -ltorch -ltorch_cpu -lc10
}

# Alone on their GPUs: kernels that wait for other ranks take the time of those that they wait for. Without parallel_faults,
# whose ranks disagree: NCCL does not compare their calls.
run_ranks() {
  local gpus=${1:-$(nvidia-smi -L 2>/dev/null | wc -l)} name overlap parts=(layers products context)
  if [[ $gpus -lt 2 ]]; then
    record ranks sh -c 'echo "this host has fewer than 2 GPUs"; exit 77'
    return
  fi
  [[ $gpus -lt 4 ]] || parts+=(model)
  export NVTE_BACKEND=${NVTE_BACKEND:-cuda} NVTE_TEST_NCCL=1
  local launch=("$here/prefix/bin/nvtex-run" -n "$gpus")
  [[ $NVTE_BACKEND != cuda ]] || launch+=(--gpus)
  for name in threads grid operators capacity experts moe context training quantized mixed modules gpt processes hosts; do
    record "ranks.$name" timeout 300 "$here/capi/parallel_$name"
  done
  record ranks.launched timeout 300 "${launch[@]}" "$here/capi/parallel_launched"
  record ranks.dispatch timeout 120 "$here/capi/parallel_dispatch" "$gpus"
  for overlap in 0 2; do
    record "ranks.speed.$overlap" env NVTE_COMM_OVERLAP=$overlap timeout 600 "${launch[@]}" \
      "$here/capi/parallel_speed" "${parts[@]}"
  done
  cat "$out"/ranks.{dispatch,speed.*}.log
}

run_bench() {
  local bench=("$here/bin/xtask" --root "$here" bench)
  local options=(--lib "$here/prefix/lib/libnvte.so" --out "$out/BENCHMARKS.md")
  record bench "${bench[@]}" "${options[@]}" "$@"
  record bench_layer "${bench[@]}" layer "${options[@]}"
  cat "$out/bench.log" "$out/bench_layer.log"
}

command=${1:-help}
[[ $# -eq 0 ]] || shift
case $command in
  test | compare | sanitize | fuzz | differential | demo | bindings | ranks | bench) "run_$command" "$@" ;;
  all)
    run_test
    run_compare
    run_sanitize
    run_fuzz
    run_differential
    run_demo
    run_bindings
    run_bench "$@"
    ;;
  help | --help | -h)
    usage
    exit
    ;;
  *)
    usage >&2
    exit 2
    ;;
esac
echo "$passed passed, $failed failed, $skipped skipped"
[[ $failed -eq 0 && $passed -gt 0 ]]
