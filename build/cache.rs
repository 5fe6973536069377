//! Where objects of kernels are kept.

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The folder of the kernels' objects, beside Cargo's own of this profile. OUT_DIR will not do: Cargo
/// has one for each way to build the package, and kernels take ten minutes.
pub fn object_store() -> PathBuf {
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap());
    // PROFILE/build/nvte-HASH/out
    let store = out.ancestors().nth(3).expect("Cargo's layout").join("nvte-kernels");
    fs::create_dir_all(&store).unwrap_or_else(|e| panic!("{}: {e}", store.display()));
    store
}

/// A folder of objects by their keys, shared by all clones of this user: NVTE_KERNEL_CACHE, or the
/// user's cache folder; none if the variable is 0 or the folder cannot be made. Objects that no build has
/// used for a month are deleted.
pub fn object_cache() -> Option<PathBuf> {
    const MONTH: Duration = Duration::from_secs(30 * 24 * 3600);
    let folder = match env::var_os("NVTE_KERNEL_CACHE") {
        Some(value) if value == "0" => return None,
        Some(value) if !value.is_empty() => PathBuf::from(value),
        _ => env::var_os("XDG_CACHE_HOME")
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
            .or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cache")))?
            .join("nvte-kernels"),
    };
    fs::create_dir_all(&folder).ok()?;
    for entry in fs::read_dir(&folder).ok()?.flatten() {
        let used = entry.metadata().and_then(|data| data.modified());
        let unused = used.ok().and_then(|used| used.elapsed().ok());
        let ours = entry.path().extension().is_some_and(|e| e == "o" || e == "seconds");
        if ours && unused.is_some_and(|time| time > MONTH) {
            let _ = fs::remove_file(entry.path());
        }
    }
    Some(folder)
}

/// Copies a file so that nobody ever sees a part of it.
pub fn publish(from: &Path, to: &Path) -> io::Result<()> {
    let part = to.with_extension(format!("part{}", std::process::id()));
    let copied = fs::copy(from, &part).and_then(|_| fs::rename(&part, to));
    if copied.is_err() {
        let _ = fs::remove_file(&part);
    }
    copied
}
