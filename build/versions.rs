//! Versions of the exported symbols.
//!
//! rustc gives the linker a list of what the library exports, without versions, and no linker takes a second list
//! beside one of that kind. So the compiler that links finds, in a folder of this build, a linker that writes
//! versions into rustc's list and then runs the real one.

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The version of the other library's ABI, of which the symbols are that do not begin with `nvtex_`.
const ABI: &str = "NVTE_2.20";
/// The functions of the releases, with the version that each came with.
const RECORD: &str = "tests/nvtex_abi.txt";

const LINKER: &str = r#"#!/bin/sh
# Written by build/versions.rs: the linker, with versions in the list of exported symbols.
here=${0%/*}
for argument do
  shift
  case $argument in
    --version-script=*)
      list=${argument#*=}
      awk -f "$here/versions.awk" "$here/record.txt" "$list" > "$list.versions" || exit 1
      argument=--version-script=$list.versions ;;
  esac
  set -- "$@" "$argument"
done
exec "$(command -v ld.bfd || echo ld)" "$@"
"#;

/// Gives a function of this library the version of its record, or else that of this release. Each version names
/// the one before it, and the names that are not exported stand in the first.
const VERSIONS: &str = r#"
FILENAME == ARGV[1] { if ($1 == "function") since[$2] = $3; next }
/^ *[A-Za-z_][A-Za-z_0-9]*;$/ {
  sub(/;/, "", $1)
  if ($1 !~ /^nvtex_/) names["@ABI@"] = names["@ABI@"] " " $1 ";"
  else {
    version = "NVTEX_" (($1 in since) ? since[$1] : "@VERSION@")
    names[version] = names[version] " " $1 ";"
  }
}
END {
  print "@ABI@ { global:" names["@ABI@"] " local: *; };"
  delete names["@ABI@"]
  for (version in names) print version " { global:" names[version] " };"
}
"#;

/// Writes the linker into this build's folder and names the folder to the compiler that links.
pub fn link(root: &Path) {
    let record = root.join(RECORD);
    println!("cargo:rerun-if-changed={}", record.display());
    let folder = PathBuf::from(env::var_os("OUT_DIR").unwrap()).join("linker");
    let version =
        ["CARGO_PKG_VERSION_MAJOR", "CARGO_PKG_VERSION_MINOR"].map(|v| env::var(v).unwrap());
    let versions = VERSIONS.replace("@ABI@", ABI).replace("@VERSION@", &version.join("."));
    // `-fuse-ld=bfd` asks for the program of this name; another choice of a linker stands before it and gives way.
    let linker = folder.join("ld.bfd");
    let write = || {
        fs::create_dir_all(&folder)?;
        fs::write(folder.join("versions.awk"), versions)?;
        fs::write(folder.join("record.txt"), fs::read_to_string(&record).unwrap_or_default())?;
        fs::write(&linker, LINKER)?;
        fs::set_permissions(&linker, fs::Permissions::from_mode(0o755))
    };
    write().unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    println!("cargo:rustc-cdylib-link-arg=-B{}", folder.display());
    println!("cargo:rustc-cdylib-link-arg=-fuse-ld=bfd");
}
