#!/usr/bin/env bash
# On a GPU machine: scores and times our core under the other library's front ends against its own.
#
#   run.sh DIR OURS [build] [score] [jax] [layers]        no part named: all of them
#
# `host` times those of the layers alone whose time is that of Python.
#
# DIR is what prepare.py made; OURS holds our libtransformer_engine.so and libnvte.so.0. Results go
# to $OUT. The built extensions come back as $OUT/ext.tar.xz: put that file into DIR, and the next
# run need not build them. FILTER, JOBS and LIMIT (seconds) are handed to the scores.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
dir=$(cd "$1" && pwd)
ours=$(cd "$2" && pwd)
shift 2
parts=" ${*:-build score jax layers} "
out=${OUT:-$PWD/front_end_out}
root=${TMPDIR:-/tmp}/front_end
log=$root/log
mkdir -p "$out" "$log"
wants() { [[ $parts == *" $1 "* ]]; }
say() { echo "[$(date +%T)] $*"; }

packages=$(python3 -c 'import nvidia; print(list(nvidia.__path__)[0])')
# A machine may hold two versions of cuDNN. Without these the front end takes the other one, and
# attention silently falls back to a slower form.
export CUDNN_HOME=$packages/cudnn CUDNN_PATH=$packages/cudnn
export CPLUS_INCLUDE_PATH=$packages/cudnn/include:$packages/nccl/include
libraries=$packages/cu13/lib:$packages/cudnn/lib:$packages/nccl/lib
export LD_LIBRARY_PATH=$libraries:${LD_LIBRARY_PATH:-}
export NVTE_CUDA_ARCHS=90 MAX_JOBS=16 XLA_PYTHON_CLIENT_PREALLOCATE=false PYTHONDONTWRITEBYTECODE=1

