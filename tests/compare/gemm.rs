//! Matrix products.

use crate::*;

use GemmEpilogue::*;

const EPILOGUES: [GemmEpilogue; 7] = [
    NVTEX_EPILOGUE_NONE,
    NVTEX_EPILOGUE_BIAS,
    NVTEX_EPILOGUE_GELU,
    NVTEX_EPILOGUE_GELU_BIAS,
    NVTEX_EPILOGUE_BGRAD,
    NVTEX_EPILOGUE_DGELU,
    NVTEX_EPILOGUE_DGELU_BGRAD,
];
/// Per combination of types, transposes and epilogue: plain multiples of 16, then anything.
const VARIANTS: usize = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct GemmKind {
    a: usize,
    b: usize,
    d: usize,
    transa: bool,
    transb: bool,
    epilogue: usize,
}

impl GemmKind {
    fn of(mut index: usize) -> Self {
        let mut digit = |base| {
            let digit = index % base;
            index /= base;
            digit
        };
        Self {
            epilogue: digit(7),
            transa: digit(2) == 1,
            transb: digit(2) == 1,
            d: digit(5),
            b: digit(5),
            a: digit(5),
        }
    }

    /// Whether the operators promise this product on Hopper.
    fn required(&self) -> bool {
        let (a, b, d) = (ALL[self.a], ALL[self.b], ALL[self.d]);
        self.epilogue == 0
            && if is_fp8(a) {
                let both_wide = a == kNVTEFloat8E5M2 && b == kNVTEFloat8E5M2;
                is_fp8(b) && !both_wide && self.transa && !self.transb && d == kNVTEBFloat16
            } else {
                a == b && (d == a || d == kNVTEFloat32)
            }
    }
}

impl std::fmt::Display for GemmKind {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let flag = |t| if t { 'T' } else { 'N' };
        let (a, b, d) = (ALL[self.a], ALL[self.b], ALL[self.d]);
        let (ta, tb) = (flag(self.transa), flag(self.transb));
        write!(f, "{a:?} x {b:?} -> {d:?} {ta}{tb} {:?}", EPILOGUES[self.epilogue])
    }
}

