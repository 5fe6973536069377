//! The activations, one row each. `tests/abi.rs` writes [`files`] from them.

/// An activation `f(x)`, alone and as `f(a) * G(g)` of the halves a and g of a row.
struct Row {
    /// Names of the C functions behind `nvte_`; empty: there is none.
    plain: &'static str,
    gated: &'static str,
    /// The name behind `nvte_scaled_`, of the plain or of the gated form.
    scaled: &'static str,
    /// There is also a function `nvte_group_scaled_`.
    group_scaled: bool,
    /// Casts and transposes with sums over the rows have its derivatives, too: `f` has no parameters.
    casts: bool,
    /// Floats that the C functions take.
    parameters: &'static [&'static str],
    /// The function in Rust, made from the functions of `mod.rs`.
    function: &'static str,
    /// Formulas of f and G in the documentation.
    f: &'static str,
    g: &'static str,
}

const ROW: Row = Row {
    plain: "",
    gated: "",
    scaled: "",
    group_scaled: false,
    casts: false,
    parameters: &[],
    function: "",
    f: "",
    g: "x",
};

const CLAMPED: Row = Row {
    group_scaled: true,
    f: "min(x, limit) / (1 + exp(-alpha min(x, limit)))",
    g: "min(max(x, -limit), limit) + glu_linear_offset",
    ..ROW
};

const ROWS: &[Row] = &[
    Row {
        plain: "gelu",
        gated: "geglu",
        casts: true,
        function: "function(NVTEX_GELU)",
        f: "x (1 + tanh(x (0.79788456 + 0.03567741 x^2))) / 2",
        ..ROW
    },
    Row {
        plain: "silu",
        gated: "swiglu",
        scaled: "swiglu",
        group_scaled: true,
        casts: true,
        function: "function(NVTEX_SILU)",
        f: "x / (1 + exp(-x))",
        ..ROW
    },
    Row {
        plain: "relu",
        gated: "reglu",
        casts: true,
        function: "function(NVTEX_RELU)",
        f: "max(x, 0)",
        ..ROW
    },
    Row {
        plain: "qgelu",
        gated: "qgeglu",
        casts: true,
        function: "function(NVTEX_QGELU)",
        f: "x / (1 + exp(-1.702 x))",
        ..ROW
    },
    Row {
        plain: "srelu",
        gated: "sreglu",
        scaled: "srelu",
        casts: true,
        function: "function(NVTEX_SRELU)",
        f: "max(x, 0)^2",
        ..ROW
    },
    Row { gated: "glu", function: "function(NVTEX_SIGMOID)", f: "1 / (1 + exp(-x))", ..ROW },
    Row {
        gated: "situglu",
        scaled: "situglu",
        parameters: &["beta1", "beta2"],
        function: "situ(beta1, beta2)?",
        f: "beta1 tanh(x / beta1) / (1 + exp(-x))",
        g: "beta2 tanh(x / beta2)",
        ..ROW
    },
    Row {
        gated: "clamped_swiglu",
        parameters: &["limit", "alpha"],
        function: "clamped_silu(limit, alpha, 1.0)",
        f: CLAMPED.f,
        g: "min(max(x, -limit), limit) + 1",
        ..ROW
    },
    Row {
        gated: "clamped_swiglu_v2",
        scaled: "clamped_swiglu",
        group_scaled: true,
        parameters: &["limit", "alpha", "glu_linear_offset"],
        function: "clamped_silu(limit, alpha, glu_linear_offset)",
        ..CLAMPED
    },
];

/// What the functions of one kind share: what they compute, and the documentation of the first.
struct Kind {
    formula: &'static str,
    rest: &'static [&'static str],
    /// Arguments before and after the floats; the stream comes last.
    arguments: &'static [&'static str],
    integers: &'static [&'static str],
    call: &'static str,
    first: &'static str,
}

impl Kind {
    /// Whether it belongs to `cast` or `transpose`, which take bare functions.
    fn casts(&self) -> bool {
        self.call.contains("derivative")
    }
}