setup_torch() { NVTE_PYTORCH_FORCE_BUILD=TRUE python3 setup.py build_ext --inplace; }
setup_jax() { # pybind11's builder compiles one file at a time unless it is told otherwise
  PYTHONPATH=$root/headers:. python3 - build_ext --inplace <<'P'
import runpy, sys
from pybind11.setup_helpers import ParallelCompile

ParallelCompile(default=12).install()
sys.path.insert(0, ".")
sys.argv[0] = "setup.py"
runpy.run_path("setup.py", run_name="__main__")
P
}
build() { # build torch|jax: with expert parallelism if that compiles, since its symbols must resolve
  local package=transformer_engine_$1-2.20.2 parallel file
  for parallel in 1 0; do
    file=$log/build-$1-ep$parallel.log
    rm -rf "${root:?}/$1" && mkdir -p "$root/$1"
    tar xzf "$dir/$package.tar.gz" -C "$root/$1" --strip-components 1
    (cd "$root/$1" && export NVTE_WITH_NCCL_EP=$parallel && "setup_$1") >"$file" 2>&1
    if ls "$root/$1"/*.so >/dev/null 2>&1; then
      strip "$root/$1"/*.so && cp "$root/$1"/*.so $root/ext/
      say "$package built, expert parallelism: $parallel"
      return
    fi
    say "$package did not build with expert parallelism = $parallel:"
    grep -m3 -i error "$file" || tail -3 "$file"
  done
}

if [ ! -d $root/ext ]; then
  mkdir -p $root/ext $root/headers
  tar xJf "$dir/cudnn_frontend.tar.xz" -C $root/headers
  if [ -f "$dir/ext.tar.xz" ]; then
    tar xJf "$dir/ext.tar.xz" -C $root/ext
  elif wants build; then
    say "building both extensions"
    build torch &
    build jax &
    wait
    tar cJf "$out/ext.tar.xz" -C $root/ext .
  fi
fi

metadata() { # Python's check of the versions asks for these distributions
  local name info
  for name in transformer_engine{,_torch,_jax,_cu13}; do
    info=$1/$name-2.20.2.dist-info
    mkdir -p "$info"
    printf 'Metadata-Version: 2.1\nName: %s\nVersion: 2.20.2\n' $name >"$info/METADATA"
    printf 'Wheel-Version: 1.0\nRoot-Is-Purelib: true\n' >"$info/WHEEL"
    printf "$name-2.20.2.dist-info/%s,,\n" METADATA WHEEL RECORD >"$info/RECORD"
  done
}
for core in te nvte; do # one package tree per core, so that both can run at the same time
  site=$root/site-$core
  if [ ! -d "$site" ]; then
    mkdir -p "$site"
    python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade \
      --target "$site" "$dir"/whl/*.whl
    tar xJf "$dir/pytree.tar.xz" -C "$site"
    metadata "$site"
    mkdir -p "$site/transformer_engine/wheel_lib"
    [ $core = nvte ] || xz -dc "$dir/core.so.xz" >"$site/transformer_engine/wheel_lib/libtransformer_engine.so"
  fi
  cp $root/ext/*.so "$site/"
done
cp -L "$ours/libtransformer_engine.so" "$ours/libnvte.so.0" $root/site-nvte/transformer_engine/wheel_lib/

on() { # on CORE COMMAND...: runs a command with that core under the front ends
  local core=$1 preload=$packages/cu13/lib/libnvrtc.so.13 path=$LD_LIBRARY_PATH
  shift
  if [ "$core" = te ]; then preload=$dir/libshim.so:$preload; else path=$ours:$path; fi
  (cd $root && env PYTHONPATH=$root/site-"$core" LD_PRELOAD="$preload" LD_LIBRARY_PATH="$path" "$@")
}
imports() {
  local file=$log/import-$1-$2.log
  if on "$1" python3 -c "import transformer_engine.$2" >"$file" 2>&1; then
    say "$1: transformer_engine.$2 imports"
  else
    say "$1: transformer_engine.$2 does not import:" "$(tail -2 "$file")"
  fi
}
scores() { # scores NAME SCRIPT JOBS [OPTIONS]: both cores at the same time, then the comparison
  local name=$1 script=$2 jobs=${JOBS:-$3} core
  shift 3
  for core in te nvte; do
    on $core python3 "$here/$script" --jobs "$jobs" --limit "${LIMIT:-200}" \
      --out "$root/${name}_$core.json" "${@//CORE/$core}" >"$log/$name-$core.log" 2>&1 &
  done
  wait
  tail -n 1 "$log/$name-te.log" "$log/$name-nvte.log"
  python3 "$here/compare.py" "$root/${name}_te.json" "$root/${name}_nvte.json" \
    --details "$log/misses-$name.json" >"$out/compare-$name.txt" 2>&1
  cat "$out/compare-$name.txt"
}

for core in te nvte; do
  for framework in pytorch jax; do imports $core $framework & done
done
wait
if wants score; then
  say "score, PyTorch"
  scores torch score.py 7 --filter "${FILTER:-}"
  say "checkpoints of one core loaded by the other"
  ln -sfn $root/torch_nvte $root/for_te && ln -sfn $root/torch_te $root/for_nvte
  scores exchange score.py 4 --filter '^exchange/' --exchange $root/for_CORE
fi
if wants jax; then
  say "score, JAX"
  scores jax score_jax.py 6 --filter "${FILTER:-}"
fi
if wants layers || wants host; then # alone on the machine, one core after the other
  rounds="host host host"
  wants layers && rounds="large $rounds"
  number=0
  for rows in $rounds; do
    number=$((number + 1))
    for core in te nvte; do
      say "layers on $core: $rows"
      on $core python3 "$here/layers.py" --rows $rows --out $root/layers_${core}_$number.json \
        >"$log/layers-$core-$number.log" 2>&1
    done
  done
  python3 "$here/layers.py" --theirs $root/layers_te_*.json --ours $root/layers_nvte_*.json \
    >"$out/layers.txt" 2>&1
  cat "$out/layers.txt"
fi

for file in $root/{torch,jax,exchange}_{te,nvte}/worker-*.log; do
  [ -f "$file" ] || continue
  tail -c 100000 "$file" >"$log/$(basename "$(dirname "$file")")-$(basename "$file")"
done
cp $root/*.json "$log/" 2>/dev/null
tar cJf "$out/logs.tar.xz" -C $root log
say "done"
