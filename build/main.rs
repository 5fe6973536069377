//! Compiles kernels/ with nvcc if there is one, and the C++ helpers that throw and catch.

mod cache;
mod kernels;
mod source;
mod toolkit;
mod versions;

use std::env;
use std::path::PathBuf;
use toolkit::Toolkit;

/// What makes mistakes in the C++ helpers hard to exploit: canaries on the stack, checked copies, and marks at the
/// targets of indirect calls.
const HARDENING: [&str; 4] = [
    "-fstack-protector-strong",
    "-U_FORTIFY_SOURCE",
    "-D_FORTIFY_SOURCE=2",
    "-fcf-protection=full",
];

fn main() {
    println!("cargo:rustc-check-cfg=cfg(nvte_cuda)");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libnvte.so.0");
    // The library's calls of its own exports stay inside of it where a program has loaded another library
    // with the same names before.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap());
    versions::link(&root);
    for path in [
        "build",
        "kernels",
        "include/nvte/backend",
        "include/nvte/types.h",
        "include/nvte/plugin.h",
        "src/throw.cpp",
        "src/callback.cpp",
        "src/plugin.cpp",
    ] {
        println!("cargo:rerun-if-changed={path}");
    }
    for name in [
        "NVTE_CPU_ONLY",
        "NVTE_CUDA_ARCHS",
        "NVTE_LINEINFO",
        "NVTE_KERNEL_CACHE",
        "CUDA_HOME",
        "CUDA_PATH",
        "PATH",
    ] {
        println!("cargo:rerun-if-env-changed={name}");
    }

    let sources = ["src/throw.cpp", "src/callback.cpp", "src/plugin.cpp"];
    let mut cpp = cc::Build::new();
    cpp.cpp(true).std("c++17").include("include").force_frame_pointer(false);
    for flag in HARDENING {
        cpp.flag_if_supported(flag);
    }
    cpp.files(sources).compile("nvte_throw");

    if env::var("NVTE_CPU_ONLY").is_ok_and(|v| v == "1") || env::var("CARGO_FEATURE_CUDA").is_err()
    {
        return;
    }
    let Some(toolkit) = Toolkit::find(&root) else {
        // `cargo xtask setup` may add a compiler there.
        println!("cargo:rerun-if-changed=target/tools");
        println!(
            "cargo:warning=no CUDA compiler found: building the CPU backend only. Run `cargo xtask setup` \
             for one, or set CUDA_HOME; NVTE_CPU_ONLY=1 silences this warning."
        );
        return;
    };
    kernels::build(&root, &toolkit);
    println!("cargo:rustc-cfg=nvte_cuda");
}
