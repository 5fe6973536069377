//! Entries of quantize and dequantize, and their reference with per-tensor scaling (spec quantize
//! 3.1, 7.1, 9.1).
#![allow(unsafe_code)]

use super::cpu_block;
use super::cpu_fused::is_plain;
use crate::backend::args::*;
use crate::backend::buf::{Buf, load, store};
use crate::backend::cpu::{copy_line, is_large, is_noop, transposed, vectorized};
use crate::backend::fp8;
use crate::backend::group::Member;
use crate::backend::memory::resize;
use crate::backend::pool::{chunks, parallel};
use crate::numeric::{Element, amax_bits, dispatch};
use crate::types::{NVTEScalingMode, cudaStream_t};
use std::ffi::c_void;

/// Casts in any scaling mode.
pub(crate) unsafe extern "C-unwind" fn quantize(
    args: *const QuantizeArgs,
    _: cudaStream_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    let a = unsafe { &(*args).cast };
    // SAFETY: the flag is null or points to a float.
    if unsafe { is_noop(a.noop) } {
        return Outcome::OK;
    }
    if a.group.num_tensors == 0 {
        // SAFETY: plan() has checked the buffers of the matrix.
        return unsafe { quantize_matrix(a) };
    }
    // SAFETY: each member lies inside of the buffers that plan() has checked.
    unsafe {
        for member in a.group.members((a.rows, a.cols), a.mode) {
            let part = of_member(a, &member);
            if part.rows > 0 && part.cols > 0 {
                let outcome = quantize_matrix(&part);
                if outcome.status() != BackendStatus::NVTEX_BACKEND_OK {
                    return outcome;
                }
            } else if !part.fusion.dbias.is_null() {
                let bytes = part.cols * part.input_dtype.bits() / 8;
                Buf::<u8>::new(part.fusion.dbias, bytes).slice_mut(0, bytes).fill(0);
            }
        }
    }
    Outcome::OK
}

/// The cast of one member of a group.
fn of_member(a: &Cast, member: &Member) -> Cast {
    let shape @ (rows, cols) = (member.rows, member.cols);
    let (input_size, output_size) = (a.input_dtype.bits() / 8, a.output_dtype.bits() / 8);
    let per_tensor = a.mode == NVTEScalingMode::NVTE_DELAYED_TENSOR_SCALING;
    let scale_size = a.mode.scaling().scale_bytes();
    let input_at = match a.fusion.form {
        Form::NVTEX_FORM_GATED => member.at * 2,
        Form::NVTEX_FORM_GATED_DERIVATIVE => member.at / 2,
        _ => member.at,
    };
    let pitch = |colwise| if per_tensor { 0 } else { a.mode.scaling().scale_pitch(colwise, shape) };
    Cast {
        input: advance(a.input.cast_mut(), input_at * input_size),
        rowwise: advance(a.rowwise, member.at * output_size),
        colwise: advance(a.colwise, member.at * output_size),
        scale: advance(a.scale.cast_mut().cast(), member.index * 4).cast(),
        rowwise_scale_inv: advance(a.rowwise_scale_inv, member.row_scales * scale_size),
        colwise_scale_inv: advance(a.colwise_scale_inv, member.col_scales * scale_size),
        rows,
        cols,
        rowwise_scale_stride: pitch(false),
        colwise_scale_stride: pitch(true),
        fusion: Fusion {
            act_input: advance(a.fusion.act_input.cast_mut(), member.at * input_size),
            dbias: advance(a.fusion.dbias, member.index * cols * input_size),
            row_scales: advance(
                a.fusion.row_scales.cast_mut(),
                member.at.checked_div(cols).unwrap_or(0) * input_size,
            ),
            ..a.fusion
        },
        group: Group::NONE,
        ..*a
    }
}

/// An address some bytes further; null stays null.
fn advance(ptr: *mut c_void, bytes: usize) -> *mut c_void {
    if ptr.is_null() { ptr } else { ptr.wrapping_byte_add(bytes) }
}

/// # Safety
/// The arguments are valid, without a group.
unsafe fn quantize_matrix(a: &Cast) -> Outcome {
    let unimplemented = || Outcome::unimplemented("quantize: dtypes");
    if a.mode != NVTEScalingMode::NVTE_DELAYED_TENSOR_SCALING {
        return dispatch!(a.input_dtype, [F32, F16, BF16], I =>
            dispatch!(a.output_dtype, [E4M3, E5M2], O => {
                // SAFETY: the caller's promise, and the dtypes are those of the arguments.
                unsafe { cpu_block::quantize::<I, O>(a) };
                Outcome::OK
            }, else unimplemented()), else unimplemented());
    }
    dispatch!(a.input_dtype, [F32, F16, BF16], I =>
        dispatch!(a.output_dtype, [F32, F16, BF16, E4M3, E5M2], O => {
            // SAFETY: the caller's promise, and the dtypes are those of the arguments.
            unsafe {
                match is_plain(&a.fusion) {
                    true => quantize_as::<I, O>(a),
                    false => cpu_block::quantize_per_tensor::<I, O>(a),
                }
            };
            Outcome::OK
        }, else unimplemented()), else unimplemented())
}

