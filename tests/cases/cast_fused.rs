//! Casts with a function, a derivative or a bias gradient.

use super::*;

/// A random fusion of a cast: what it is, and its buffers.
pub struct Fused {
    pub fusion: Fusion,
    pub input: Id,
    pub act_input: Option<Id>,
    pub row_scales: Option<Id>,
    pub dbias: Option<Id>,
    pub workspace: Option<Id>,
}

impl Fused {
    /// Buffers for `members` matrices of `cols` columns with `numel` elements v in all, gaps included.
    /// Only matrices of one width have sums over rows.
    pub fn new(
        rng: &mut Rng,
        b: &mut Buffers,
        (form, function): (Form, Function),
        (mode, dtype): (NVTEScalingMode, NVTEDType),
        (numel, cols, members): (usize, Option<usize>, usize),
    ) -> Self {
        let [fa, fb, fc] = match function {
            Function::NVTEX_CLAMPED_SILU => [1.5, 1.702, 1.0],
            Function::NVTEX_SITU => [4.0, 25.0, 0.0],
            _ => [0.0; 3],
        };
        let input_len = match form {
            Form::NVTEX_FORM_GATED => 2 * numel,
            Form::NVTEX_FORM_GATED_DERIVATIVE => numel / 2,
            _ => numel,
        };
        let backward =
            matches!(form, Form::NVTEX_FORM_DERIVATIVE | Form::NVTEX_FORM_GATED_DERIVATIVE);
        let input = b.input(rng, dtype, input_len);
        let act_input = backward.then(|| b.input(rng, dtype, numel));
        let rows = cols.filter(|&cols| cols > 0).map(|cols| numel / cols);
        let scaled = form == Form::NVTEX_FORM_GATED && (members > 0 || mode != MODES[0]);
        let summed = matches!(form, Form::NVTEX_FORM_PLAIN | Form::NVTEX_FORM_DERIVATIVE);
        let row_scales =
            rows.filter(|_| scaled && rng.chance(50)).map(|rows| b.input(rng, dtype, rows));
        let (dbias, workspace) = match (rows, cols) {
            (Some(rows), Some(cols)) if summed && rng.chance(60) => {
                let workspace_rows = Cast::dbias_workspace_rows(rows, members);
                let dbias = b.output(rng, dtype, members.max(1) * cols);
                (Some(dbias), Some(b.output(rng, kNVTEFloat32, workspace_rows * cols)))
            }
            _ => (None, None),
        };
        let fusion = Fusion { form, function, a: fa, b: fb, c: fc, ..Fusion::NONE };
        Self { fusion, input, act_input, row_scales, dbias, workspace }
    }

    pub fn on(&self, side: &Side) -> Fusion {
        Fusion {
            act_input: side.maybe(self.act_input),
            dbias: side.maybe(self.dbias),
            workspace: side.maybe(self.workspace),
            row_scales: side.maybe(self.row_scales),
            ..self.fusion
        }
    }
}

pub const FORMS: [Form; 5] = [
    Form::NVTEX_FORM_DERIVATIVE,
    Form::NVTEX_FORM_PLAIN,
    Form::NVTEX_FORM_ACTIVATION,
    Form::NVTEX_FORM_GATED,
    Form::NVTEX_FORM_GATED_DERIVATIVE,
];
pub const FUNCTIONS: [Function; 9] = [
    Function::NVTEX_GELU,
    Function::NVTEX_SILU,
    Function::NVTEX_RELU,
    Function::NVTEX_QGELU,
    Function::NVTEX_SRELU,
    Function::NVTEX_SIGMOID,
    Function::NVTEX_CLAMPED_SILU,
    Function::NVTEX_SITU,
    Function::NVTEX_IDENTITY,
];
pub const MODES: [NVTEScalingMode; 4] = [
    NVTE_DELAYED_TENSOR_SCALING,
    NVTE_MXFP8_1D_SCALING,
    NVTE_BLOCK_SCALING_1D,
    NVTE_BLOCK_SCALING_2D,
];

/// What a cast has besides elements and scales, at random.
pub struct Options {
    pub wanted: [bool; 2],
    pub epsilon: f32,
    pub pow2: bool,
    pub square_blocks: bool,
    pub swizzled: bool,
}