const PLAIN: Kind = Kind {
    formula: "Applies an activation: `output = f(input)`",
    rest: &[
        "What it computes: f in float32, then a cast in the scaling mode of the output as \
         `nvte_quantize` casts, with the same rules for shapes, scales and `amax`. For FP8 blocks \
         and MXFP8 `f` is rounded to the input's dtype first. NaN counts as 0 in relu and srelu.",
        "Dtypes: Float32, Float16 or BFloat16 to these (per tensor) and to Float8E4M3 or \
         Float8E5M2.",
        "Overlaps: the row-wise output of per-tensor scaling may be the input if their elements \
         have the same size.",
        "Errors: as `nvte_quantize`.",
    ],
    arguments: &["input", "output"],
    integers: &[],
    call: "forward",
    first: "gelu",
};

const PLAIN_BACKWARD: Kind = Kind {
    formula: "Computes the gradient of an activation: `output = f'(input) * grad`",
    rest: &[
        "It is computed in float32 and cast as `nvte_gelu` casts. The derivatives of relu and \
         srelu are 0 at 0.",
        "Shapes, dtypes: grad as input.",
        "Errors: as `nvte_gelu`; grad and input that differ in shape or dtype.",
    ],
    arguments: &["grad", "input", "output"],
    integers: &[],
    call: "backward",
    first: "dgelu",
};

const GROUPED: Kind = Kind {
    formula: "Applies an activation to the members of a grouped tensor: `output = f(input)`",
    rest: &[
        "Each member is treated as by `nvte_gelu`, with the layouts and rules of \
         `nvte_group_quantize`.",
        "Errors: as `nvte_group_quantize`.",
    ],
    arguments: &["input", "output"],
    integers: &[],
    call: "group_forward",
    first: "group_gelu",
};

const GROUPED_BACKWARD: Kind = Kind {
    formula: "Computes the gradient of an activation for the members of a grouped tensor: \
              `output = f'(input) * grad`",
    rest: &[
        "Each member is treated as by `nvte_dgelu`. All three are grouped tensors, the output \
         too, although its type is that of a tensor.",
        "Errors: as `nvte_group_quantize`; grad and input of different dtypes.",
    ],
    arguments: &["grad", "input", "output"],
    integers: &[],
    call: "group_backward",
    first: "group_dgelu",
};

const GATED: Kind = Kind {
    formula: "Applies a gated activation: `output = f(a) * G(g)`",
    rest: &[
        "Shapes: input `[..., 2 n]`, each row the halves (a | g); output `[..., n]`.",
        "It is computed in float32 and cast as `nvte_gelu` casts. The output may not be the input.",
        "Errors: as `nvte_gelu`; an odd last dimension.",
    ],
    arguments: &["input", "output"],
    integers: &[],
    call: "gated_forward",
    first: "geglu",
};

const GATED_BACKWARD: Kind = Kind {
    formula: "Computes the gradient of a gated activation: \
              `output = (f'(a) * grad * G(g) | G'(g) * grad * f(a))`",
    rest: &[
        "Shapes: grad `[..., n]`; input `[..., 2 n]`, each row the halves (a | g); output as \
         input.",
        "It is computed in float32 and cast as `nvte_gelu` casts. The output may not be an input. \
         Clamped values have the derivative 0.",
        "Errors: as `nvte_gelu`; an odd last dimension; grad of another dtype than input.",
    ],
    arguments: &["grad", "input", "output"],
    integers: &[],
    call: "gated_backward",
    first: "dgeglu",
};

const SCALED_GATED: Kind = Kind {
    formula: "Applies a gated activation and multiplies each row by its scale: \
              `output = f(a) * G(g) * act_scales`",
    rest: &[
        "Shapes: output `[..., n]` with R rows; input `[..., 2 n]`, each row the halves (a | g), \
         or with `glu_interleave_size = i > 0` blocks of i elements of a and as many of g in \
         turn; act_scales R elements.",
        "Dtypes: each tensor Float32, Float16 or BFloat16. It is computed in float32 and rounded \
         once. Scaling modes and scales are ignored.",
        "Errors: other dtypes; shapes that do not fit; a `glu_interleave_size` that is negative, \
         no multiple of 32 or no divisor of n; null or misaligned pointers.",
    ],
    arguments: &["input", "act_scales", "output"],
    integers: &["glu_interleave_size"],
    call: "scaled_gated",
    first: "scaled_swiglu",
};

