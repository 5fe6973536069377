//! Compiles kernels/ with nvcc if there is one, and the C++ helpers that throw and catch.

use std::collections::BTreeSet;
use std::env;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

const ALL_ARCHS: &str = "80,89,90a,100a,120a";
const DEFAULT_ARCHS: &str = "90a";

fn main() {
    println!("cargo:rustc-check-cfg=cfg(nvte_cuda)");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libnvte.so.0");
    for path in [
        "build.rs",
        "kernels",
        "include/nvte/backend",
        "include/nvte/types.h",
        "src/throw.cpp",
        "src/callback.cpp",
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

    let sources = ["src/throw.cpp", "src/callback.cpp"];
    cc::Build::new().cpp(true).std("c++17").files(sources).compile("nvte_throw");

    if env::var("NVTE_CPU_ONLY").is_ok_and(|v| v == "1") || env::var("CARGO_FEATURE_CUDA").is_err()
    {
        return;
    }
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap());
    let Some(toolkit) = Toolkit::find(&root) else {
        // Looked at again after `cargo xtask setup`.
        println!("cargo:rerun-if-changed=target/tools");
        println!(
            "cargo:warning=no CUDA compiler found: building the CPU backend only. Run `cargo xtask setup` \
             for one, or set CUDA_HOME; NVTE_CPU_ONLY=1 silences this warning."
        );
        return;
    };
    build_kernels(&root, &toolkit);
    println!("cargo:rustc-cfg=nvte_cuda");
}

/// A CUDA compiler and the folder of its libraries.
struct Toolkit {
    nvcc: PathBuf,
    libraries: PathBuf,
}

impl Toolkit {
    fn find(root: &Path) -> Option<Self> {
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
}

/// nvcc's arguments for the architectures of NVTE_CUDA_ARCHS: a list such as "80,90a", or "all".
fn arch_flags() -> Vec<String> {
    let asked = env::var("NVTE_CUDA_ARCHS").unwrap_or_default();
    let list = match asked.trim() {
        "" => DEFAULT_ARCHS,
        "all" => ALL_ARCHS,
        list => list,
    };
    list.split([',', ';'])
        .map(str::trim)
        .filter(|arch| !arch.is_empty())
        .map(|arch| format!("-gencode=arch=compute_{arch},code=sm_{arch}"))
        .collect()
}

fn build_kernels(root: &Path, toolkit: &Toolkit) {
    let folders = [root.join("kernels"), root.join("include")];
    let mut sources = Vec::new();
    find_files(&folders[0], "cu", &mut sources);
    sources.sort();

    let mut flags: Vec<String> =
        ["-O3", "-std=c++17", "-Xcompiler=-fPIC,-fvisibility=hidden,-Wall,-Wextra"]
            .map(String::from)
            .into();
    // For profilers and sanitizers; more than half of an object's size.
    if env::var("NVTE_LINEINFO").is_ok_and(|wish| wish == "1") {
        flags.push("-lineinfo".into());
    }
    // A spill is a warning, a warning of ptxas is an error: of what is measured. Elsewhere three
    // kernels lack a few registers.
    let archs = arch_flags();
    let measured = archs.iter().all(|flag| flag.contains(DEFAULT_ARCHS));
    let spills = if measured { "-Xptxas=-warn-spills,-Werror" } else { "-Xptxas=-warn-spills" };
    flags.push(spills.into());
    flags.extend(archs);
    // Compilers before 12.8 lack the option.
    let compression = "--compress-mode";
    if String::from_utf8_lossy(&answer(&toolkit.nvcc, "--help")).contains(compression) {
        flags.push(format!("{compression}=size"));
    }

    let mut shared = DefaultHasher::new();
    flags.hash(&mut shared);
    // Not hashed: a checkout elsewhere keeps the objects of a copied target folder.
    flags.extend(folders.iter().map(|folder| format!("-I{}", folder.display())));
    answer(&toolkit.nvcc, "--version").hash(&mut shared);
    let jobs =
        env::var("NUM_JOBS").ok().and_then(|n| n.parse().ok()).unwrap_or(1).clamp(1, sources.len());
    let store = object_store();
    let cache = object_cache();
    // Two runs of this script take turns.
    let turn = File::create(store.join("lock")).and_then(|file| file.lock().map(|()| file));
    let turn = turn.unwrap_or_else(|e| panic!("{}: {e}", store.display()));
    let queue = Mutex::new(sources.iter());
    let objects = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                while let Some(source) = { queue.lock().unwrap().next() } {
                    let object = compile(
                        toolkit,
                        source,
                        &folders,
                        &flags,
                        shared.clone(),
                        (&store, cache.as_deref()),
                    );
                    objects.lock().unwrap().push(object);
                }
            });
        }
    });
    let mut objects = objects.into_inner().unwrap();
    objects.sort();

    cc::Build::new().objects(objects).compile("nvte_kernels");
    drop(turn);
    println!("cargo:rustc-link-search=native={}", toolkit.libraries.display());
    println!("cargo:rustc-link-lib=static=cudart_static");
    for library in ["stdc++", "pthread", "dl", "rt"] {
        println!("cargo:rustc-link-lib={library}");
    }
}