/// Runs one product; Some(reason) if CUDA does not implement it.
fn gemm_case(
    rng: &mut Rng,
    kind: GemmKind,
    plain: bool,
    workspace: (*mut c_void, usize),
) -> Result<Option<String>, String> {
    let (a_dtype, b_dtype, d_dtype) = (ALL[kind.a], ALL[kind.b], ALL[kind.d]);
    let epilogue = EPILOGUES[kind.epilogue];
    let mut dim = |top| {
        if plain {
            16 * rng.within(1, top / 16)
        } else {
            match rng.below(6) {
                0 => rng.within(1, 8),
                1 => 8 * rng.within(1, top / 8),
                _ => rng.within(1, top),
            }
        }
    };
    let (m, n, mut k) = (dim(300), dim(300), dim(700));
    if !plain && rng.chance(5) {
        k = 0;
    }
    let mut b = Buffers::default();
    let matrix = |rng: &mut Rng, b: &mut Buffers, dtype, len: usize, shifted: bool| {
        let values: Vec<u8> = (0..len).flat_map(|_| rng.unit().to_le_bytes()).collect();
        let bytes = cast(&values, kNVTEFloat32, dtype);
        let shift = if plain || !shifted { 0 } else { rng.shift() * size(dtype) };
        b.add(bytes, shift)
    };
    let a_id = matrix(rng, &mut b, a_dtype, m * k, true);
    let b_id = matrix(rng, &mut b, b_dtype, n * k, true);
    let beta = if plain { 0.0 } else { rng.pick(&[0.0, 0.0, 1.0, -0.5]) };
    // With beta 0, C is NaN: it must not be read.
    let d_id = if beta == 0.0 {
        b.add(vec![0xFF; n * m * size(d_dtype)], 0)
    } else {
        matrix(rng, &mut b, d_dtype, n * m, true)
    };
    let c_id = if beta != 0.0 && rng.chance(50) {
        matrix(rng, &mut b, d_dtype, n * m, true)
    } else {
        d_id
    };
    let alpha = if plain { 1.0 } else { rng.pick(&[1.0, 1.0, 0.5, -2.0]) };
    let scale = |rng: &mut Rng, b: &mut Buffers, dtype| {
        let value = if is_fp8(dtype) { 0.5 + rng.unit().abs() } else { 1.0 };
        (value, is_fp8(dtype).then(|| b.float(value)))
    };
    let (scale_a, scale_a_id) = scale(rng, &mut b, a_dtype);
    let (scale_b, scale_b_id) = scale(rng, &mut b, b_dtype);
    let (scale_d, scale_d_id) = scale(rng, &mut b, d_dtype);
    let amax_d = (is_fp8(d_dtype) && rng.chance(80)).then(|| b.float(0.0));
    let scale_inv_d = (is_fp8(d_dtype) && rng.chance(80)).then(|| b.float(-7.0));
    let wide = if is_fp8(d_dtype) { kNVTEBFloat16 } else { d_dtype };
    let bias_dtype = if plain { wide } else { rng.pick(&[wide, wide, HIGH[0], HIGH[1], HIGH[2]]) };
    let aux_dtype = if plain { wide } else { rng.pick(&[wide, wide, HIGH[0], HIGH[1], HIGH[2]]) };
    let gelu = matches!(epilogue, NVTEX_EPILOGUE_GELU | NVTEX_EPILOGUE_GELU_BIAS);
    let dgelu = matches!(epilogue, NVTEX_EPILOGUE_DGELU | NVTEX_EPILOGUE_DGELU_BGRAD);
    let reads_bias = matches!(epilogue, NVTEX_EPILOGUE_BIAS | NVTEX_EPILOGUE_GELU_BIAS);
    let bias_len = if epilogue == NVTEX_EPILOGUE_BGRAD { n } else { m };
    let writes_bias = matches!(epilogue, NVTEX_EPILOGUE_BGRAD | NVTEX_EPILOGUE_DGELU_BGRAD);
    let bias = (reads_bias || writes_bias).then(|| {
        if reads_bias {
            matrix(rng, &mut b, bias_dtype, bias_len, true)
        } else {
            b.output(rng, bias_dtype, bias_len)
        }
    });
    let aux = (gelu || dgelu).then(|| matrix(rng, &mut b, aux_dtype, n * m, true));
    let split_accumulator = rng.chance(50);
    let sm_count = if plain { 0 } else { rng.pick(&[0, 0, 0, 16]) };
    let with_workspace = rng.chance(70);

    let call = |side: &Side| {
        let on_device = with_workspace && !std::ptr::eq(side.table, cpu_table());
        let (workspace, workspace_bytes) = if on_device { workspace } else { (null_mut(), 0) };
        let args = GemmArgs {
            a: side.at(a_id),
            b: side.at(b_id),
            c: side.at(c_id),
            d: side.at(d_id),
            scales_a: GemmScales::per_tensor(side.maybe(scale_a_id)),
            scales_b: GemmScales::per_tensor(side.maybe(scale_b_id)),
            scale_d: side.maybe(scale_d_id),
            amax_d: side.maybe(amax_d),
            scale_inv_d: side.maybe(scale_inv_d),
            bias: side.maybe(bias),
            aux: side.maybe(aux),
            workspace,
            workspace_bytes,
            m,
            n,
            k,
            alpha,
            beta,
            a_dtype,
            b_dtype,
            d_dtype,
            bias_dtype,
            aux_dtype,
            epilogue,
            nvfp4: Nvfp4Factors::NONE,
            transa: kind.transa,
            transb: kind.transb,
            split_accumulator,
            sm_count,
            aux_slope: false,
            d_columns: std::ptr::null_mut(),
            d_columns_pitch: 0,
        };
        entry(side, side.table.gemm, args)
    };
    let context = |e: String| {
        format!(
            "{kind}: m {m}, n {n}, k {k}, alpha {alpha}, beta {beta}, bias {bias_dtype:?}, \
             aux {aux_dtype:?}, split {split_accumulator}: {e}"
        )
    };
    let cuda = run(cuda_table()?, &b, &call).map_err(|e| context(format!("cuda: {e}")))?;
    if cuda.unimplemented() {
        return Ok(Some(cuda.reason));
    }
    let cpu = run(cpu_table(), &b, &call).map_err(|e| context(format!("cpu: {e}")))?;
    if cpu.unimplemented() {
        return Err(context(format!("cpu: UNIMPLEMENTED: {}", cpu.reason)));
    }
    let written_aux = if gelu { aux } else { None };
    let written_bias = if writes_bias { bias } else { None };
    let outputs = [Some(d_id), amax_d, scale_inv_d, written_aux, written_bias];
    for answer in [&cpu, &cuda] {
        unchanged(&b, &answer.contents, outputs.into_iter().flatten()).map_err(context)?;
    }

    let added_in = (reads_bias || beta != 0.0).then_some(wide);
    let scale = alpha * scale_a * scale_b;
    let (sum, activated) = product_bounds([a_dtype, b_dtype], k, scale, added_in, gelu || dgelu);
    let result = |id: Id| (&cpu.contents[id.0][..], &cuda.contents[id.0][..]);
    let compare = |name, dtype, absolute, id: Option<Id>| match id {
        Some(id) => close(name, dtype, absolute, result(id).0, result(id).1),
        None => Ok(()),
    };
    let summed = match epilogue {
        NVTEX_EPILOGUE_BGRAD => (k.max(1) as f64).sqrt() * 2f64.powi(-18),
        _ => activated * (n as f64).sqrt() * 4.0 + (n as f64).sqrt() * spacing(wide).0,
    };
    compare("d", d_dtype, activated * scale_d as f64, Some(d_id))
        .and_then(|()| compare("aux", aux_dtype, sum, written_aux))
        .and_then(|()| compare("bias", bias_dtype, summed, written_bias))
        .and_then(|()| compare("amax_d", kNVTEFloat32, activated, amax_d))
        .and_then(|()| compare("scale_inv_d", kNVTEFloat32, 0.0, scale_inv_d))
        .map_err(context)?;
    Ok(None)
}