const SCALED_GATED_BACKWARD: Kind = Kind {
    formula: "Computes the gradients of a gated activation with a scale for each row: \
              `grad_input = (s * f'(a) * G(g) | s * G'(g) * f(a))` with `s = grad * act_scales`, \
              and `grad_act_scales` = the sum of `grad * f(a) * G(g)` over the row",
    rest: &[
        "Shapes, dtypes, errors: as `nvte_scaled_swiglu`, with grad `[..., n]`, grad_input as \
         input and interleaved likewise, and grad_act_scales R elements or null for none. Sums \
         are in float32, in a fixed order.",
    ],
    arguments: &["grad", "input", "act_scales", "grad_input", "grad_act_scales"],
    integers: &["glu_interleave_size"],
    call: "scaled_gated_backward",
    first: "scaled_dswiglu",
};

const SCALED_PLAIN: Kind = Kind {
    formula: "Applies an activation and multiplies each row by its scale: \
              `output = f(input) * act_scales`",
    rest: &[
        "Shapes: the output as the input; act_scales one for each row.",
        "Dtypes, errors: as `nvte_scaled_swiglu`.",
    ],
    arguments: &["input", "act_scales", "output"],
    integers: &[],
    call: "scaled_plain",
    first: "scaled_srelu",
};

const SCALED_PLAIN_BACKWARD: Kind = Kind {
    formula: "Computes the gradients of an activation with a scale for each row: \
              `grad_input = grad * act_scales * f'(input)`, and `grad_act_scales` = the sum of \
              `grad * f(input)` over the row",
    rest: &[
        "Shapes: grad and grad_input as the input.",
        "Dtypes, errors: as `nvte_scaled_dswiglu`.",
    ],
    arguments: &["grad", "input", "act_scales", "grad_input", "grad_act_scales"],
    integers: &[],
    call: "scaled_plain_backward",
    first: "scaled_dsrelu",
};

const GROUP_SCALED: Kind = Kind {
    formula: "Applies a gated activation to the members of a grouped tensor, and multiplies each \
              row by its factor: `output = f(a) * G(g) * prob`",
    rest: &[
        "Shapes: grouped input `[N, 2 n]`, each row the halves (a | g); grouped output `[N, n]` \
         with as many members of one last dimension; prob N elements or more of the input's \
         dtype, the i-th for row i of the whole.",
        "The result is cast as `nvte_group_gelu` casts.",
        "Errors: as `nvte_group_gelu`; members that differ in their last dimension.",
    ],
    arguments: &["input", "prob", "output"],
    integers: &[],
    call: "group_scaled",
    first: "group_scaled_swiglu",
};

const QUANTIZE_DBIAS: Kind = Kind {
    formula: "Casts the gradient of an activation, and sums it over its rows: \
              `nvte_quantize_dbias` of `v = f'(act_input) * input` instead of the input",
    rest: &[
        "act_input has the shape and dtype of the input. v is Float32; for a cast in blocks it is \
         rounded to the input's dtype, but dbias is the sum of v before that.",
    ],
    arguments: &["input", "act_input", "output", "dbias", "workspace"],
    integers: &[],
    call: "derivative_dbias",
    first: "quantize_dbias_dgelu",
};

const GROUP_QUANTIZE_DBIAS: Kind = Kind {
    formula: "Casts the gradients of an activation for the members of a group, and sums each over \
              its rows: `nvte_group_quantize_dbias` of `v = f'(act_input) * input` instead of the \
              input, without a config",
    rest: &["v is that of `nvte_quantize_dbias_dgelu`."],
    call: "group_derivative_dbias",
    first: "group_quantize_dbias_dgelu",
    ..QUANTIZE_DBIAS
};

const CAST_TRANSPOSE_DBIAS: Kind = Kind {
    formula: "Casts and transposes the gradient of an activation, and sums it over its rows: \
              `nvte_cast_transpose_dbias` of `v = f'(act_input) * input` instead of the input",
    rest: &["v is that of `nvte_quantize_dbias_dgelu`."],
    first: "cast_transpose_dbias_dgelu",
    ..QUANTIZE_DBIAS
};