/// The scale of a per-tensor cast.
///
/// # Safety
/// The arguments are valid and `O` is the output's dtype.
pub(super) unsafe fn scale_of_tensor<O: Element>(a: &Cast) -> f32 {
    // SAFETY: the caller keeps to the `# Safety` section of this function.
    if O::FP8 { unsafe { load(a.scale).unwrap_or(1.0) } } else { 1.0 }
}

/// Raises the amax to that of the elements.
///
/// # Safety
/// The arguments are valid.
pub(super) unsafe fn raise_amax(a: &Cast, bits: u32) {
    // SAFETY: the caller keeps to the `# Safety` section of this function.
    unsafe {
        if let Some(old) = load(a.amax) {
            store(a.amax, f32::from_bits((old.to_bits() as i32).max(bits as i32) as u32));
        }
    }
}

/// `scale_inv = 1 / scale` of a per-tensor cast.
///
/// # Safety
/// The arguments are valid and `O` is the output's dtype.
pub(super) unsafe fn store_scale_inv<O: Element>(a: &Cast, scale: f32) {
    if O::FP8 {
        // SAFETY: the caller keeps to the `# Safety` section of this function.
        unsafe {
            store(a.rowwise_scale_inv.cast(), 1.0 / scale);
            store(a.colwise_scale_inv.cast(), 1.0 / scale);
        }
    }
}

/// `y = cast(x * scale)`, `amax = max(amax, |x|)`, `scale_inv = 1 / scale`
///
/// # Safety
/// The arguments are valid and have the dtypes `I` and `O`.
unsafe fn quantize_as<I: Element, O: Element>(a: &Cast) {
    let numel = a.rows * a.cols;
    // A single column lies in memory as a single row.
    let (rows, cols) = if a.cols == 1 { (1, a.rows) } else { (a.rows, a.cols) };
    // SAFETY: the caller keeps to the `# Safety` section of this function.
    let (input, rowwise, colwise, scale) = unsafe {
        (
            Buf::<I>::new(a.input, numel),
            Buf::<O>::optional(a.rowwise, numel),
            Buf::<O>::optional(a.colwise, numel),
            scale_of_tensor::<O>(a),
        )
    };
    let large = is_large::<O>(numel);
    let amax = match colwise {
        // SAFETY: each task writes its own part of the outputs. The row-wise one may be the input, whose
        // slice is no longer used then.
        Some(colwise) => unsafe {
            let fetch = |row, col, len| input.prefetch(row * cols + col, len);
            transposed(rows, cols, colwise, fetch, |row, col, tile: &mut [O]| {
                let at = row * cols + col;
                let amax = convert(input.slice(at, tile.len()), scale, tile);
                if let Some(rowwise) = rowwise {
                    copy_line(tile, rowwise.slice_mut(at, tile.len()), large);
                }
                amax
            })
        },
        None => {
            let (tasks, range) = chunks(numel);
            let in_place = a.rowwise.cast_const() == a.input;
            parallel(tasks).max_init(Vec::new, |copy: &mut Vec<I>, task| {
                let (start, len) = (range(task).start, range(task).len());
                // SAFETY: each task reads and writes its own part; the input's slice is not used after the
                // output's is made, if they are one.
                unsafe {
                    let input = input.slice(start, len);
                    match rowwise {
                        Some(rowwise) if in_place => {
                            resize(copy, len);
                            copy.copy_from_slice(input);
                            convert(copy, scale, rowwise.slice_mut(start, len))
                        }
                        Some(rowwise) => convert(input, scale, rowwise.slice_mut(start, len)),
                        None => max_magnitude(input),
                    }
                }
            })
        }
    };
    // SAFETY: the caller keeps to the `# Safety` section of this function.
    unsafe {
        raise_amax(a, amax);
        store_scale_inv::<O>(a, scale);
    }
}

/// `output = cast(input * scale)`, the multiplication for 8-bit outputs only; returns the bits of the
/// input's amax.
fn convert<I: Element, O: Element>(input: &[I], scale: f32, output: &mut [O]) -> u32 {
    match fp8::encode_line(input, scale, output) {
        Some(amax) => amax,
        None => convert_each(input, scale, output),
    }
}

vectorized! {
    fn convert_each<I: Element, O: Element>(input: &[I], scale: f32, output: &mut [O]) -> u32 {
        let mut amax = 0;
        for (x, y) in input.iter().zip(output) {
            let x = x.to_f32();
            amax = amax_bits(x).max(amax);
            *y = O::from_f32(if O::FP8 { x * scale } else { x });
        }
        amax
    }
}

