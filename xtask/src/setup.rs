//! Tools this machine lacks, from pinned wheels, under target/tools. Nothing system-wide.

use crate::process;
use crate::tree::{Tree, runs};
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

struct Wheels {
    /// Folder under target/tools.
    dir: &'static str,
    packages: &'static [&'static str],
    /// The program inside that shows the set is complete.
    program: &'static str,
    /// What a user may install instead of the wheels.
    instead: &'static str,
}

// One release for all: a newer nvidia-nvvm does not fit an older nvcc.
const CUDA: Wheels = Wheels {
    dir: "cuda-13.0.88",
    packages: &[
        "nvidia-cuda-nvcc==13.0.88",
        "nvidia-nvvm==13.0.88",
        "nvidia-cuda-crt==13.0.88",
        "nvidia-cuda-runtime==13.0.88",
        "nvidia-cuda-cccl==13.0.85",
    ],
    program: "nvidia/cu13/bin/nvcc",
    instead: "a CUDA toolkit (CUDA_HOME, or nvcc on PATH), or build with NVTE_CPU_ONLY=1",
};
const CUOBJDUMP: Wheels = Wheels {
    dir: "cuobjdump-13.5.37",
    packages: &["nvidia-cuda-cuobjdump==13.5.37"],
    program: "nvidia/cu13/bin/cuobjdump",
    instead: "a CUDA toolkit with cuobjdump on PATH",
};
// The programs in bin/ are Python scripts that need PYTHONPATH; these are the real ones.
const CMAKE: Wheels = Wheels {
    dir: "cmake",
    packages: &["cmake==4.1.2"],
    program: "cmake/data/bin/cmake",
    instead: "CMake 3.21 or newer",
};
const NINJA: Wheels =
    Wheels { dir: "ninja", packages: &["ninja==1.13.0"], program: "bin/ninja", instead: "Ninja" };
const CLANG_FORMAT: Wheels = Wheels {
    dir: "clang-format-21.1.8",
    packages: &["clang-format==21.1.8"],
    program: "clang_format/data/bin/clang-format",
    instead: "nothing: the version decides the format",
};
/// What builds the documentation, for Python 3.10 or later; Meson builds an example of it.
const SPHINX: Wheels = Wheels {
    dir: "sphinx-8.1.3",
    packages: &[
        "Jinja2==3.1.6",
        "MarkupSafe==3.0.4",
        "Pygments==2.21.0",
        "accessible-pygments==0.0.5",
        "alabaster==1.0.0",
        "babel==2.18.0",
        "beautifulsoup4==4.15.0",
        "certifi==2026.10.18",
        "charset_normalizer==3.5.2",
        "docutils==0.21.2",
        "furo==2025.12.19",
        "idna==3.20",
        "imagesize==2.0.1",
        "markdown-it-py==3.0.0",
        "mdit-py-plugins==0.7.0",
        "mdurl==0.1.2",
        "meson==1.9.1",
        "myst-parser==4.0.1",
        "packaging==26.3",
        "pyyaml==6.0.3",
        "requests==2.34.2",
        "snowballstemmer==3.1.1",
        "soupsieve==4.1.2",
        "sphinx==8.1.3",
        "sphinx-basic-ng==1.0.0b2",
        "sphinx-copybutton==0.5.2",
        "sphinxcontrib-applehelp==2.0.0",
        "sphinxcontrib-devhelp==2.0.0",
        "sphinxcontrib-htmlhelp==2.1.0",
        "sphinxcontrib-jsmath==2.0.0",
        "sphinxcontrib-qthelp==2.0.0",
        "sphinxcontrib-serializinghtml==2.0.0",
        "typing-extensions==4.16.0",
        "urllib3==2.8.0",
    ],
    program: "sphinx/__main__.py",
    instead: "nothing: the versions decide the pages",
};
/// For Python 3.11 or later.
const JAX: Wheels = Wheels {
    dir: "jax-0.10.2",
    packages: &[
        "jax==0.10.2",
        "jaxlib==0.10.2",
        "ml_dtypes==0.6.0",
        "numpy==2.4.6",
        "opt_einsum==3.4.0",
        "scipy==1.17.1",
    ],
    program: "jax/__init__.py",
    instead: "JAX",
};
/// For Python 3.11 or later.
const ONNXRUNTIME: Wheels = Wheels {
    dir: "onnxruntime-1.32.0-onnx-1.23.2",
    packages: &[
        "flatbuffers==25.12.19",
        "ml_dtypes==0.6.0",
        "numpy==2.4.6",
        "onnx==1.23.2",
        "onnxruntime==1.32.0",
        "packaging==26.3",
        "protobuf==7.36.2",
        "typing_extensions==4.16.0",
    ],
    program: "onnxruntime/__init__.py",
    instead: "ONNX Runtime",
};
/// The newest release with CUDA; its part for the CPU needs two libraries of CUDA beside it, and no driver.
const TORCH: Wheels = Wheels {
    dir: "torch-2.11.0",
    packages: &["nvidia-cuda-cupti==13.0.85", "nvidia-cuda-runtime==13.0.96", "torch==2.11.0"],
    program: "torch/include/torch/library.h",
    instead: "LibTorch (LIBTORCH)",
};
const CONAN: Wheels = Wheels {
    dir: "conan-2.34.0",
    packages: &[
        "Jinja2==3.1.6",
        "MarkupSafe==3.0.4",
        "certifi==2026.10.18",
        "charset_normalizer==3.5.2",
        "colorama==0.4.6",
        "conan==2.34.0",
        "distro==1.9.0",
        "fasteners==0.20",
        "idna==3.20",
        "patch-ng==1.19.1",
        "pyyaml==6.0.3",
        "requests==2.34.2",
        "truststore==0.10.5",
        "urllib3==2.8.0",
    ],
    program: "bin/conan",
    instead: "Conan 2",
};
/// rattler-build as a library of Python.
const RATTLER_BUILD: Wheels = Wheels {
    dir: "rattler-build-0.73.0",
    packages: &["py-rattler-build==0.73.0"],
    program: "rattler_build/__init__.py",
    instead: "rattler-build",
};
const PKGCONF: Wheels = Wheels {
    dir: "pkgconf",
    packages: &["pkgconf==3.0.7.post0"],
    program: "pkgconf/.bin/pkgconf",
    instead: "pkg-config",
};