const GATED_CAST_TRANSPOSE: Kind = Kind {
    formula: "Casts and transposes the gradient of a gated activation: with act_input = (a | g) \
              in halves, `nvte_cast_transpose` of `(f'(a) * input * g | input * f(a))` in Float32",
    rest: &[
        "Shapes: input `[..., n]`, act_input and the output `[..., 2 n]`.",
        "Dtypes: Float32, Float16, BFloat16, the same for both inputs; output as for \
         `nvte_quantize`.",
        "Errors: as `nvte_cast_transpose`; inputs that do not fit each other.",
    ],
    arguments: &["input", "act_input", "output"],
    integers: &[],
    call: "gated_derivative",
    first: "dgeglu_cast_transpose",
};

/// The derivative's name: a d before the last word, but behind it the version stays.
fn derivative(name: &str) -> String {
    match name.strip_prefix("clamped_") {
        Some(rest) => format!("clamped_d{rest}"),
        None => format!("d{name}"),
    }
}

/// Generated files of `src/op`: path and text.
pub fn files() -> [(&'static str, String); 3] {
    [
        ("activation/exports.rs", exports()),
        ("cast/exports_derivatives.rs", derivatives("cast", cast_derivatives)),
        ("transpose/exports_derivatives.rs", derivatives("transpose", transpose_derivatives)),
    ]
}

/// The text of a file with casts of derivatives, of which `of_row` gives those of one activation.
fn derivatives(header: &str, of_row: fn(&Row) -> String) -> String {
    let functions: String = ROWS.iter().filter(|row| row.casts).map(of_row).collect();
    format!(
        "//! C functions of {header}.h that cast derivatives of activations. Generated from\n\
         //! `activation/table.rs` by tests/abi.rs.\n\
         #![allow(unsafe_code, clippy::missing_safety_doc)]\n\n\
         use super::*;\nuse crate::backend::args::Function::*;\nuse crate::error::guard;\n\
         use crate::workspace::{{self, Asks}};\n{functions}"
    )
}

fn cast_derivatives(row: &Row) -> String {
    let plain = row.plain;
    export(row, &format!("quantize_dbias_d{plain}"), &QUANTIZE_DBIAS)
        + &export(row, &format!("group_quantize_dbias_d{plain}"), &GROUP_QUANTIZE_DBIAS)
}

fn transpose_derivatives(row: &Row) -> String {
    export(row, &format!("cast_transpose_dbias_d{}", row.plain), &CAST_TRANSPOSE_DBIAS)
        + &export(row, &format!("d{}_cast_transpose", row.gated), &GATED_CAST_TRANSPOSE)
}

/// The text of `activation/exports.rs`.
fn exports() -> String {
    let mut text = String::from(
        "//! C functions of activation.h. Generated from `table.rs` by tests/abi.rs.\n\
         #![allow(unsafe_code, clippy::missing_safety_doc, clippy::too_many_arguments)]\n\n\
         use super::*;\nuse crate::error::guard;\n",
    );
    for row in ROWS {
        let mut both = |prefix: &str, name: &str, forward: &Kind, backward: &Kind| {
            if !name.is_empty() {
                text += &export(row, &format!("{prefix}{name}"), forward);
                text += &export(row, &format!("{prefix}{}", derivative(name)), backward);
            }
        };
        both("", row.plain, &PLAIN, &PLAIN_BACKWARD);
        both("group_", row.plain, &GROUPED, &GROUPED_BACKWARD);
        both("", row.gated, &GATED, &GATED_BACKWARD);
        match row.scaled == row.plain {
            true => both("scaled_", row.scaled, &SCALED_PLAIN, &SCALED_PLAIN_BACKWARD),
            false => both("scaled_", row.scaled, &SCALED_GATED, &SCALED_GATED_BACKWARD),
        }
        if row.group_scaled {
            text += &export(row, &format!("group_scaled_{}", row.scaled), &GROUP_SCALED);
        }
    }
    text
}

fn export(row: &Row, name: &str, kind: &Kind) -> String {
    let mut doc = match kind.casts() {
        true => format!("{}, with the f of `nvte_{}`", kind.formula, row.plain),
        false => format!("{}, `f(x) = {}`", kind.formula, row.f),
    };
    if kind.formula.contains("G(g)") {
        doc += &format!(", `G(x) = {}`", row.g);
    }
    let like = format!("Otherwise as `nvte_{}`.", kind.first);
    let rest = if name == kind.first { kind.rest } else { &[like.as_str()] };
    let lines = wrap(&format!("{doc}.")).into_iter().chain([String::new()]);
    let section = |(i, paragraph): (usize, &&str)| {
        let gap = (i > 0).then(String::new);
        gap.into_iter().chain(wrap(paragraph))
    };
    let lines = lines.chain(rest.iter().enumerate().flat_map(section));
    let doc: String =
        lines.map(|line| format!("/// {line}").trim_end().to_owned() + "\n").collect();

    let grouped = |argument: &str| match argument {
        "prob" | "workspace" => false,
        _ => name.starts_with("group_"),
    };
    // The ABI says NVTETensor, but the handle is that of a grouped tensor.
    let misnamed = |argument: &str| argument == "output" && kind.arguments.contains(&"grad");
    let handle = |argument: &str| match grouped(argument) && !misnamed(argument) {
        true => "NVTEGroupedTensor",
        false => "NVTETensor",
    };
    let mut parameters: Vec<(&str, &str)> =
        kind.arguments.iter().map(|argument| (*argument, handle(argument))).collect();
    parameters.extend(row.parameters.iter().map(|float| (*float, "f32")));
    parameters.extend(kind.integers.iter().map(|integer| (*integer, "i64")));
    parameters.push(("stream", "cudaStream_t"));
    let parameters: String =
        parameters.iter().map(|(name, of)| format!("    {name}: {of},\n")).collect();
    format!(
        "\n{doc}#[unsafe(no_mangle)]\n\
         pub unsafe extern \"C-unwind\" fn nvte_{name}(\n{parameters}) {{\n    \
             guard(\"nvte_{name}\", || {{\n{}    }});\n}}\n",
        body(row, kind, grouped),
    )
}

/// The call of an operator with the tensors of the handles.
fn body(row: &Row, kind: &Kind, grouped: impl Fn(&str) -> bool) -> String {
    let bare = row.function.strip_prefix("function(").and_then(|rest| rest.strip_suffix(')'));
    let function = match kind.casts() {
        true => bare.expect("a function without parameters"),
        false => row.function,
    };
    let mut text = format!("        let f = {function};\n");
    let mut passed = vec!["f".to_owned()];
    for argument in kind.arguments {
        let lookup = match *argument {
            "workspace" => {
                passed.push("workspace".into());
                continue;
            }
            "grad_act_scales" => {
                passed.push("grad_act_scales.as_ref()".into());
                "optional_tensor"
            }
            _ => {
                passed.push(format!("&{argument}"));
                if grouped(argument) { "grouped_tensor" } else { "tensor" }
            }
        };
        text +=
            &format!("        let {argument} = check::{lookup}(\"{argument}\", {argument})?;\n");
    }
    passed.extend(kind.integers.iter().map(|integer| integer.to_string()));
    passed.push("stream".into());
    if !kind.arguments.contains(&"workspace") {
        return text + &call("        ", kind.call, &passed);
    }
    text += "        workspace::of_handle(workspace, Asks::WithoutPointer, |workspace| {\n";
    text + &call("            ", kind.call, &passed) + "        })\n"
}

/// A call on one line if it fits.
fn call(indent: &str, function: &str, arguments: &[String]) -> String {
    let line = format!("{indent}{function}({})\n", arguments.join(", "));
    if line.len() <= 101 {
        return line;
    }
    let lines: String =
        arguments.iter().map(|argument| format!("{indent}    {argument},\n")).collect();
    format!("{indent}{function}(\n{lines}{indent})\n")
}

/// Lines of at most 96 columns, which do not break formulas in backticks.
fn wrap(text: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for part in text.split(' ') {
        match words.last_mut() {
            Some(word) if word.matches('`').count() % 2 == 1 => *word += &format!(" {part}"),
            _ => words.push(part.to_owned()),
        }
    }
    let mut lines = vec![String::new()];
    for word in words {
        let line = lines.last_mut().expect("a line");
        if line.is_empty() {
            *line += &word;
        } else if line.len() + 1 + word.len() <= 96 {
            *line += " ";
            *line += &word;
        } else {
            lines.push(word);
        }
    }
    lines
}