/// The folder of the kernels' objects, beside Cargo's own of this profile. OUT_DIR will not do: Cargo
/// has one for each way to build the package, and kernels take ten minutes.
fn object_store() -> PathBuf {
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap());
    // PROFILE/build/nvte-HASH/out
    let store = out.ancestors().nth(3).expect("Cargo's layout").join("nvte-kernels");
    fs::create_dir_all(&store).unwrap_or_else(|e| panic!("{}: {e}", store.display()));
    store
}

/// A folder of objects by their keys, shared by all clones of this user: NVTE_KERNEL_CACHE, or the
/// user's cache folder; none if the variable is 0 or the folder cannot be made. Objects that no build has
/// used for a month are deleted.
fn object_cache() -> Option<PathBuf> {
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
fn publish(from: &Path, to: &Path) -> io::Result<()> {
    let part = to.with_extension(format!("part{}", std::process::id()));
    let copied = fs::copy(from, &part).and_then(|_| fs::rename(&part, to));
    if copied.is_err() {
        let _ = fs::remove_file(&part);
    }
    copied
}

/// Compiles one source unless the store or the cache has an object from the same source, headers, flags
/// and compiler.
fn compile(
    toolkit: &Toolkit,
    source: &Path,
    folders: &[PathBuf; 2],
    flags: &[String],
    mut key: DefaultHasher,
    (store, cache): (&Path, Option<&Path>),
) -> PathBuf {
    // Slices may have sources of one name.
    let name = source.strip_prefix(&folders[0]).unwrap().to_string_lossy().replace('/', "-");
    let object = store.join(name).with_extension("o");
    let stamp = object.with_extension("hash");
    let time = object.with_extension("seconds");
    let with_lines = flags.iter().any(|flag| flag == "-lineinfo");
    hash_with_includes(source, folders, with_lines, &mut BTreeSet::new(), &mut key);
    let key = format!("{:016x}", key.finish());
    if object.is_file() && fs::read_to_string(&stamp).is_ok_and(|old| old == key) {
        return object;
    }
    let cached = cache.map(|folder| folder.join(&key).with_extension("o"));
    if let Some(cached) = &cached
        && cached.is_file()
        && publish(&cached.with_extension("seconds"), &time).is_ok()
        && publish(cached, &object).is_ok()
    {
        // It has been used today.
        for path in [cached.clone(), cached.with_extension("seconds")] {
            let _ = File::open(path).and_then(|file| file.set_modified(SystemTime::now()));
        }
        fs::write(&stamp, key).unwrap();
        return object;
    }
    // An interrupted compiler leaves half an object.
    let _ = fs::remove_file(&stamp);
    let mut nvcc = Command::new(&toolkit.nvcc);
    // Architectures in parallel; not among the flags, because the object does not depend on it.
    nvcc.args(flags).args(["--threads", "0", "-c"]).arg(source).arg("-o").arg(&object);
    let start = Instant::now();
    let output =
        nvcc.output().unwrap_or_else(|e| panic!("cannot run {}: {e}", toolkit.nvcc.display()));
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    assert!(output.status.success(), "{nvcc:?} failed:\n{text}");
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        println!("cargo:warning={line}");
    }
    // For the list of `cargo xtask bench kernels`.
    let seconds = start.elapsed().as_secs_f64();
    fs::write(&time, format!("{seconds:.1}")).unwrap();
    fs::write(&stamp, key).unwrap();
    if let Some(cached) = cached {
        // A cache that is full or read-only costs the next clone time, and nothing else.
        let _ = publish(&time, &cached.with_extension("seconds"));
        let _ = publish(&object, &cached);
    }
    object
}