pub fn run(tree: &Tree) -> Result<()> {
    match cuda(tree)? {
        Some(path) => println!("CUDA compiler  {}", path.display()),
        None => println!("CUDA compiler  not needed (NVTE_CPU_ONLY=1)"),
    }
    println!("cmake          {}", cmake(tree)?.display());
    println!("ninja          {}", ninja(tree)?.display());
    println!("pkg-config     {}", pkg_config(tree)?.display());
    println!("clang-format   {}", clang_format(tree)?.display());
    Ok(())
}

/// The CUDA compiler that the build script will find; none when the build needs none.
pub fn cuda(tree: &Tree) -> Result<Option<PathBuf>> {
    if env::var_os("NVTE_CPU_ONLY").is_some_and(|value| value == "1") {
        return Ok(None);
    }
    for variable in ["CUDA_HOME", "CUDA_PATH"] {
        let nvcc = env::var_os(variable).map(|home| Path::new(&home).join("bin/nvcc"));
        if let Some(nvcc) = nvcc.filter(|nvcc| nvcc.is_file()) {
            return Ok(Some(nvcc));
        }
    }
    if runs("nvcc", "--version") {
        return Ok(Some("nvcc".into()));
    }
    ensure(tree, &CUDA).map(Some)
}

pub fn cmake(tree: &Tree) -> Result<PathBuf> {
    let output = Command::new("cmake").arg("--version").output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    if text.is_ok_and(|text| cmake_is_recent(&text)) {
        return Ok("cmake".into());
    }
    ensure(tree, &CMAKE)
}

pub fn ninja(tree: &Tree) -> Result<PathBuf> {
    if runs("ninja", "--version") { Ok("ninja".into()) } else { ensure(tree, &NINJA) }
}

pub fn pkg_config(tree: &Tree) -> Result<PathBuf> {
    if runs("pkg-config", "--version") { Ok("pkg-config".into()) } else { ensure(tree, &PKGCONF) }
}

pub fn cuobjdump(tree: &Tree) -> Result<PathBuf> {
    if runs("cuobjdump", "--version") { Ok("cuobjdump".into()) } else { ensure(tree, &CUOBJDUMP) }
}

pub fn clang_format(tree: &Tree) -> Result<PathBuf> {
    ensure(tree, &CLANG_FORMAT)
}

/// The folder of Python packages that has Sphinx.
pub fn sphinx(tree: &Tree) -> Result<PathBuf> {
    ensure(tree, &SPHINX)?;
    Ok(tree.tools().join(SPHINX.dir))
}

