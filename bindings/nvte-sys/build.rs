//! Finds libnvte.so: in NVTE_LIB_DIR, otherwise through pkg-config.

use std::env;
use std::process::{Command, exit};

fn main() {
    for variable in ["NVTE_LIB_DIR", "PKG_CONFIG", "PKG_CONFIG_PATH", "DOCS_RS"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    // Documentation is built where there is no library.
    if env::var_os("DOCS_RS").is_some() {
        return;
    }
    let folder = env::var("NVTE_LIB_DIR").ok().filter(|folder| !folder.is_empty());
    let folder = match folder.map_or_else(pkg_config, Ok) {
        Ok(folder) => folder,
        Err(reason) => {
            println!(
                "cargo::error=libnvte.so was not found: {reason}. Set NVTE_LIB_DIR to its folder, or \
                 PKG_CONFIG_PATH to PREFIX/lib/pkgconfig of an installation"
            );
            exit(1);
        }
    };
    println!("cargo::rustc-link-search=native={folder}");
    println!("cargo::rustc-link-lib=dylib=nvte");
    // The tests of this package find the library without further settings.
    println!("cargo::rustc-link-arg=-Wl,-rpath,{folder}");
    println!("cargo::metadata=LIB_DIR={folder}");
}

/// Asks pkg-config for the folder of the library.
fn pkg_config() -> Result<String, String> {
    let program = env::var("PKG_CONFIG").unwrap_or_else(|_| "pkg-config".into());
    let version = concat!(env!("CARGO_PKG_VERSION_MAJOR"), ".", env!("CARGO_PKG_VERSION_MINOR"));
    let mut command = Command::new(&program);
    command.args(["--print-errors", "--variable=libdir", &format!("nvte >= {version}")]);
    let output = command.output().map_err(|error| format!("{program}: {error}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    match output.status.success() {
        true => Ok(text(&output.stdout)),
        false => Err(text(&output.stderr)),
    }
}
