//! Objects of the kernels, each compiled alone and found again by its content.

use crate::cache::{object_cache, object_store, publish};
use crate::source::{find_files, flattened};
use crate::toolkit::Toolkit;
use std::env;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::thread;
use std::time::{Instant, SystemTime};

/// What all sources are compiled with.
struct Compiler<'a> {
    toolkit: &'a Toolkit,
    flags: Vec<String>,
    /// Folder of the objects of this profile, which all clones share.
    store: PathBuf,
    cache: Option<PathBuf>,
}

/// One source, the key of its object, and the object's place in the store.
struct Job {
    source: PathBuf,
    key: String,
    object: PathBuf,
    /// How long the compiler took last time, if it is known, and the length of the text.
    cost: (f64, usize),
}

/// Compiles all sources and links them to the library.
pub fn build(root: &Path, toolkit: &Toolkit) {
    let folders = [root.join("kernels"), root.join("include")];
    let mut flags = toolkit.flags();
    let with_lines = flags.iter().any(|flag| flag == "-lineinfo");
    let mut common = DefaultHasher::new();
    flags.hash(&mut common);
    // Include folders are not hashed, so that a checkout elsewhere keeps the objects of a copied
    // target folder.
    flags.extend(folders.iter().map(|folder| format!("-I{}", folder.display())));
    toolkit.answer("--version").hash(&mut common);
    let compiler = Compiler { toolkit, flags, store: object_store(), cache: object_cache() };

    // Two runs of this script take turns.
    let turn = File::create(compiler.store.join("lock")).and_then(|f| f.lock().map(|()| f));
    let turn = turn.unwrap_or_else(|e| panic!("{}: {e}", compiler.store.display()));
    let mut sources = Vec::new();
    find_files(&folders[0], "cu", &mut sources);
    let mut jobs: Vec<Job> = sources
        .into_iter()
        .map(|source| {
            // Slices may have sources of one name.
            let name = source.strip_prefix(&folders[0]).unwrap().to_string_lossy();
            let object = compiler.store.join(name.replace('/', "-")).with_extension("o");
            let text = flattened(&source, &folders, with_lines);
            let mut key = common.clone();
            text.hash(&mut key);
            let seconds = fs::read_to_string(object.with_extension("seconds")).ok();
            let seconds = seconds.and_then(|s| s.trim().parse().ok()).unwrap_or(f64::INFINITY);
            let key = format!("{:016x}", key.finish());
            Job { source, key, object, cost: (seconds, text.len()) }
        })
        .collect();
    // The longest first, so that none is left alone at the end; before them what was never compiled here.
    jobs.sort_by(|a, b| b.cost.partial_cmp(&a.cost).unwrap());

    let threads =
        env::var("NUM_JOBS").ok().and_then(|n| n.parse().ok()).unwrap_or(1).clamp(1, jobs.len());
    let queue = Mutex::new(jobs.iter());
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(job) = { queue.lock().unwrap().next() } {
                    compiler.bring(job);
                }
            });
        }
    });
    let mut objects: Vec<_> = jobs.into_iter().map(|job| job.object).collect();
    objects.sort();
    cc::Build::new().objects(objects).compile("nvte_kernels");
    drop(turn);

    println!("cargo:rustc-link-search=native={}", toolkit.libraries.display());
    println!("cargo:rustc-link-lib=static=cudart_static");
    for library in ["stdc++", "pthread", "dl", "rt"] {
        println!("cargo:rustc-link-lib={library}");
    }
}

impl Compiler<'_> {
    /// Compiles one source unless the store or the cache has an object from the same source, headers,
    /// flags and compiler.
    fn bring(&self, job: &Job) {
        let Job { key, object, .. } = job;
        let stamp = object.with_extension("hash");
        let time = object.with_extension("seconds");
        if object.is_file() && fs::read_to_string(&stamp).is_ok_and(|old| old == *key) {
            return;
        }
        let cached = self.cache.as_ref().map(|folder| folder.join(key).with_extension("o"));
        if let Some(cached) = &cached
            && cached.is_file()
            && publish(&cached.with_extension("seconds"), &time).is_ok()
            && publish(cached, object).is_ok()
        {
            // The times of the files say that the object has been used today.
            for path in [cached.clone(), cached.with_extension("seconds")] {
                let _ = File::open(path).and_then(|file| file.set_modified(SystemTime::now()));
            }
            fs::write(&stamp, key).unwrap();
            return;
        }
        // An interrupted compiler may leave half an object, so the old stamp goes first.
        let _ = fs::remove_file(&stamp);
        let seconds = self.compile(job);
        // The seconds are for the list of `cargo xtask bench kernels`, and for the order of the next
        // build.
        fs::write(&time, format!("{seconds:.1}")).unwrap();
        fs::write(&stamp, key).unwrap();
        if let Some(cached) = cached {
            // A cache that is full or read-only costs the next clone time, and nothing else.
            let _ = publish(&time, &cached.with_extension("seconds"));
            let _ = publish(object, &cached);
        }
    }

    /// Runs the compiler; returns how many seconds it took.
    fn compile(&self, job: &Job) -> f64 {
        let mut nvcc = Command::new(&self.toolkit.nvcc);
        // Architectures in parallel; not among the flags, because the object does not depend on it.
        nvcc.args(&self.flags).args(["--threads", "0", "-c"]);
        nvcc.arg(&job.source).arg("-o").arg(&job.object);
        let start = Instant::now();
        let output = nvcc
            .output()
            .unwrap_or_else(|e| panic!("cannot run {}: {e}", self.toolkit.nvcc.display()));
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        assert!(output.status.success(), "{nvcc:?} failed:\n{text}");
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            println!("cargo:warning={line}");
        }
        start.elapsed().as_secs_f64()
    }
}