impl Options {
    pub fn new(rng: &mut Rng, mode: NVTEScalingMode) -> Self {
        let mxfp8 = mode == NVTE_MXFP8_1D_SCALING;
        Self {
            wanted: rng.pick(&[[true, false], [true, true], [true, true], [false, true]]),
            epsilon: rng.pick(&[0.0, 0.0, 1.0, 1e-20]),
            pow2: !mxfp8 && rng.chance(50),
            square_blocks: mxfp8 && rng.chance(40),
            swizzled: mxfp8 && rng.chance(40),
        }
    }
}

pub fn quantize_fused(rng: &mut Rng, index: usize) -> Case {
    let mode = MODES[index % 4];
    let (form, function) = (FORMS[index / 4 % 5], FUNCTIONS[index / 20 % 9]);
    let (per_tensor, mxfp8) = (mode == MODES[0], mode == NVTE_MXFP8_1D_SCALING);
    let input_dtype = rng.pick(&HIGH);
    let output_dtype = if per_tensor { rng.pick(&ALL) } else { rng.pick(&FP8) };
    let (rows, cols) = rng.block_shape();
    let cols = if form == Form::NVTEX_FORM_GATED_DERIVATIVE { cols + cols % 2 } else { cols };
    let mut b = Buffers::default();
    let elements = (rows * cols, Some(cols), 0);
    let fused = Fused::new(rng, &mut b, (form, function), (mode, input_dtype), elements);
    let workspace = fused.workspace;
    let o = Options::new(rng, mode);
    let data = o.wanted.map(|wanted| wanted.then(|| b.output(rng, output_dtype, rows * cols)));
    let slack = if mxfp8 || per_tensor { 0 } else { rng.pick(&[0, 0, 1, 4]) };
    let matrices = [false, true].map(|colwise| match per_tensor {
        true => (kNVTEFloat32, 1, 1),
        false => scale_matrix(mode, colwise, (rows, cols)),
    });
    let strides = matrices.map(|(_, _, needed)| needed + slack);
    let has_scales = is_fp8(output_dtype);
    let [row_scales, col_scales] = [0, 1].map(|i| {
        let (dtype, lines, _) = matrices[i];
        (o.wanted[i] && has_scales).then(|| b.output(rng, dtype, lines * strides[i]))
    });
    let scale = (per_tensor && rng.chance(80)).then(|| b.float(rng.scale()));
    let old_amax = rng.pick(&[0.0, 1e-3, 1e30]);
    let amax = ((per_tensor || mxfp8) && rng.chance(60)).then(|| b.float(old_amax));
    // Scales are compared as bytes: every bit counts, and so do the entries that are not written.
    let outputs = [
        ("rowwise", output_dtype, data[0]),
        ("colwise", output_dtype, data[1]),
        ("rowwise scale_inv", kNVTEByte, row_scales),
        ("colwise scale_inv", kNVTEByte, col_scales),
        ("amax", kNVTEFloat32, amax),
        ("dbias", input_dtype, fused.dbias),
    ];
    Case::bits(
        format!(
            "{mode:?}, {form:?} of {function:?}, {input_dtype:?} to {output_dtype:?}, \
                 {rows}x{cols}, directions {:?}, dbias {}, pow2 {}, epsilon {}, square {}, \
                 swizzled {}",
            o.wanted,
            fused.dbias.is_some(),
            o.pow2,
            o.epsilon,
            o.square_blocks,
            o.swizzled
        ),
        b,
        &outputs,
        move |side| {
            let args = Cast {
                input: side.at(fused.input),
                rowwise: side.maybe(data[0]),
                colwise: side.maybe(data[1]),
                scale: side.maybe(scale),
                amax: side.maybe(amax),
                rowwise_scale_inv: side.maybe(row_scales),
                colwise_scale_inv: side.maybe(col_scales),
                noop: null(),
                rows,
                cols,
                rowwise_scale_stride: if per_tensor { 0 } else { strides[0] },
                colwise_scale_stride: if per_tensor { 0 } else { strides[1] },
                epsilon: o.epsilon,
                mode,
                input_dtype,
                output_dtype,
                pow2: o.pow2,
                square_blocks: o.square_blocks,
                swizzled: o.swizzled,
                fusion: fused.on(side),
                group: Group::NONE,
            };
            entry(side, side.table.quantize, QuantizeArgs { cast: args })
        },
    )
    .scratch(workspace)
}
