//! Where things lie: the repository, cargo's target folder, the tools in it.

use anyhow::{Context, Result, bail};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

pub struct Tree {
    pub root: PathBuf,
    pub target: PathBuf,
    /// `NVTE_CUDA_ARCHS` of the builds, in place of the environment's.
    pub archs: Option<String>,
}

/// Options of C and C++ that is installed: canaries on the stack, checked copies, marks at the targets of indirect
/// calls, and tables of addresses that are read-only once the file is loaded. build/main.rs has those of the library.
pub const HARDENING: [&str; 6] = [
    "-fstack-protector-strong",
    "-U_FORTIFY_SOURCE",
    "-D_FORTIFY_SOURCE=2",
    "-fcf-protection=full",
    "-Wl,-z,relro",
    "-Wl,-z,now",
];

impl Tree {
    pub fn find(root: Option<PathBuf>) -> Result<Self> {
        let root = match root {
            Some(root) => root,
            None => Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask/..").to_owned(),
        };
        let root = root.canonicalize().with_context(|| format!("{}", root.display()))?;
        // A relative CARGO_TARGET_DIR is relative to where cargo was called.
        let target = match env::var_os("CARGO_TARGET_DIR").filter(|dir| !dir.is_empty()) {
            Some(dir) => env::current_dir()?.join(dir),
            None => root.join("target"),
        };
        Ok(Self { root, target, archs: None })
    }

    pub fn library(&self) -> PathBuf {
        self.target.join("release/libnvte.so")
    }

    /// Whether a build of the library compiled kernels here: the build script makes this folder for them.
    pub fn has_kernels(&self) -> bool {
        self.target.join("release/nvte-kernels").is_dir()
    }

    /// Under the root even with another CARGO_TARGET_DIR: the build script looks here for a CUDA compiler.
    pub fn tools(&self) -> PathBuf {
        self.root.join("target/tools")
    }

    pub fn prefix(&self) -> PathBuf {
        self.target.join("prefix")
    }

    pub fn golden(&self) -> PathBuf {
        self.root.join("capi-tests/golden")
    }

    /// The library's version, from the manifest of the repository's root package.
    pub fn version(&self) -> Result<String> {
        let path = self.root.join("Cargo.toml");
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let version = text.lines().find_map(|line| line.strip_prefix("version = \""));
        match version.and_then(|rest| rest.strip_suffix('"')) {
            Some(version) => Ok(version.to_owned()),
            None => bail!("{}: no version", path.display()),
        }
    }

    /// A command that runs in the root, without what `cargo run` adds to the loader's path:
    /// a test must find libnvte.so by its own rpath.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.root).env("CARGO_TARGET_DIR", &self.target);
        if let Some(paths) = env::var_os("LD_LIBRARY_PATH") {
            let keep = |path: &PathBuf| {
                let rust = path.components().any(|part| part.as_os_str() == "rustlib")
                    || path
                        .parent()
                        .is_some_and(|toolchain| toolchain.join("lib/rustlib").is_dir());
                !rust && !path.starts_with(&self.target)
            };
            let kept: Vec<_> = env::split_paths(&paths).filter(keep).collect();
            match kept.is_empty() {
                true => command.env_remove("LD_LIBRARY_PATH"),
                false => command.env("LD_LIBRARY_PATH", env::join_paths(kept).expect("paths")),
            };
        }
        command
    }

    pub fn cargo(&self) -> Command {
        let mut cargo = self.command(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.envs(self.archs.iter().map(|archs| ("NVTE_CUDA_ARCHS", archs)));
        cargo
    }
}

/// Whether the CUDA driver is there and shows a device.
pub fn has_gpu() -> bool {
    type Init = unsafe extern "C" fn(u32) -> i32;
    type Count = unsafe extern "C" fn(*mut i32) -> i32;
    // SAFETY: both functions have had these signatures in every release of the driver.
    unsafe {
        let Ok(driver) = libloading::Library::new("libcuda.so.1") else { return false };
        let (Ok(init), Ok(count)) =
            (driver.get::<Init>(b"cuInit\0"), driver.get::<Count>(b"cuDeviceGetCount\0"))
        else {
            return false;
        };
        let mut devices = 0;
        init(0) == 0 && count(&mut devices) == 0 && devices > 0
    }
}

/// Whether a program runs at all; a name on PATH may be a wrapper that only prints an error.
pub fn runs(program: impl AsRef<OsStr>, argument: &str) -> bool {
    let output = Command::new(program).arg(argument).output();
    output.is_ok_and(|output| output.status.success())
}

/// Folder `from` copied into `to`, over what is there.
pub fn copy_dir(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| to.display().to_string())?;
    for entry in fs::read_dir(from).with_context(|| from.display().to_string())? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        let kind = entry.file_type()?;
        if kind.is_dir() {
            copy_dir(&entry.path(), &target)?;
        } else if kind.is_symlink() {
            link(&fs::read_link(entry.path())?, &target)?;
        } else {
            copy(&entry.path(), &target)?;
        }
    }
    Ok(())
}

pub fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to).with_context(|| format!("copy {} to {}", from.display(), to.display()))?;
    Ok(())
}

/// A symbolic link, replacing one that is there.
pub fn link(points_to: &Path, at: &Path) -> Result<()> {
    if at.symlink_metadata().is_ok() {
        fs::remove_file(at).with_context(|| at.display().to_string())?;
    }
    std::os::unix::fs::symlink(points_to, at).with_context(|| at.display().to_string())
}

pub fn empty_dir(path: &Path) -> Result<()> {
    if path.exists() {
        fs::remove_dir_all(path).with_context(|| path.display().to_string())?;
    }
    fs::create_dir_all(path).with_context(|| path.display().to_string())
}

/// Files under `dir`, sorted, with one of the extensions.
pub fn files(dir: &Path, extensions: &[&str]) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).with_context(|| dir.display().to_string())? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(files(&path, extensions)?);
        } else if path.extension().is_some_and(|e| extensions.iter().any(|x| e == *x)) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}
