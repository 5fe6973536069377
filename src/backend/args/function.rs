//! Functions that are applied within a cast.

use std::ffi::c_void;

/// A function f of one number, with its parameters a, b and c.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
    /// `x`
    NVTEX_IDENTITY = 0,
    /// `x / (1 + exp(-2 x (0.79788456 + 0.03567741 x^2)))`, the tanh form of GELU.
    NVTEX_GELU = 1,
    /// `x / (1 + exp(-x))`
    NVTEX_SILU = 2,
    /// `x / (1 + exp(-1.702 x))`
    NVTEX_QGELU = 3,
    /// `max(x, 0)`, 0 for NaN
    NVTEX_RELU = 4,
    /// `max(x, 0)^2`, 0 for NaN
    NVTEX_SRELU = 5,
    /// `1 / (1 + exp(-x))`
    NVTEX_SIGMOID = 6,
    /// `m / (1 + exp(-b m))` with `m = min(x, a)`; the other half of a gated form becomes
    /// `min(max(x, -a), a) + c`.
    NVTEX_CLAMPED_SILU = 7,
    /// `a tanh(x / a) / (1 + exp(-x))`; the other half of a gated form becomes `b tanh(x / b)`.
    NVTEX_SITU = 8,
}

/// How the elements v that are cast come from the inputs, in float32. `f'` is the derivative, G the
/// function of the linear half (the identity unless the function says otherwise).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `v = input`
    NVTEX_FORM_PLAIN = 0,
    /// `v = f(input)`
    NVTEX_FORM_ACTIVATION = 1,
    /// `v = f'(act_input) * input`
    NVTEX_FORM_DERIVATIVE = 2,
    /// Input `[rows, 2 cols]` = (a | g): `v = f(a) * G(g)`
    NVTEX_FORM_GATED = 3,
    /// Input `[rows, cols / 2]`, act_input `[rows, cols]` = (a | g): the left half is
    /// `v = (f'(a) * input) * G(g)`, the right half `v = (G'(g) * input) * f(a)`.
    NVTEX_FORM_GATED_DERIVATIVE = 4,
}

/// Form and function of a fused cast.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Fusion {
    pub form: Form,
    pub function: Function,
    pub a: f32,
    pub b: f32,
    pub c: f32,
    /// The input of the activation, for derivatives; of the input's dtype.
    pub act_input: *const c_void,
    /// For NVTEX_FORM_PLAIN and NVTEX_FORM_DERIVATIVE: `[cols]` (groups: `[num_tensors, cols]`) of the
    /// input's dtype, or null: the sum of v over the rows (of a member), in float32 in this order:
    /// within each 128 rows (that begin a member) the sums of 4 rows one after the other, then pairs of
    /// those, then the 16 pairs one after the other; of those blocks the i-th is added to sum i % 8, and
    /// these 8 are added one after the other. Sums begin at +0, so that none is -0.
    pub dbias: *mut c_void,
    /// With dbias: `dbias_workspace_rows() * cols` floats.
    pub workspace: *mut f32,
    /// For NVTEX_FORM_GATED of groups or to blocks: `[rows]` of the input's dtype, or null; v is
    /// multiplied by its row's. The row of a member's element is that of the whole,
    /// `(offset + element) / cols`.
    pub row_scales: *const c_void,
}

impl Fusion {
    /// A plain cast.
    pub const NONE: Self = Self {
        form: Form::NVTEX_FORM_PLAIN,
        function: Function::NVTEX_IDENTITY,
        a: 0.0,
        b: 0.0,
        c: 0.0,
        act_input: std::ptr::null(),
        dbias: std::ptr::null_mut(),
        workspace: std::ptr::null_mut(),
        row_scales: std::ptr::null(),
    };
}

/// Functions that have a form which is not gated: from GELU to the square of ReLU.
const PLAIN_FUNCTIONS: u32 = 5;
/// Those that have a gated form: the same and the sigmoid, the clamped SiLU and SiTU.
const GATED_FUNCTIONS: u32 = 8;
/// Activations and derivatives.
const ACTIVATIONS: u32 = 2 * (PLAIN_FUNCTIONS + GATED_FUNCTIONS);

/// Index of an activation or a derivative in the list of all: of the plain form, its derivatives, of the gated form,
/// its derivatives.
pub(super) fn activation_variant(gated: bool, derivative: bool, function: Function) -> u32 {
    let functions = if gated { GATED_FUNCTIONS } else { PLAIN_FUNCTIONS };
    let place = function as u32 - 1;
    debug_assert!(place < functions, "{function:?} has no such form");
    2 * PLAIN_FUNCTIONS * u32::from(gated) + functions * u32::from(derivative) + place
}

/// Index of a cast among its variants: a plain one, that with sums, activations and derivatives, derivatives with
/// sums.
pub(super) fn fusion_variant(fusion: &Fusion) -> u32 {
    use Form::*;
    let (form, function, sums) = (fusion.form, fusion.function, !fusion.dbias.is_null());
    match form {
        NVTEX_FORM_PLAIN => u32::from(sums),
        NVTEX_FORM_DERIVATIVE if sums => 2 + ACTIVATIONS + function as u32 - 1,
        _ => {
            let gated = matches!(form, NVTEX_FORM_GATED | NVTEX_FORM_GATED_DERIVATIVE);
            let derivative = matches!(form, NVTEX_FORM_DERIVATIVE | NVTEX_FORM_GATED_DERIVATIVE);
            2 + activation_variant(gated, derivative, function)
        }
    }
}