#[test]
fn gemm() {
    let Some(table) = cuda("gemm") else { return };
    let bytes = 32 << 20;
    let workspace = (malloc(table, bytes).expect("workspace"), bytes);
    let kinds = 5 * 5 * 5 * 2 * 2 * 7;
    let (mut ran, mut missing) = (0, Vec::new());
    let mut reasons: BTreeMap<String, (usize, GemmKind)> = BTreeMap::new();
    let all = cases("gemm", kinds * VARIANTS, |rng, index| {
        let (kind, plain) = (GemmKind::of(index / VARIANTS), index % VARIANTS == 0);
        match gemm_case(rng, kind, plain, workspace)? {
            None => ran += 1,
            Some(reason) => {
                if plain && kind.required() {
                    missing.push(format!("{kind}: {reason}"));
                }
                reasons.entry(reason).or_insert((0, kind)).0 += 1;
            }
        }
        Ok(())
    });
    free(table, workspace.0);
    eprintln!("gemm: {ran} products ran; UNIMPLEMENTED:");
    for (reason, (count, kind)) in reasons {
        eprintln!("  {count} times: {reason} (first: {kind})");
    }
    assert!(!all || ran > 0);
    assert!(missing.is_empty(), "must run on Hopper:\n{}", missing.join("\n"));
}

/// Scaling modes of A and B.
const BLOCKS: [[NVTEScalingMode; 2]; 4] = [
    [NVTE_BLOCK_SCALING_1D; 2],
    [NVTE_BLOCK_SCALING_2D, NVTE_BLOCK_SCALING_1D],
    [NVTE_BLOCK_SCALING_1D, NVTE_BLOCK_SCALING_2D],
    [NVTE_MXFP8_1D_SCALING; 2],
];

