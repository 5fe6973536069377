//! What libnvte.so is made of: a check of licences and sources, a bill of materials (CycloneDX 1.5), and the texts of
//! the licences. The last two are installed beside the library.

use crate::tree::Tree;
use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;

/// Licences that may be in the library. One of the alternatives that a crate offers must be among them.
const LICENCES: [&str; 7] =
    ["Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT", "Unicode-3.0", "Zlib"];
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// A crate whose code is in the library.
struct Crate {
    name: String,
    version: String,
    licence: String,
    source: String,
    /// SHA-256 of its package, from Cargo.lock.
    checksum: String,
    folder: std::path::PathBuf,
}

/// All crates of the library but its own, with the CUDA backend, by name and version. Procedural macros run while it
/// is compiled and are no part of it.
fn crates(tree: &Tree) -> Result<Vec<Crate>> {
    let mut cargo = tree.cargo();
    cargo.args(["metadata", "--locked", "--format-version", "1"]);
    cargo.args(["--filter-platform", "x86_64-unknown-linux-gnu"]);
    let output = cargo.output().context("cargo metadata")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let packages: HashMap<String, Value> =
        list(&metadata["packages"]).into_iter().map(|p| (text(&p["id"]), p)).collect();
    let nodes: HashMap<String, Value> =
        list(&metadata["resolve"]["nodes"]).into_iter().map(|n| (text(&n["id"]), n)).collect();
    let is_macro = |package: &Value| {
        list(&package["targets"]).iter().any(|t| list(&t["kind"]).contains(&json!("proc-macro")))
    };
    let root = packages.values().find(|p| p["name"] == "nvte").context("no package nvte")?;

    let checksums = checksums(tree)?;
    let mut found = BTreeMap::new();
    let mut open = vec![text(&root["id"])];
    while let Some(id) = open.pop() {
        for dependency in list(&nodes[&id]["deps"]) {
            let normal = list(&dependency["dep_kinds"]).iter().any(|kind| kind["kind"].is_null());
            let id = text(&dependency["pkg"]);
            let package = &packages[&id];
            if !normal || is_macro(package) || found.contains_key(&id) {
                continue;
            }
            let (name, version) = (text(&package["name"]), text(&package["version"]));
            let checksum = checksums.get(&(name.clone(), version.clone())).cloned();
            let manifest = text(&package["manifest_path"]);
            let folder = Path::new(&manifest).parent().context("a manifest has a folder")?;
            let entry = Crate {
                name,
                version,
                licence: text(&package["license"]),
                source: text(&package["source"]),
                checksum: checksum.unwrap_or_default(),
                folder: folder.to_owned(),
            };
            found.insert(id.clone(), entry);
            open.push(id);
        }
    }
    Ok(found.into_values().collect())
}

/// Checksums of packages by name and version.
fn checksums(tree: &Tree) -> Result<HashMap<(String, String), String>> {
    let path = tree.root.join("Cargo.lock");
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let field = |block: &str, name: &str| {
        let line = block.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" = \""));
        line.and_then(|rest| rest.strip_suffix('"')).map(str::to_owned)
    };
    let of_block = |block: &str| {
        let key = (field(block, "name")?, field(block, "version")?);
        Some((key, field(block, "checksum")?))
    };
    Ok(text.split("[[package]]").filter_map(of_block).collect())
}

/// Whether an SPDX expression of `OR`, `AND` and parentheses can be met with the licences of the list.
fn allowed(expression: &str) -> bool {
    // AND binds closer than OR; parentheses are few and not nested.
    let expression = expression.trim();
    if let Some((before, rest)) = expression.split_once('(') {
        let Some((inside, after)) = rest.split_once(')') else { return false };
        let word = if allowed(inside) { LICENCES[0] } else { "refused" };
        return allowed(&format!("{before}{word}{after}"));
    }
    expression
        .split(" OR ")
        .any(|one| one.split(" AND ").all(|licence| LICENCES.contains(&licence.trim())))
}

/// Refuses licences that are not in the list, sources other than the registry, and two versions of one crate.
pub fn check(tree: &Tree) -> Result<()> {
    let mut faults = Vec::new();
    let mut versions = HashMap::new();
    for Crate { name, version, licence, source, checksum, .. } in crates(tree)? {
        if !allowed(&licence) {
            faults
                .push(format!("{name} {version}: licence {licence:?} is not one of {LICENCES:?}"));
        }
        if source != REGISTRY || checksum.is_empty() {
            faults.push(format!("{name} {version}: source {source:?} is not the registry"));
        }
        if let Some(other) = versions.insert(name.clone(), version.clone()) {
            faults.push(format!("{name}: two versions, {other} and {version}"));
        }
    }
    match faults.is_empty() {
        true => Ok(()),
        false => bail!("{}", faults.join("\n")),
    }
}

/// Writes `sbom.cdx.json` and `THIRD-PARTY.txt` into a folder.
pub fn write(tree: &Tree, folder: &Path) -> Result<()> {
    let crates = crates(tree)?;
    let component = |c: &Crate| {
        json!({
            "type": "library",
            "name": c.name,
            "version": c.version,
            "purl": format!("pkg:cargo/{}@{}", c.name, c.version),
            "licenses": [{ "expression": c.licence.replace('/', " OR ") }],
            "hashes": [{ "alg": "SHA-256", "content": c.checksum }],
        })
    };
    let mut components: Vec<Value> = crates.iter().map(component).collect();
    components.push(json!({
        "type": "library",
        "name": "rust-std",
        "description": "Rust's standard library, linked statically",
        "licenses": [{ "expression": "MIT OR Apache-2.0" }],
    }));
    if tree.has_kernels() {
        components.push(json!({
            "type": "library",
            "name": "cudart_static",
            "description": "CUDA's runtime, linked statically",
            "licenses": [{ "license": { "name": "NVIDIA CUDA Toolkit End User License Agreement" } }],
        }));
    }
    let version = tree.version()?;
    let bill = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": { "component": {
            "type": "library",
            "name": "nvte",
            "version": version,
            "licenses": [{ "expression": "Apache-2.0" }],
        } },
        "components": components,
    });
    put(&folder.join("sbom.cdx.json"), &format!("{bill:#}\n"))?;

    let mut text = format!("Licences of what libnvte.so {version} contains.\n");
    for c in &crates {
        text += &format!("\n==== {} {} ({})\n", c.name, c.version, c.licence);
        let mut files: Vec<_> = fs::read_dir(&c.folder)
            .with_context(|| c.folder.display().to_string())?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.is_file() && is_licence(path))
            .collect();
        files.sort();
        for file in files {
            let licence = fs::read(&file).with_context(|| file.display().to_string())?;
            text += &format!("\n{}\n", String::from_utf8_lossy(&licence).trim_end());
        }
    }
    put(&folder.join("THIRD-PARTY.txt"), &text)
}

fn is_licence(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
    ["LICENSE", "LICENCE", "COPYING", "NOTICE", "COPYRIGHT"]
        .iter()
        .any(|word| name.starts_with(word))
}

fn put(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::allowed;

    #[test]
    fn expressions() {
        for good in ["MIT", "GPL-3.0 OR MIT", "(MIT OR Apache-2.0) AND Unicode-3.0", "MIT AND Zlib"]
        {
            assert!(allowed(good), "{good}");
        }
        for bad in ["", "GPL-3.0", "MIT AND GPL-3.0", "(MIT OR ISC) AND MPL-2.0", "(GPL-3.0"] {
            assert!(!allowed(bad), "{bad}");
        }
    }
}
