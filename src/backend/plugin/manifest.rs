//! Manifests: small text files that say which library is a plugin, so that it can be found, and left alone,
//! without running any of its code.
//!
//! ```text
//! # Acme's normalizations
//! name = acme
//! library = libacme_nvte.so
//! abi = 0
//! option.threads = 4
//! ```

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The ending of a manifest's name.
pub const ENDING: &str = "nvtex";

const MOST_BYTES: u64 = 64 * 1024;

#[derive(Debug, PartialEq, Eq)]
pub struct Manifest {
    pub name: String,
    pub library: PathBuf,
    /// The major version of the plugin ABI that the library speaks, if it is said.
    pub abi: Option<u32>,
    pub options: BTreeMap<String, String>,
    /// Keys that mean nothing to this version.
    pub unknown: Vec<String>,
}

impl Manifest {
    /// Reads a manifest. Errors do not name the file.
    pub fn read(path: &Path) -> Result<Self, String> {
        let mut bytes = Vec::new();
        let file = File::open(path).map_err(|error| error.to_string())?;
        file.take(MOST_BYTES + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
        if bytes.len() as u64 > MOST_BYTES {
            return Err(format!("expected at most {MOST_BYTES} bytes"));
        }
        let text = String::from_utf8(bytes).map_err(|_| "expected a text in UTF-8")?;
        Self::parse(&text, path.parent().unwrap_or(Path::new("/")))
    }

    /// Parses the text of a manifest that lies in `folder`.
    fn parse(text: &str, folder: &Path) -> Result<Self, String> {
        let (mut name, mut library, mut abi) = (None, None, None);
        let (mut options, mut unknown) = (BTreeMap::new(), Vec::new());
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let wrong = |what: &str| format!("line {number}: {what}, got {line:?}");
            let (key, value) =
                line.split_once('=').ok_or_else(|| wrong("expected `key = value`"))?;
            let (key, value) = (key.trim(), value.trim());
            if key.is_empty() || value.contains('\0') {
                return Err(wrong("expected `key = value`"));
            }
            let repeated = match key {
                "name" => name.replace(plugin_name(value).map_err(|why| wrong(&why))?).is_some(),
                "library" => {
                    library.replace(path(value, folder).map_err(|why| wrong(&why))?).is_some()
                }
                "abi" => {
                    // A minor version may follow; what it means to the library, the library says itself.
                    let major = value.split('.').next().unwrap_or_default();
                    let major = major.parse().map_err(|_| wrong("expected a version"))?;
                    abi.replace(major).is_some()
                }
                _ => match key.strip_prefix("option.") {
                    Some(option) if !option.is_empty() => {
                        options.insert(option.to_owned(), value.to_owned()).is_some()
                    }
                    _ => {
                        unknown.push(key.to_owned());
                        false
                    }
                },
            };
            if repeated {
                return Err(wrong("a key that was given before"));
            }
        }
        let name = name.ok_or("no line `name = NAME`")?;
        let library = library.ok_or("no line `library = FILE`")?;
        Ok(Self { name, library, abi, options, unknown })
    }
}

/// A name of a plugin: it appears in messages and in the names of variables.
pub fn plugin_name(text: &str) -> Result<String, String> {
    let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "._-".contains(c);
    let begins = text.starts_with(|c: char| c.is_ascii_lowercase());
    match begins && text.len() <= 63 && text.chars().all(good) {
        // `NVTE_OP_PLUGIN_PATH` is a variable of its own.
        true if text != "path" && text != "none" => Ok(text.to_owned()),
        true => Err(format!("a plugin's name other than {text:?}, which is reserved")),
        false => Err(
            "expected a name of at most 63 of a-z, 0-9, `.`, `_` and `-`, the first one a letter"
                .into(),
        ),
    }
}