/// Runs one product of operands in blocks; Some(reason) if CUDA does not implement it.
fn gemm_blocks_case(
    rng: &mut Rng,
    index: usize,
    workspace: (*mut c_void, usize),
) -> Result<Option<String>, String> {
    let modes = BLOCKS[index % 4];
    let mx = modes[0] == NVTE_MXFP8_1D_SCALING;
    let (m, mut n, mut k) = (8 * rng.within(1, 40), 8 * rng.within(1, 40), 16 * rng.below(41));
    if modes[1] == NVTE_BLOCK_SCALING_2D || mx {
        n += rng.below(8);
    }
    if mx {
        k += rng.below(16);
    }
    let epilogue = [NVTEX_EPILOGUE_NONE, NVTEX_EPILOGUE_BIAS, NVTEX_EPILOGUE_DGELU][index / 4 % 3];
    let [a_dtype, b_dtype] =
        rng.pick(&[[FP8[0], FP8[0]], [FP8[0], FP8[1]], [FP8[1], FP8[0]], [FP8[0], FP8[0]]]);
    let d_dtype = if (index / 12).is_multiple_of(2) { kNVTEBFloat16 } else { kNVTEFloat32 };
    let [transa, transb] = if mx { [rng.chance(50), rng.chance(50)] } else { [true, false] };
    let swizzled = mx && rng.chance(50);
    let (alpha, beta) = (rng.pick(&[1.0, -0.5]), rng.pick(&[0.0, 0.0, 1.0, 0.5]));
    let mut b = Buffers::default();
    let matrix = |rng: &mut Rng, b: &mut Buffers, dtype, len: usize| {
        let values: Vec<u8> = (0..len).flat_map(|_| rng.unit().to_le_bytes()).collect();
        b.add(cast(&values, kNVTEFloat32, dtype), 0)
    };
    let (a_id, b_id) = (matrix(rng, &mut b, a_dtype, m * k), matrix(rng, &mut b, b_dtype, n * k));
    let d_id = matrix(rng, &mut b, d_dtype, n * m);
    let bias = matrix(rng, &mut b, kNVTEBFloat16, m);
    let aux = matrix(rng, &mut b, kNVTEBFloat16, n * m);
    // Scales are at most 2.
    let scales = [(0, m, !transa), (1, n, transb)].map(|(i, outer, colwise)| {
        let shape = if colwise { (k, outer) } else { (outer, k) };
        let (_, lines, needed) = scale_matrix(modes[i], colwise, shape);
        let stride = needed.next_multiple_of(4);
        let len = lines * stride;
        let bytes = match mx {
            true => rng.bytes(len).iter().map(|byte| 121 + byte % 8).collect(),
            false => (0..len).flat_map(|_| (1.0 + rng.unit()).to_le_bytes()).collect(),
        };
        (b.add(bytes, 0), stride)
    });
    let call = |side: &Side| {
        let on_device = !std::ptr::eq(side.table, cpu_table());
        let (workspace, workspace_bytes) = if on_device { workspace } else { (null_mut(), 0) };
        let scales_of = |i: usize| GemmScales {
            inv: side.at(scales[i].0),
            stride: scales[i].1,
            mode: modes[i],
            swizzled,
        };
        let args = GemmArgs {
            a: side.at(a_id),
            b: side.at(b_id),
            c: side.at(d_id),
            d: side.at(d_id),
            scales_a: scales_of(0),
            scales_b: scales_of(1),
            scale_d: null(),
            amax_d: null_mut(),
            scale_inv_d: null_mut(),
            bias: if epilogue == NVTEX_EPILOGUE_BIAS { side.at(bias) } else { null_mut() },
            aux: if epilogue == NVTEX_EPILOGUE_DGELU { side.at(aux) } else { null_mut() },
            workspace,
            workspace_bytes,
            m,
            n,
            k,
            alpha,
            beta,
            a_dtype,
            b_dtype,
            d_dtype,
            bias_dtype: kNVTEBFloat16,
            aux_dtype: kNVTEBFloat16,
            epilogue,
            nvfp4: Nvfp4Factors::NONE,
            transa,
            transb,
            split_accumulator: true,
            sm_count: 0,
            aux_slope: false,
            d_columns: std::ptr::null_mut(),
            d_columns_pitch: 0,
        };
        entry(side, side.table.gemm, args)
    };
    let context = |e: String| {
        format!(
            "{modes:?}: {a_dtype:?} x {b_dtype:?} -> {d_dtype:?}, m {m}, n {n}, k {k}, \
             alpha {alpha}, beta {beta}, {epilogue:?}, swizzled {swizzled}: {e}"
        )
    };
    let cuda = run(cuda_table()?, &b, &call).map_err(|e| context(format!("cuda: {e}")))?;
    if cuda.unimplemented() {
        return Ok(Some(format!("{modes:?} to {d_dtype:?}, {epilogue:?}: {}", cuda.reason)));
    }
    let cpu = run(cpu_table(), &b, &call).map_err(|e| context(format!("cpu: {e}")))?;
    for answer in [&cpu, &cuda] {
        unchanged(&b, &answer.contents, [d_id]).map_err(context)?;
    }
    // MXFP8 runs as BFloat16, with float32 sums.
    let operands = if mx { [kNVTEBFloat16; 2] } else { [a_dtype, b_dtype] };
    let added_in = (beta != 0.0 || epilogue == NVTEX_EPILOGUE_BIAS).then_some(d_dtype);
    let activated = epilogue == NVTEX_EPILOGUE_DGELU;
    let (_, bound) = product_bounds(operands, k, 4.0 * alpha, added_in, activated);
    close("d", d_dtype, bound, &cpu.contents[d_id.0], &cuda.contents[d_id.0]).map_err(context)?;
    Ok(None)
}