/// The folder of Python packages that has JAX.
pub fn jax(tree: &Tree) -> Result<PathBuf> {
    ensure(tree, &JAX)?;
    Ok(tree.tools().join(JAX.dir))
}

/// The folder of Python packages that has ONNX Runtime.
pub fn onnxruntime(tree: &Tree) -> Result<PathBuf> {
    ensure(tree, &ONNXRUNTIME)?;
    Ok(tree.tools().join(ONNXRUNTIME.dir))
}

/// The folder of PyTorch, which has the headers and libraries of LibTorch.
pub fn torch(tree: &Tree) -> Result<PathBuf> {
    ensure(tree, &TORCH)?;
    Ok(tree.tools().join(TORCH.dir).join("torch"))
}

/// A Python program, which needs the folder above its own in PYTHONPATH.
pub fn conan(tree: &Tree) -> Result<PathBuf> {
    ensure(tree, &CONAN)
}

/// The folder of Python packages that has rattler-build.
pub fn rattler_build(tree: &Tree) -> Result<PathBuf> {
    ensure(tree, &RATTLER_BUILD)?;
    Ok(tree.tools().join(RATTLER_BUILD.dir))
}

/// `cmake version 3.25.1` on the first line; 3.21 or newer, whose ctest writes JUnit reports.
fn cmake_is_recent(text: &str) -> bool {
    let version = text.lines().next().and_then(|line| line.strip_prefix("cmake version "));
    let mut numbers = version.unwrap_or_default().split(['.', '-']).map(|n| n.parse::<u32>());
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) >= (3, 21),
        _ => false,
    }
}

fn ensure(tree: &Tree, wheels: &Wheels) -> Result<PathBuf> {
    let tools = tree.tools();
    let dir = tools.join(wheels.dir);
    let program = dir.join(wheels.program);
    if program.is_file() {
        return Ok(program);
    }
    if !runs("python3", "--version") {
        bail!(
            "python3 is not on PATH. Install it (it fetches {}), or install {}.",
            wheels.dir,
            wheels.instead
        );
    }
    let pip = Command::new("python3").args(["-m", "pip", "--version"]).output()?;
    if !pip.status.success() {
        bail!(
            "python3 has no pip. Install it (it fetches {}), or install {}.",
            wheels.dir,
            wheels.instead
        );
    }

    // Filled aside and renamed, so that an interrupted download leaves no half of a tool.
    let partial = tools.join(format!(".{}.{}", wheels.dir, std::process::id()));
    fs::create_dir_all(&tools).with_context(|| tools.display().to_string())?;
    let mut install = tree.command("python3");
    install
        .args(["-m", "pip", "install", "--no-deps", "--only-binary=:all:", "--no-compile"])
        .args(["--no-input", "--disable-pip-version-check", "--no-warn-script-location"])
        .arg("--target")
        .arg(&partial)
        .args(wheels.packages);
    let result = process::run(&format!("download {}", wheels.dir), &mut install)
        .and_then(|_| match partial.join(wheels.program).is_file() {
            true => Ok(()),
            false => bail!("{}: the wheels hold no {}", wheels.dir, wheels.program),
        })
        .and_then(|()| {
            // The rest of an older layout would stand in the way of the rename.
            if dir.exists() && !program.is_file() {
                fs::remove_dir_all(&dir).with_context(|| dir.display().to_string())?;
            }
            match fs::rename(&partial, &dir) {
                // Another process was faster, and its folder is complete.
                Err(_) if program.is_file() => Ok(()),
                other => other.with_context(|| format!("rename to {}", dir.display())),
            }
        });
    // After a rename there is nothing left to remove.
    let _ = fs::remove_dir_all(&partial);
    result.with_context(|| {
        format!("cannot set up {}; you may install {}", wheels.dir, wheels.instead)
    })?;
    Ok(program)
}

#[cfg(test)]
mod tests {
    use super::cmake_is_recent;

    #[test]
    fn cmake_versions() {
        assert!(cmake_is_recent("cmake version 3.21.0\n"));
        assert!(cmake_is_recent("cmake version 4.1.2\n\nCMake suite\n"));
        assert!(cmake_is_recent("cmake version 4.2-rc1\n"));
        assert!(!cmake_is_recent("cmake version 3.20.6\n"));
        assert!(!cmake_is_recent("pyenv: cmake: command not found\n"));
        assert!(!cmake_is_recent(""));
    }
}