/// The text of a source and of all of ours that it includes, wherever these lie. Comments and empty lines
/// count only where the object says which line an instruction comes from.
fn hash_with_includes(
    file: &Path,
    folders: &[PathBuf; 2],
    with_lines: bool,
    seen: &mut BTreeSet<PathBuf>,
    key: &mut DefaultHasher,
) {
    if !seen.insert(file.to_owned()) {
        return;
    }
    let text =
        fs::read_to_string(file).unwrap_or_else(|e| panic!("cannot read {}: {e}", file.display()));
    let text = if with_lines { text } else { without_comments(&text) };
    for line in text.lines() {
        let name = line.strip_prefix("#include \"").and_then(|rest| rest.split('"').next());
        let header = name.and_then(|name| {
            let beside = file.parent().unwrap().join(name);
            let others = folders.iter().map(|folder| folder.join(name));
            [beside].into_iter().chain(others).find(|path| path.is_file())
        });
        match header {
            Some(header) => hash_with_includes(&header, folders, with_lines, seen, key),
            None => line.hash(key),
        }
    }
}

/// C++ without comments, empty lines and the spaces around a line.
fn without_comments(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(['/', '"', '\'']) {
        let (before, tail) = rest.split_at(at);
        code.push_str(before);
        let length = if tail.starts_with("//") {
            tail.find('\n').unwrap_or(tail.len())
        } else if tail.starts_with("/*") {
            code.push(' ');
            tail.find("*/").map_or(tail.len(), |end| end + 2)
        } else {
            // A quote may not begin a literal (`1'000`): what follows is kept either way.
            let length = literal(tail);
            code.push_str(&tail[..length]);
            length
        };
        rest = &tail[length..];
    }
    code.push_str(rest);
    let lines = code.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.collect::<Vec<_>>().join("\n")
}

/// Bytes of the literal, or else of the one character, that `text` starts with.
fn literal(text: &str) -> usize {
    let quote = text.as_bytes()[0];
    let mut escaped = false;
    for (at, &byte) in text.as_bytes().iter().enumerate().skip(1) {
        match byte {
            _ if quote == b'/' => return 1,
            b'\n' => return 1,
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            _ if byte == quote => return at + 1,
            _ => {}
        }
    }
    1
}

/// What the compiler prints for an option.
fn answer(nvcc: &Path, option: &str) -> Vec<u8> {
    Command::new(nvcc)
        .arg(option)
        .output()
        .unwrap_or_else(|e| panic!("cannot run {}: {e}", nvcc.display()))
        .stdout
}

/// The files of an extension in a folder and in those below.
fn find_files(folder: &Path, extension: &str, found: &mut Vec<PathBuf>) {
    let entries = fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    for path in entries.map(|entry| entry.unwrap().path()) {
        match path.is_dir() {
            true => find_files(&path, extension, found),
            false if path.extension().is_some_and(|e| e == extension) => found.push(path),
            false => {}
        }
    }
}
