//! Products of groups and what goes with them in the chain of captured operators.

use super::*;

const MEMBERS: [usize; 4] = [100, 0, 33, 67];
const ROWS: usize = 200;
const COLS: usize = 256;
const SETUP: usize = 1024;
const WORKSPACE: usize = 32 << 20;

pub fn steps(c: &mut Chain) {
    bias(c);
    widen(c);
    branches(c);
    counters(c);
    let setup = c.output("setup workspace", kNVTEByte, SETUP, Scratch);
    let workspace = c.output("workspace", kNVTEByte, WORKSPACE, Scratch);
    for (name, dtype, mode) in [
        ("grouped gemm bf16", kNVTEBFloat16, NVTE_DELAYED_TENSOR_SCALING),
        ("grouped gemm fp8", kNVTEFloat8E4M3, NVTE_DELAYED_TENSOR_SCALING),
        ("grouped gemm fp8 blocks", kNVTEFloat8E4M3, NVTE_BLOCK_SCALING_1D),
    ] {
        grouped(c, name, dtype, mode, [setup, workspace]);
    }
}

fn dims(c: &mut Chain) -> Id {
    let dims = MEMBERS.iter().flat_map(|&rows| (rows as i64).to_le_bytes()).collect();
    c.buffers.add(dims, 0)
}

fn bias(c: &mut Chain) {
    let (dtype, dims) = (kNVTEBFloat16, dims(c));
    let bias = c.input(dtype, MEMBERS.len() * COLS);
    let scale = c.input(kNVTEFloat32, ROWS);
    let values = vec![1.0f32; ROWS * COLS].iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>();
    let output = c.in_place("output", dtype, cast(&values, kNVTEFloat32, dtype), Bits);
    c.step("grouped bias", move |side| {
        let args = GroupedBiasArgs {
            output: side.at(output),
            bias: side.at::<c_void>(bias).cast_const(),
            scale: side.at::<f32>(scale).cast_const(),
            first_dims: side.at::<i64>(dims).cast_const(),
            num_tensors: MEMBERS.len(),
            rows: ROWS,
            cols: COLS,
            dtype,
        };
        entry(side, side.table.grouped_bias, args)
    });
}

fn widen(c: &mut Chain) {
    let length = 1001;
    let input: Vec<u8> = (0..length).flat_map(|_| (c.rng.next() as i32).to_le_bytes()).collect();
    let input = c.buffers.add(input, 0);
    let output = c.output("integers", kNVTEInt64, length, Bits);
    c.step("widened integers", move |side| {
        let input = side.at::<i32>(input).cast_const();
        let args = WidenArgs { input, output: side.at(output), length, factor: 4096 };
        entry(side, side.table.widen, args)
    });
}

/// Casts on two streams beside each other.
fn branches(c: &mut Chain) {
    let length = 5000;
    let ids = [0; 2].map(|_| {
        let bytes = (0..length).flat_map(|_| (c.rng.next() as i32).to_le_bytes()).collect();
        (c.buffers.add(bytes, 0), c.output("integers", kNVTEInt64, length, Bits))
    });
    c.step("branches", move |side| {
        let mut branches = [null_mut(); 2];
        // SAFETY: writes two streams, of which the arguments are used like the side's own.
        unsafe {
            let forked = side.table.fork.expect("fork")(side.stream, 2, branches.as_mut_ptr());
            if ok(forked, "fork").is_err() {
                return forked;
            }
            for ((input, output), branch) in ids.into_iter().zip(branches) {
                let input = side.at::<i32>(input).cast_const();
                let args = WidenArgs { input, output: side.at(output), length, factor: -3 };
                let widened = side.table.widen.expect("widen")(&args, branch);
                if ok(widened, "widen").is_err() {
                    return widened;
                }
            }
            side.table.join.expect("join")(side.stream, 2)
        }
    });
}