#[test]
fn gemm_blocks() {
    let Some(table) = cuda("gemm_blocks") else { return };
    let bytes = 32 << 20;
    let workspace = (malloc(table, bytes).expect("workspace"), bytes);
    let (mut ran, mut missing, mut refused) = (0, Vec::new(), BTreeMap::new());
    let all = cases("gemm_blocks", 1200, |rng, index| {
        match gemm_blocks_case(rng, index, workspace)? {
            None => ran += 1,
            // The first kind of epilogue and output is what the operators promise.
            Some(reason) if index / 4 % 6 == 0 => missing.push(reason),
            Some(reason) => {
                *refused
                    .entry(reason.split(": cuBLASLt").next().unwrap().to_owned())
                    .or_insert(0) += 1
            }
        }
        Ok(())
    });
    free(table, workspace.0);
    eprintln!("gemm_blocks: {ran} products ran; UNIMPLEMENTED: {refused:#?}");
    assert!(!all || ran > 0);
    assert!(missing.is_empty(), "must run on Hopper:\n{}", missing.join("\n"));
}

/// A product of FP8 whose activation, or whose product with the derivatives of one, goes to an FP8 D in both
/// directions, or to a BFloat16 D, with the sums of its columns.
fn activated_case(rng: &mut Rng, index: usize, workspace: (*mut c_void, usize)) -> Check {
    let (grad, gated, hybrid, with_bias) =
        (index % 2 == 1, index / 2 % 2 == 1, index / 4 % 2 == 1, index / 8 % 2 == 1);
    let (n, m, k) = (256 * rng.within(1, 3), 64 * rng.within(1, 9), 128 * rng.within(5, 9));
    let slopes = if gated { 2 * m } else { m };
    let (outer, width) = if grad { (m, slopes) } else { (slopes, m) };
    let dtype = if grad && hybrid { kNVTEFloat8E5M2 } else { kNVTEFloat8E4M3 };
    let codes = (index / 16).is_multiple_of(2);
    let d_dtype = if codes { dtype } else { kNVTEBFloat16 };
    let epilogue = match (gated, grad, with_bias) {
        (true, false, _) => NVTEX_EPILOGUE_SWIGLU,
        (true, true, _) => NVTEX_EPILOGUE_DSWIGLU,
        (false, false, false) => NVTEX_EPILOGUE_GELU,
        (false, false, true) => NVTEX_EPILOGUE_GELU_BIAS,
        (false, true, false) => NVTEX_EPILOGUE_DGELU,
        (false, true, true) => NVTEX_EPILOGUE_DGELU_BGRAD,
    };
    let mut b = Buffers::default();
    let matrix = |rng: &mut Rng, b: &mut Buffers, dtype, len: usize| {
        let values: Vec<u8> = (0..len).flat_map(|_| rng.unit().to_le_bytes()).collect();
        b.add(cast(&values, kNVTEFloat32, dtype), 0)
    };
    let (a, rows) =
        (matrix(rng, &mut b, kNVTEFloat8E4M3, outer * k), matrix(rng, &mut b, dtype, n * k));
    let d = b.add(vec![0xCD; n * width * if codes { 1 } else { 2 }], 0);
    // D may have some rows of a matrix of more.
    let pitch = n + 16 * rng.within(0, 2);
    let columns = codes.then(|| b.add(vec![0xCD; pitch * width], 0));
    let aux = match grad {
        true => matrix(rng, &mut b, kNVTEBFloat16, n * slopes),
        false => b.add(vec![0xCD; 2 * n * slopes], 0),
    };
    let with_bias = with_bias && !gated;
    let bias = with_bias.then(|| match grad {
        true => b.add(vec![0xCD; 4 * m], 0),
        false => matrix(rng, &mut b, kNVTEBFloat16, m),
    });
    let scales = [0.75, 0.25, 8.0];
    let [scale_a, scale_b, scale_d] = scales.map(|scale| b.float(scale));
    // A maximum of an earlier product stays if it is larger.
    let before = rng.pick(&[0.0, 1e4]);
    let (amax, scale_inv) = (b.float(before), codes.then(|| b.float(-7.0)));
    let call = |side: &Side| {
        let on_device = !std::ptr::eq(side.table, cpu_table());
        let (workspace, workspace_bytes) = if on_device { workspace } else { (null_mut(), 0) };
        let args = GemmArgs {
            a: side.at(a),
            b: side.at(rows),
            c: side.at(d),
            d: side.at(d),
            scales_a: GemmScales::per_tensor(side.at(scale_a)),
            scales_b: GemmScales::per_tensor(side.at(scale_b)),
            scale_d: side.at(scale_d),
            amax_d: side.at(amax),
            scale_inv_d: side.maybe(scale_inv),
            bias: side.maybe(bias),
            aux: side.at(aux),
            workspace,
            workspace_bytes,
            m,
            n,
            k,
            alpha: 1.0,
            beta: 0.0,
            a_dtype: kNVTEFloat8E4M3,
            b_dtype: dtype,
            d_dtype,
            bias_dtype: if grad { kNVTEFloat32 } else { kNVTEBFloat16 },
            aux_dtype: kNVTEBFloat16,
            epilogue,
            nvfp4: Nvfp4Factors::NONE,
            transa: true,
            transb: false,
            split_accumulator: grad,
            sm_count: 0,
            aux_slope: true,
            d_columns: side.maybe(columns),
            d_columns_pitch: pitch,
        };
        entry(side, side.table.gemm, args)
    };
    let context =
        |e: String| format!("{epilogue:?} of {dtype:?} to {d_dtype:?}: m {m}, n {n}, k {k}: {e}");
    let cuda = run(cuda_table()?, &b, &call).map_err(|e| context(format!("cuda: {e}")))?;
    let cpu = run(cpu_table(), &b, &call).map_err(|e| context(format!("cpu: {e}")))?;
    for (side, answer) in [("cuda", &cuda), ("cpu", &cpu)] {
        if answer.unimplemented() {
            return Err(context(format!("{side}: UNIMPLEMENTED: {}", answer.reason)));
        }
        let Some(columns) = columns else { continue };
        let (row, column) = (&answer.contents[d.0], &answer.contents[columns.0]);
        let turned = |i: usize| row[i] == column[i % width * pitch + i / width];
        if let Some(i) = (0..n * width).find(|&i| !turned(i)) {
            return Err(context(format!("{side}: the columns have another code at {i}")));
        }
    }
    let written_aux = if grad { None } else { Some(aux) };
    let sums = if grad { bias } else { None };
    let outputs = [Some(d), columns, Some(amax), scale_inv, written_aux, sums];
    for answer in [&cpu, &cuda] {
        unchanged(&b, &answer.contents, outputs.into_iter().flatten()).map_err(context)?;
    }
    let scale = scales[0] * scales[1];
    let operands = [kNVTEFloat8E4M3, dtype];
    let (sum, activated) = product_bounds(operands, k, scale, Some(kNVTEBFloat16), true);
    // Both factors of SwiGLU are off, and each may be as large as a product.
    let activated = activated * if gated { 16.0 } else { 1.0 };
    let compare = |name, dtype, absolute, id: Option<Id>| match id {
        Some(id) => close(name, dtype, absolute, &cpu.contents[id.0][..], &cuda.contents[id.0][..]),
        None => Ok(()),
    };
    let summed = activated * (n as f64).sqrt() * 4.0;
    let factor = if codes { scales[2] as f64 } else { 1.0 };
    compare("d", d_dtype, activated * factor, Some(d))
        .and_then(|()| compare("slopes", kNVTEBFloat16, sum.max(activated), written_aux))
        .and_then(|()| compare("sums", kNVTEFloat32, summed, sums))
        .and_then(|()| compare("amax_d", kNVTEFloat32, activated, Some(amax)))
        .and_then(|()| compare("scale_inv_d", kNVTEFloat32, 0.0, scale_inv))
        .map_err(context)
}

#[test]
fn gemm_activated() {
    let Some(table) = cuda("gemm_activated") else { return };
    let bytes = 32 << 20;
    let workspace = (malloc(table, bytes).expect("workspace"), bytes);
    let all = cases("gemm_activated", 64, |rng, index| activated_case(rng, index, workspace));
    free(table, workspace.0);
    assert!(all || std::env::var_os("NVTE_TEST_EVERY").is_some());
}
