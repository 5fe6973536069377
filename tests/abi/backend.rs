//! What plugins read of operators: the header of their versions, sizes and features.

use crate::backend_sources;
use nvte::backend::args::OPERATORS;
use std::ffi::{CStr, c_char};

const HEAD: &str = "\
#ifndef NVTE_BACKEND_OPERATORS_H
#define NVTE_BACKEND_OPERATORS_H

/* Generated from src/backend/operators.rs and src/backend/args by tests/abi.rs. */

#include \"nvte/types.h\"
";

const TOOLS: &str = "
/**
 * Fails to compile unless enumerations and structs have the sizes that they have in the library: options such as
 * -fshort-enums and -fpack-struct change them.
 */
#ifdef __cplusplus
#define NVTEX_ASSERT_SIZE(TYPE, BYTES) \\
  static_assert(sizeof(TYPE) == BYTES, #TYPE \" has another size than in the library\")
#else
#define NVTEX_ASSERT_SIZE(TYPE, BYTES) \\
  _Static_assert(sizeof(TYPE) == BYTES, #TYPE \" has another size than in the library\")
#endif

/*
 * Of each operator NVTEX_OP_<NAME>_VERSION, the version of its arguments as major << 16 | minor, their size, and
 * the bits of its features.
 */
";

/// The argument struct of an operator.
fn arguments(name: &str) -> String {
    let words = name.split('_').map(|word| word[..1].to_uppercase() + &word[1..]);
    format!("NVTEX{}Args", words.collect::<String>())
}

/// A text of a constant of the library.
fn text(pointer: *const c_char) -> &'static str {
    // SAFETY: the library's texts are constants that end with a NUL.
    unsafe { CStr::from_ptr(pointer) }.to_str().expect("ASCII")
}

/// The texts of an array of the library.
fn texts(array: *const *const c_char, count: usize) -> Vec<&'static str> {
    // SAFETY: the library's arrays are constants of as many elements.
    (0..count).map(|i| text(unsafe { *array.add(i) })).collect()
}

/// `backend/operators.h`.
pub fn operators_header() -> String {
    let mut header = HEAD.to_owned();
    for family in backend_sources().keys() {
        header += &format!("#include \"nvte/backend/{family}.h\"\n");
    }
    header += TOOLS;
    for info in OPERATORS {
        let name = text(info.name);
        let (upper, arguments) = (name.to_uppercase(), arguments(name));
        header += &format!(
            "\n#define NVTEX_OP_{upper}_VERSION 0x{:x}u\n#define NVTEX_OP_{upper}_SIZE sizeof({arguments})\n",
            info.version
        );
        for (bit, feature) in texts(info.features, info.feature_count).iter().enumerate() {
            header += &format!("#define NVTEX_{upper}_{feature} (UINT64_C(1) << {bit})\n");
        }
        header += &format!("NVTEX_ASSERT_SIZE({arguments}, {});\n", info.args_size);
    }
    header + "\n#endif  /* NVTE_BACKEND_OPERATORS_H */\n"
}