vectorized! {
    /// The bits of the largest magnitude.
    pub(crate) fn max_magnitude<I: Element>(input: &[I]) -> u32 {
        let mut amax = 0;
        for x in input {
            amax = amax_bits(x.to_f32()).max(amax);
        }
        amax
    }
}

/// `output = cast(input * scale_inv)`
fn rescale<I: Element, O: Element>(input: &[I], scale_inv: f32, output: &mut [O]) {
    if !fp8::decode_line(input, scale_inv, output) {
        rescale_each(input, scale_inv, output);
    }
}

vectorized! {
    fn rescale_each<I: Element, O: Element>(input: &[I], scale_inv: f32, output: &mut [O]) {
        for (x, y) in input.iter().zip(output) {
            *y = O::from_f32(x.to_f32() * scale_inv);
        }
    }
}

/// `y = cast(float(x) * scale_inv)` in any scaling mode.
pub(crate) unsafe extern "C-unwind" fn dequantize(
    args: *const DequantizeArgs,
    _: cudaStream_t,
) -> Outcome {
    // SAFETY: the caller of a table entry vouches for its arguments.
    let a = unsafe { &*args };
    dispatch!(a.input_dtype, [E4M3, E5M2], I =>
        dispatch!(a.output_dtype, [F32, F16, BF16], O => {
            // SAFETY: plan() has checked the buffers, and the dtypes are those of the arguments.
            unsafe {
                match a.mode {
                    NVTEScalingMode::NVTE_DELAYED_TENSOR_SCALING => dequantize_as::<I, O>(a),
                    _ => cpu_block::dequantize::<I, O>(a),
                }
            };
            Outcome::OK
        }, else Outcome::unimplemented("dequantize: output dtype")),
    else Outcome::unimplemented("dequantize: input dtype"))
}

