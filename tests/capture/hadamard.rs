//! Hadamard transforms, and what belongs to NVFP4 beside casts, in the chain of captured operators.

use super::*;

const ROWS: usize = 384;
const COLS: usize = 640;

pub fn steps(c: &mut Chain, workspace: Id) {
    hadamard(c);
    hadamard_amax(c, false);
    hadamard_amax(c, true);
    transposes(c);
    scales(c);
    parts(c);
    product(c, workspace, true);
    product(c, workspace, false);
}

fn hadamard(c: &mut Chain) {
    let input = c.input(kNVTEBFloat16, ROWS * COLS);
    let output = c.output("output", kNVTEBFloat16, ROWS * COLS, Bits);
    c.step("hadamard", move |side| {
        let args = HadamardArgs {
            input: side.at::<c_void>(input).cast_const(),
            output: side.at(output),
            rows: ROWS,
            cols: COLS,
            sign_mask: 0xD7E8,
        };
        entry(side, side.table.hadamard, args)
    });
}

fn hadamard_amax(c: &mut Chain, of_group: bool) {
    const MEMBERS: usize = 3;
    let input = c.input(kNVTEBFloat16, ROWS * COLS);
    let amax = c.output("amax", kNVTEFloat32, MEMBERS, Bits);
    let colwise_amax = c.output("colwise_amax", kNVTEFloat32, MEMBERS, Bits);
    let name = if of_group { "hadamard_amax of a group" } else { "hadamard_amax of parts" };
    c.step(name, move |side| {
        let (amax, colwise_amax) = (side.at::<f32>(amax), side.at::<f32>(colwise_amax));
        let members: [HadamardMember; MEMBERS] = std::array::from_fn(|i| HadamardMember {
            rows: ROWS / MEMBERS,
            amax: amax.wrapping_add(i),
            colwise_amax: colwise_amax.wrapping_add(i),
        });
        let args = HadamardAmaxArgs {
            input: side.at::<c_void>(input).cast_const(),
            rows: ROWS,
            cols: COLS,
            sign_mask: 0xD7E8,
            transform: true,
            members: if of_group { null() } else { members.as_ptr() },
            num_members: if of_group { 0 } else { MEMBERS },
            group: match of_group {
                true => Group { num_tensors: MEMBERS, ..LARGE_GROUP },
                false => Group::NONE,
            },
            amax,
            colwise_amax,
        };
        entry(side, side.table.hadamard_amax, args)
    });
}

fn transposes(c: &mut Chain) {
    let bytes = ROWS * COLS / 2;
    let codes = c.rng.bytes(bytes);
    let input = c.buffers.add(codes, 0);
    let output = c.output("codes", kNVTEByte, bytes, Bits);
    c.step("nvfp4_transpose", move |side| {
        let args = Nvfp4TransposeArgs {
            input: side.at::<c_void>(input).cast_const(),
            output: side.at(output),
            rows: ROWS,
            cols: COLS,
        };
        entry(side, side.table.nvfp4_transpose, args)
    });
    let output = c.output("scales", kNVTEByte, COLS * ROWS / 16, Bits);
    c.step("nvfp4_scale_transpose", move |side| {
        let args = Nvfp4ScaleTransposeArgs {
            input: side.at::<c_void>(input).cast_const(),
            output: side.at(output),
            rows: COLS,
            cols: ROWS / 16,
            row_tiles: COLS / 16,
            input_stride: COLS / 16,
            output_stride: ROWS / 16,
        };
        entry(side, side.table.nvfp4_scale_transpose, args)
    });
}

fn scales(c: &mut Chain) {
    let tiles = ROWS / 16 * (COLS / 16);
    let (amax_a, amax_b) = (c.scale_input(), c.scale_input());
    let alpha = c.output("alpha", kNVTEFloat32, 2, Bits);
    c.step("nvfp4_alpha", move |side| {
        let args = Nvfp4AlphaArgs {
            amax_a: side.at::<f32>(amax_a).cast_const(),
            amax_b: side.at::<f32>(amax_b).cast_const(),
            output: side.at(alpha),
            alpha: 0.5,
            beta: 0.25,
            factor: 1e-3,
            with_beta: true,
        };
        entry(side, side.table.nvfp4_alpha, args)
    });
    let global = c.output("global scale", kNVTEFloat32, 1, Bits);
    c.step("nvfp4_global_scale", move |side| {
        let (amax, scale) = (side.at::<f32>(amax_a).cast_const(), side.at(global));
        entry(side, side.table.nvfp4_global_scale, Nvfp4GlobalScaleArgs { amax, scale, length: 1 })
    });
    let input = c.input(kNVTEFloat32, tiles);
    let scale = c.output("scale", kNVTEFloat32, tiles, Bits);
    let codes = c.output("codes", kNVTEByte, ROWS * COLS / 16, Bits);
    let target_amax = c.output("amax", kNVTEFloat32, 1, Bits);
    c.step("nvfp4_block_scale", move |side| {
        let args = Nvfp4BlockScaleArgs {
            input: side.at::<f32>(input).cast_const(),
            global_amax: side.at::<f32>(amax_a).cast_const(),
            scale: side.at(scale),
            codes: side.at(codes),
            target_amax: side.at(target_amax),
            tile_rows: ROWS / 16,
            tile_cols: COLS / 16,
            rows: ROWS,
            block_len: 16,
        };
        entry(side, side.table.nvfp4_block_scale, args)
    });
}