fn counters(c: &mut Chain) {
    let words = c.in_place("counters", kNVTEInt32, [1, 0, 0, 0].repeat(5), Fixed);
    for (name, wait) in [("counters", false), ("counters that are waited for", true)] {
        c.step(name, move |side| {
            let args = CountersArgs { counters: side.at(words), length: 5, limit: 1 << 40, wait };
            entry(side, side.table.counters, args)
        });
    }
}

/// Grouped products as in a forward pass: one A for each member, B and D of various rows.
fn grouped(
    c: &mut Chain,
    name: &'static str,
    dtype: NVTEDType,
    mode: NVTEScalingMode,
    [setup, workspace]: [Id; 2],
) {
    let (n, k, first_dims) = (MEMBERS.len(), 384, dims(c));
    let a = c.input(dtype, n * COLS * k);
    let b = c.input(dtype, ROWS * k);
    let entries = |rows: usize| match mode {
        NVTE_MXFP8_1D_SCALING => rows.next_multiple_of(128) * (k / 32),
        NVTE_BLOCK_SCALING_1D => rows.next_multiple_of(4) * (k / 128),
        _ => 1,
    };
    let scales = |c: &mut Chain, members: &mut dyn Iterator<Item = usize>| {
        let count = members.map(entries).sum();
        match mode {
            // Scales are one half or one.
            NVTE_MXFP8_1D_SCALING => {
                let codes = c.rng.bytes(count).iter().map(|byte| 126 + byte % 2).collect();
                c.buffers.add(codes, 0)
            }
            _ => block_scales(c, count),
        }
    };
    let scales_a = scales(c, &mut MEMBERS.iter().map(|_| COLS));
    let scales_b = scales(c, &mut MEMBERS.into_iter());
    let (alpha, beta) = (c.input(kNVTEFloat32, n), c.input(kNVTEFloat32, n));
    let other = c.input(kNVTEBFloat16, ROWS * COLS);
    let top = if is_fp8(dtype) { TOP_SCALE * TOP_SCALE } else { 1.0 };
    let (bound, _) = product_bounds([dtype, dtype], k, top, Some(kNVTEBFloat16), false);
    let d = c.output("d", kNVTEBFloat16, ROWS * COLS, Within(bound));
    c.step(name, move |side| {
        let matrix = |data, outer_dims, outer, inner, dtype| GroupedMatrix {
            data,
            members: null(),
            outer_dims,
            inner_dims: null(),
            offsets: null(),
            scale_inv: null(),
            elements: ROOM,
            scale_entries: ROOM,
            outer,
            inner,
            mode,
            dtype,
            transposed: false,
            swizzled: mode == NVTE_MXFP8_1D_SCALING,
        };
        let varying = side.at::<i64>(first_dims).cast_const();
        let with_scales = |matrix, scales| match is_fp8(dtype) {
            true => GroupedMatrix { scale_inv: side.at::<c_void>(scales).cast_const(), ..matrix },
            false => matrix,
        };
        let output = |data| GroupedMatrix {
            mode: NVTE_DELAYED_TENSOR_SCALING,
            swizzled: false,
            ..matrix(data, varying, ROWS, COLS, kNVTEBFloat16)
        };
        let args = GroupedGemmArgs {
            a: with_scales(matrix(side.at(a), null(), COLS, k, dtype), scales_a),
            b: with_scales(matrix(side.at(b), varying, ROWS, k, dtype), scales_b),
            c: output(side.at(other)),
            d: output(side.at(d)),
            alpha: side.at(alpha),
            beta: side.at(beta),
            alpha_stride: 1,
            beta_stride: 1,
            num_tensors: n,
            setup_workspace: side.at(setup),
            setup_bytes: SETUP,
            workspace: side.at(workspace),
            workspace_bytes: WORKSPACE,
            mean_m: COLS,
            mean_n: ROWS / n,
            mean_k: k,
            split_accumulator: true,
            sm_count: 0,
        };
        entry(side, side.table.grouped_gemm, args)
    });
}