/// The file that a manifest in `folder` names.
fn path(text: &str, folder: &Path) -> Result<PathBuf, String> {
    match text {
        _ if text.starts_with('/') => Ok(text.into()),
        "" | "." | ".." => Err("expected the name of a file".into()),
        _ if text.contains('/') => {
            Err("expected an absolute path, or the name of a file beside the manifest".into())
        }
        _ => Ok(folder.join(text)),
    }
}

#[cfg(test)]
mod tests {
    use super::{Manifest, plugin_name};
    use std::path::Path;

    fn parse(text: &str) -> Result<Manifest, String> {
        Manifest::parse(text, Path::new("/opt/acme"))
    }

    #[test]
    fn reads_manifests() {
        let text = "# Acme\r\n name=acme\nlibrary = libacme.so\n\nabi = 0.3\ncolour = red\n\
                    option.mode = a = b\noption.empty =\n";
        let manifest = parse(text).expect("a manifest");
        assert_eq!(manifest.name, "acme");
        assert_eq!(manifest.library, Path::new("/opt/acme/libacme.so"));
        assert_eq!(manifest.abi, Some(0));
        assert_eq!(manifest.unknown, ["colour"]);
        let options: Vec<_> = manifest.options.iter().collect();
        assert_eq!(options.len(), 2);
        assert_eq!(manifest.options["mode"], "a = b");
        assert_eq!(manifest.options["empty"], "");
        let absolute = parse("name = acme\nlibrary = /usr/lib/libacme.so").expect("a manifest");
        assert_eq!(absolute.library, Path::new("/usr/lib/libacme.so"));
        assert_eq!(absolute.abi, None);
    }

    #[test]
    fn refuses_wrong_manifests() {
        let cases = [
            ("", "no line `name = NAME`"),
            ("name = acme", "no line `library = FILE`"),
            ("name = acme\nlibrary", "line 2: expected `key = value`"),
            ("= acme", "line 1: expected `key = value`"),
            ("name = acme\nname = acme", "line 2: a key that was given before"),
            ("option.a = 1\noption.a = 1", "line 2: a key that was given before"),
            ("name = acme\nlibrary = ../libacme.so", "an absolute path"),
            ("name = acme\nlibrary = sub/libacme.so", "an absolute path"),
            ("name = acme\nlibrary = ..", "the name of a file"),
            ("name = acme\nlibrary =", "the name of a file"),
            ("name = Acme", "expected a name"),
            ("name =", "expected a name"),
            ("name = path", "reserved"),
            ("abi = new", "line 1: expected a version"),
            ("abi = -1", "line 1: expected a version"),
        ];
        for (text, expected) in cases {
            let error = parse(text).expect_err(text);
            assert!(error.contains(expected), "{text:?}: {error}");
        }
    }

    #[test]
    fn knows_names() {
        assert!(plugin_name(&"a".repeat(63)).is_ok());
        assert!(plugin_name(&"a".repeat(64)).is_err());
        assert!(plugin_name("acme-2.x_y").is_ok());
        for wrong in ["", "2a", "a b", "a/b", "ä", ".a", "none"] {
            assert!(plugin_name(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn limits_the_size() {
        let path = std::env::temp_dir().join(format!("nvte-manifest-{}", std::process::id()));
        let text = "name = acme\nlibrary = a.so\n";
        let fill = |bytes: usize| format!("{text}#{}", "-".repeat(bytes - text.len() - 1));
        let read = |text: String| {
            std::fs::write(&path, text).expect("a file");
            Manifest::read(&path)
        };
        assert!(read(fill(64 * 1024)).is_ok());
        assert!(read(fill(64 * 1024 + 1)).expect_err("too long").contains("at most 65536 bytes"));
        std::fs::write(&path, [0xFF, 0xFE]).expect("a file");
        assert!(Manifest::read(&path).expect_err("no text").contains("UTF-8"));
        std::fs::remove_file(&path).expect("the file");
        assert!(Manifest::read(&path).expect_err("no file").contains("No such file"));
    }
}