fn parts(c: &mut Chain) {
    let tiles = ROWS / 16 * (COLS / 16);
    let input = c.input(SHARD.dtype, SHARD.length);
    let amax = c.output("amax", kNVTEFloat32, tiles, Bits);
    c.step("nvfp4_partial_amax", move |side| {
        let args = Nvfp4PartialAmaxArgs {
            shard: Shard { input: side.at(input), ..SHARD },
            amax: side.at(amax),
            stride: COLS / 16,
            step: 1,
        };
        entry(side, side.table.nvfp4_partial_amax, args)
    });
    let (global, output) = (c.scale_input(), c.output("output", kNVTEByte, SHARD.length / 2, Bits));
    c.step("nvfp4_partial_cast", move |side| {
        let args = Nvfp4PartialCastArgs {
            shard: Shard { input: side.at(input), ..SHARD },
            output: side.at(output),
            scale: side.at::<f32>(amax).cast_const(),
            global_scale: side.at::<f32>(global).cast_const(),
            stride: COLS / 16,
            step: 1,
        };
        entry(side, side.table.nvfp4_partial_cast, args)
    });
}

/// The product of NVFP4 operands, with amaxes on the device, or with alpha and beta there.
fn product(c: &mut Chain, workspace: Id, with_amax: bool) {
    let (m, n, k, dtype) = (256, 128, 512, kNVTEFloat4E2M1);
    let [a, b] = [m, n].map(|outer| {
        let codes = c.rng.bytes(outer * k / 2);
        // Scales are from 1/2 to less than 2.
        let scales = c.rng.bytes(outer * k / 16).iter().map(|byte| 0x30 + byte % 16).collect();
        (c.buffers.add(codes, 0), c.buffers.add(scales, 0))
    });
    let (first, second) = (c.scale_input(), c.scale_input());
    let zero = c.buffers.float(0.0);
    let d = c.output("d", kNVTEFloat32, n * m, Within(0.05));
    let name = if with_amax { "gemm nvfp4" } else { "gemm nvfp4, factors on the device" };
    c.step(name, move |side| {
        let float = |id: Id, wanted: bool| match wanted {
            true => side.at::<f32>(id).cast_const(),
            false => null(),
        };
        let scales = |id: Id| GemmScales {
            inv: side.at::<c_void>(id).cast_const(),
            stride: k / 16,
            mode: NVTE_NVFP4_1D_SCALING,
            swizzled: true,
        };
        let args = GemmArgs {
            a: side.at(a.0),
            b: side.at(b.0),
            c: side.at(d),
            d: side.at(d),
            scales_a: scales(a.1),
            scales_b: scales(b.1),
            scale_d: null(),
            amax_d: null_mut(),
            scale_inv_d: null_mut(),
            bias: null_mut(),
            aux: null_mut(),
            workspace: side.at(workspace),
            workspace_bytes: WORKSPACE,
            m,
            n,
            k,
            alpha: 1.0,
            beta: 0.0,
            a_dtype: dtype,
            b_dtype: dtype,
            d_dtype: kNVTEFloat32,
            bias_dtype: kNVTEFloat32,
            aux_dtype: kNVTEFloat32,
            epilogue: NVTEX_EPILOGUE_NONE,
            nvfp4: Nvfp4Factors {
                amax_a: float(first, with_amax),
                amax_b: float(second, with_amax),
                factor: 1e-3,
                alpha: float(first, !with_amax),
                beta: float(zero, !with_amax),
            },
            transa: true,
            transb: false,
            split_accumulator: false,
            sm_count: 0,
            aux_slope: false,
            d_columns: std::ptr::null_mut(),
            d_columns_pitch: 0,
        };
        entry(side, side.table.gemm, args)
    });
}