/// # Safety
/// The arguments are valid and have the dtypes `I` and `O`.
unsafe fn dequantize_as<I: Element, O: Element>(a: &DequantizeArgs) {
    // SAFETY: the caller keeps to the `# Safety` section of this function.
    for member in unsafe { a.group.members((a.rows, a.cols), a.mode) } {
        let (rows, cols, numel) = (member.rows, member.cols, member.rows * member.cols);
        // SAFETY: the caller's promise; input and output are distinct.
        let (codes, output, scale_inv) = unsafe {
            (
                Buf::<I>::new(a.input.cast::<I>().add(member.at).cast(), numel),
                Buf::<O>::new(a.output.cast::<O>().add(member.at).cast(), numel),
                a.scale_inv.cast::<f32>().add(member.index).read(),
            )
        };
        // SAFETY: nobody writes to the input.
        let input = unsafe { codes.slice(0, numel) };
        if a.colwise && rows != 1 && cols != 1 {
            // SAFETY: the output is ours.
            unsafe {
                let fetch = |row, col, len| codes.prefetch(row * rows + col, len);
                transposed(cols, rows, output, fetch, |row, col, tile: &mut [O]| {
                    rescale(&input[row * rows + col..][..tile.len()], scale_inv, tile);
                    0
                })
            };
        } else {
            let (tasks, range) = chunks(numel);
            parallel(tasks).for_each(|task| {
                let input = &input[range(task)];
                // SAFETY: each task writes its own part of the output.
                let output = unsafe { output.slice_mut(range(task).start, input.len()) };
                rescale(input, scale_inv, output);
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numeric::*;
    use std::ptr::{null, null_mut};

    /// All 16-bit patterns, in each half of 32-bit ones.
    fn patterns<T: Element>(make: impl Fn(u32) -> T) -> Vec<T> {
        (0..65_536u32).map(|i| make(i.wrapping_mul(0x0001_0001))).collect()
    }

    /// Equal, or both NaN in a type that compares them unequal.
    fn same<T: Element + PartialEq>(a: T, b: T) -> bool {
        a == b || (a.to_f32().is_nan() && b.to_f32().is_nan())
    }

    fn check_quantize<I: Element, O: Element + PartialEq>(input: &[I], cols: usize) {
        let (numel, scale) = (input.len() / cols * cols, -0.37f32);
        let (mut row, mut col) = (vec![O::default(); numel], vec![O::default(); numel]);
        let (mut amax, mut scale_inv) = (0.0, [0.0; 2]);
        let args = Cast {
            input: input.as_ptr().cast(),
            rowwise: row.as_mut_ptr().cast(),
            colwise: col.as_mut_ptr().cast(),
            scale: &scale,
            amax: &mut amax,
            rowwise_scale_inv: (&raw mut scale_inv[0]).cast(),
            colwise_scale_inv: (&raw mut scale_inv[1]).cast(),
            noop: null(),
            rows: numel / cols,
            cols,
            rowwise_scale_stride: 0,
            colwise_scale_stride: 0,
            epsilon: 0.0,
            mode: NVTEScalingMode::NVTE_DELAYED_TENSOR_SCALING,
            input_dtype: I::DTYPE,
            output_dtype: O::DTYPE,
            pow2: false,
            square_blocks: false,
            swizzled: false,
            fusion: Fusion::NONE,
            group: Group::NONE,
        };
        // SAFETY: the arrays have the shapes that the arguments say.
        unsafe { quantize(&QuantizeArgs { cast: args }, null_mut()) };
        let mut want_amax = 0.0f32;
        for (i, x) in input[..numel].iter().enumerate() {
            let x = x.to_f32();
            let want = O::from_f32(if O::FP8 { x * scale } else { x });
            assert!(
                same(row[i], want) && same(col[i % cols * args.rows + i / cols], want),
                "{x:e}"
            );
            want_amax = want_amax.max(x.abs());
        }
        assert_eq!(amax, want_amax);
        assert_eq!(scale_inv, [if O::FP8 { 1.0 / scale } else { 0.0 }; 2]);

        let mut only_row = vec![O::default(); numel];
        let args = Cast { rowwise: only_row.as_mut_ptr().cast(), colwise: null_mut(), ..args };
        // SAFETY: the arguments describe the vectors of this test.
        unsafe { quantize(&QuantizeArgs { cast: args }, null_mut()) };
        assert!(only_row.iter().zip(&row).all(|(&a, &b)| same(a, b)));
    }

    #[test]
    fn quantizes_every_pattern_as_the_scalar_code() {
        fn from<I: Element>(input: &[I]) {
            for cols in [1, 3, 257, 4096] {
                check_quantize::<I, F32>(input, cols);
                check_quantize::<I, F16>(input, cols);
                check_quantize::<I, BF16>(input, cols);
                check_quantize::<I, E4M3>(input, cols);
                check_quantize::<I, E5M2>(input, cols);
            }
        }
        from(&patterns(|i| F32(f32::from_bits(i))));
        from(&patterns(|i| F16(i as u16)));
        from(&patterns(|i| BF16(i as u16)));
    }

    #[test]
    fn dequantizes_every_code() {
        let codes: Vec<u8> = (0..=255).collect();
        for colwise in [false, true] {
            let (mut output, scale_inv) = ([0f32; 256], 0.5f32);
            let args = DequantizeArgs {
                input: codes.as_ptr().cast(),
                output: output.as_mut_ptr().cast(),
                scale_inv: (&raw const scale_inv).cast(),
                rows: 8,
                cols: 32,
                scale_stride: 0,
                mode: NVTEScalingMode::NVTE_DELAYED_TENSOR_SCALING,
                input_dtype: E4M3::DTYPE,
                output_dtype: F32::DTYPE,
                colwise,
                swizzled: false,
                group: Group::NONE,
            };
            // SAFETY: the arrays have the shapes that the arguments say.
            unsafe { dequantize(&args, null_mut()) };
            for (i, y) in output.into_iter().enumerate() {
                let code = if colwise { i % 32 * 8 + i / 32 } else { i };
                let want = E4M3(code as u8).to_f32() * 0.5;
                assert!(y == want || (y.is_nan() && want.is_nan()), "{y} at {i}");
            }
        }
    }

    #[test]
    fn noop_of_exactly_one_writes_nothing() {
        for (noop, want) in [(1.0, 7u8), (0.0, 0x38), (2.0, 0x38)] {
            let (x, mut y, mut amax, mut scale_inv) = (1.0f32, 7u8, 0.5, 9.0f32);
            let args = Cast {
                input: (&raw const x).cast(),
                rowwise: (&raw mut y).cast(),
                colwise: null_mut(),
                scale: null(),
                amax: &mut amax,
                rowwise_scale_inv: (&raw mut scale_inv).cast(),
                colwise_scale_inv: null_mut(),
                noop: &noop,
                rows: 1,
                cols: 1,
                rowwise_scale_stride: 0,
                colwise_scale_stride: 0,
                epsilon: 0.0,
                mode: NVTEScalingMode::NVTE_DELAYED_TENSOR_SCALING,
                input_dtype: F32::DTYPE,
                output_dtype: E4M3::DTYPE,
                pow2: false,
                square_blocks: false,
                swizzled: false,
                fusion: Fusion::NONE,
                group: Group::NONE,
            };
            // SAFETY: the pointers are to one element each.
            unsafe { quantize(&QuantizeArgs { cast: args }, null_mut()) };
            let wrote = want != 7;
            assert_eq!((y, amax), (want, if wrote { 1.0 } else { 0.5 }));
            assert_eq!(scale_inv, if wrote { 1.0 } else { 9.0 });
        }
    }
}
