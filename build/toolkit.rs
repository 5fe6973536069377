//! The CUDA compiler and what it is asked for.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Every architecture that the kernels know. An `a` asks for the instructions that this one alone has.
const ALL_ARCHS: [&str; 5] = ["80", "89", "90a", "100a", "120a"];
/// The architecture that the kernels are tuned and measured on.
const DEFAULT_ARCH: &str = "90a";

/// A CUDA compiler and the folder of its libraries.
pub struct Toolkit {
    pub nvcc: PathBuf,
    pub libraries: PathBuf,
}

impl Toolkit {
    pub fn find(root: &Path) -> Option<Self> {
        let mut homes: Vec<PathBuf> =
            ["CUDA_HOME", "CUDA_PATH"].iter().filter_map(env::var_os).map(PathBuf::from).collect();
        let path = env::var_os("PATH").unwrap_or_default();
        for folder in env::split_paths(&path) {
            // The entry may be a link into a toolkit.
            if let Ok(nvcc) = folder.join("nvcc").canonicalize() {
                homes.extend(nvcc.parent().and_then(Path::parent).map(Path::to_path_buf));
            }
        }
        let mut downloaded: Vec<PathBuf> = fs::read_dir(root.join("target/tools"))
            .into_iter()
            .flatten()
            .flatten()
            .filter(|entry| entry.file_name().to_string_lossy().starts_with("cuda-"))
            .map(|entry| entry.path().join("nvidia/cu13"))
            .collect();
        downloaded.sort();
        homes.extend(downloaded.into_iter().rev());
        homes.iter().find_map(|home| Self::at(home))
    }

    fn at(home: &Path) -> Option<Self> {
        let nvcc = home.join("bin/nvcc");
        let libraries = ["lib64", "lib", "targets/x86_64-linux/lib", "lib/x86_64-linux-gnu"]
            .map(|name| home.join(name))
            .into_iter()
            .find(|folder| folder.join("libcudart_static.a").is_file())?;
        nvcc.is_file().then_some(Self { nvcc, libraries })
    }

    /// What the compiler prints for an option.
    pub fn answer(&self, option: &str) -> Vec<u8> {
        Command::new(&self.nvcc)
            .arg(option)
            .output()
            .unwrap_or_else(|e| panic!("cannot run {}: {e}", self.nvcc.display()))
            .stdout
    }

    /// The options of all sources, but for the folders of headers.
    pub fn flags(&self) -> Vec<String> {
        let mut flags: Vec<String> =
            ["-O3", "-std=c++17", "-Xcompiler=-fPIC,-fvisibility=hidden,-Wall,-Wextra"]
                .map(String::from)
                .into();
        // Line tables are for profilers and sanitizers; they are more than half of an object's size.
        if env::var("NVTE_LINEINFO").is_ok_and(|wish| wish == "1") {
            flags.push("-lineinfo".into());
        }
        // A register spill is a warning, and a warning of ptxas is an error, on the architecture that the
        // kernels are tuned for. On others three kernels lack a few registers.
        let archs = architectures();
        let tuned = archs == [DEFAULT_ARCH];
        let spills = if tuned { "-Xptxas=-warn-spills,-Werror" } else { "-Xptxas=-warn-spills" };
        flags.push(spills.into());
        for arch in &archs {
            let (made, runs) = arch.split_once('@').unwrap_or((arch, arch));
            flags.push(format!("-gencode=arch=compute_{made},code=sm_{runs}"));
            if made != runs {
                flags.push(format!("-DNVTE_ASSUMED_ARCH={made}"));
            }
        }
        if archs == ALL_ARCHS {
            // Later GPUs compile the PTX of the newest architecture when the program starts.
            let newest = ALL_ARCHS[ALL_ARCHS.len() - 1].trim_end_matches('a');
            flags.push(format!("-gencode=arch=compute_{newest},code=compute_{newest}"));
        }
        // Compilers before 12.8 lack the option.
        let compression = "--compress-mode";
        if String::from_utf8_lossy(&self.answer("--help")).contains(compression) {
            flags.push(format!("{compression}=size"));
        }
        flags
    }
}

/// The architectures of NVTE_CUDA_ARCHS: a list such as "80,90a", "all", or "native" for the GPUs of this
/// machine. "80@90" alone is what an older GPU would run, as code for a newer one, which the library then takes
/// for the older one: so its kernels can be tested where only the newer one is.
fn architectures() -> Vec<String> {
    let asked = env::var("NVTE_CUDA_ARCHS").unwrap_or_default();
    match asked.trim() {
        "" => vec![DEFAULT_ARCH.into()],
        "all" => ALL_ARCHS.map(String::from).into(),
        "native" => native_architectures(),
        list => list
            .split([',', ';'])
            .map(|arch| arch.trim().to_string())
            .filter(|arch| !arch.is_empty())
            .collect(),
    }
}

/// The architectures of the GPUs that the driver shows.
fn native_architectures() -> Vec<String> {
    const QUERY: [&str; 2] = ["--query-gpu=compute_cap", "--format=csv,noheader"];
    let hint = "NVTE_CUDA_ARCHS=native builds for the GPUs of this machine; name the architectures \
                instead, for example NVTE_CUDA_ARCHS=90a";
    let output = Command::new("nvidia-smi")
        .args(QUERY)
        .output()
        .unwrap_or_else(|e| panic!("cannot run nvidia-smi: {e}. {hint}"));
    let text = String::from_utf8_lossy(&output.stdout);
    // A line such as "9.0" for each GPU. Where there is none, it is a sentence.
    let capability = |line: &str| {
        let (major, minor) = line.trim().split_once('.')?;
        let digits = [major, minor].iter().all(|n| n.parse::<u32>().is_ok());
        digits.then(|| format!("{major}{minor}"))
    };
    let found: BTreeSet<String> = text.lines().filter_map(capability).collect();
    assert!(
        output.status.success() && !found.is_empty(),
        "nvidia-smi shows no GPU: {}{}. {hint}",
        text.trim(),
        String::from_utf8_lossy(&output.stderr).trim()
    );
    let known = |arch: &String| ALL_ARCHS.iter().find(|known| known.trim_end_matches('a') == arch);
    found.into_iter().map(|arch| known(&arch).map_or(arch.clone(), |k| k.to_string())).collect()
}
