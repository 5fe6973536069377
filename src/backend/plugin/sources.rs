//! Which plugins the environment asks for, and in which order.

use super::manifest::{ENDING, plugin_name};
use crate::env::env;
use std::fs;
use std::path::{Path, PathBuf};

/// A plugin to load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// A manifest, by its ending, or a library.
    pub path: PathBuf,
    /// What the user wrote, if the plugin was named and not found in a folder.
    pub named: Option<String>,
    /// Whether operators must fail if it does not load.
    pub required: bool,
}

/// What discovery found; the errors are for the log.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Sources {
    pub plugins: Vec<Source>,
    pub warnings: Vec<String>,
}

/// The folder of the system. A build may choose another place than `/etc` with `NVTE_SYSCONFDIR`.
fn system_folder() -> PathBuf {
    Path::new(option_env!("NVTE_SYSCONFDIR").unwrap_or("/etc")).join("nvte/plugins.d")
}

/// The plugins of the environment, in the order in which they are loaded: those that are named, then the manifests
/// of the folders.
pub fn sources() -> Result<Sources, String> {
    let mut folders = env().op_plugin_path.clone();
    folders.push(system_folder());
    find(&env().op_plugins, &folders)
}

fn find(list: &str, folders: &[PathBuf]) -> Result<Sources, String> {
    let mut found = Sources::default();
    if list == "none" {
        return Ok(found);
    }
    if !list.is_empty() {
        for piece in list.split(',') {
            found.plugins.extend(named(piece.trim(), list, folders)?);
        }
    }
    for (index, folder) in folders.iter().enumerate() {
        match manifests(folder) {
            Ok(paths) => {
                // A manifest that was also named is loaded once.
                let new =
                    paths.into_iter().filter(|path| found.plugins.iter().all(|p| p.path != *path));
                let source = |path| Source { path, named: None, required: false };
                let new: Vec<_> = new.map(source).collect();
                found.plugins.extend(new);
            }
            // The last one is the folder of the system, which most systems do not have.
            Err(_) if index + 1 == folders.len() => {}
            Err(why) => {
                let folder = folder.display();
                found.warnings.push(format!("NVTE_OP_PLUGIN_PATH: {folder}: {why}"));
            }
        }
    }
    Ok(found)
}

/// The plugin that a piece of `NVTE_OP_PLUGINS` names; none if it may be absent and is.
fn named(piece: &str, list: &str, folders: &[PathBuf]) -> Result<Option<Source>, String> {
    let (text, required) = match piece.strip_prefix('?') {
        Some(rest) => (rest, false),
        None => (piece, true),
    };
    let source = |path| Some(Source { path, named: Some(text.to_owned()), required });
    if text.starts_with('/') {
        return Ok(source(text.into()));
    }
    if plugin_name(text).is_err() {
        let expected =
            "absolute paths and names of plugins with commas between them, or `none` alone";
        return Err(format!("NVTE_OP_PLUGINS: expected {expected}, got {piece:?} in {list:?}"));
    }
    let file = format!("{text}.{ENDING}");
    let mut candidates =
        folders.iter().filter(|folder| folder.is_absolute()).map(|f| f.join(&file));
    match candidates.find(|path| path.symlink_metadata().is_ok()) {
        Some(path) => Ok(source(path)),
        None if !required => Ok(None),
        None => {
            let folders: Vec<_> = folders.iter().map(|f| f.display().to_string()).collect();
            let folders = folders.join(", ");
            Err(format!("NVTE_OP_PLUGINS: {text}: there is no {file} in any of {folders}"))
        }
    }
}

/// The manifests in a folder, sorted by the bytes of their names.
fn manifests(folder: &Path) -> Result<Vec<PathBuf>, String> {
    if !folder.is_absolute() {
        return Err("the path is not absolute".into());
    }
    let entries = fs::read_dir(folder).map_err(|error| error.to_string())?;
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let mut paths: Vec<_> =
        paths.filter(|path| path.extension().is_some_and(|ending| ending == ENDING)).collect();
    paths.sort();
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::{Source, Sources, find};
    use std::fs;
    use std::path::PathBuf;

    /// Two folders of manifests, which go when the test ends.
    struct Folders(PathBuf, [PathBuf; 2]);

    impl Folders {
        fn new(name: &str) -> Self {
            let root =
                std::env::temp_dir().join(format!("nvte-sources-{name}-{}", std::process::id()));
            let folders = ["one", "two"].map(|name| root.join(name));
            folders.iter().for_each(|folder| fs::create_dir_all(folder).expect("a folder"));
            for (folder, file) in [
                (0, "b.nvtex"),
                (0, "a.nvtex"),
                (0, "B.nvtex"),
                (0, "c.so"),
                (1, "a.nvtex"),
                (1, "z.nvtex"),
            ] {
                fs::write(folders[folder].join(file), "").expect("a file");
            }
            Self(root, folders)
        }

        fn find(&self, list: &str) -> Result<Sources, String> {
            find(list, &self.1)
        }

        fn path(&self, folder: usize, file: &str) -> PathBuf {
            self.1[folder].join(file)
        }
    }

    impl Drop for Folders {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn paths(sources: &Sources) -> Vec<PathBuf> {
        sources.plugins.iter().map(|plugin| plugin.path.clone()).collect()
    }

    #[test]
    fn reads_folders_in_order() {
        let folders = Folders::new("order");
        let found = folders.find("").expect("sources");
        let expected =
            [(0, "B.nvtex"), (0, "a.nvtex"), (0, "b.nvtex"), (1, "a.nvtex"), (1, "z.nvtex")];
        assert_eq!(paths(&found), expected.map(|(folder, file)| folders.path(folder, file)));
        assert!(found.plugins.iter().all(|plugin| !plugin.required && plugin.named.is_none()));
        assert!(found.warnings.is_empty());
    }

    #[test]
    fn named_plugins_come_first_and_once() {
        let folders = Folders::new("named");
        let found = folders.find("z, ?/opt/x.so,?missing,a").expect("sources");
        let source =
            |path, named: &str, required| Source { path, named: Some(named.into()), required };
        assert_eq!(found.plugins[0], source(folders.path(1, "z.nvtex"), "z", true));
        assert_eq!(found.plugins[1], source("/opt/x.so".into(), "/opt/x.so", false));
        assert_eq!(found.plugins[2], source(folders.path(0, "a.nvtex"), "a", true));
        let rest = [(0, "B.nvtex"), (0, "b.nvtex"), (1, "a.nvtex")];
        assert_eq!(paths(&found)[3..], rest.map(|(folder, file)| folders.path(folder, file)));
    }

    #[test]
    fn none_turns_everything_off() {
        assert_eq!(Folders::new("none").find("none"), Ok(Sources::default()));
    }

    #[test]
    fn refuses_wrong_lists() {
        let folders = Folders::new("wrong");
        for list in ["a,", ",a", "a,,b", "./a.so", "lib/a.so", "?", "none,a", "A", "a b", " "] {
            let error = folders.find(list).expect_err(list);
            assert!(
                error.contains("NVTE_OP_PLUGINS: expected absolute paths"),
                "{list:?}: {error}"
            );
        }
        let error = folders.find("nothing").expect_err("a missing plugin");
        assert!(error.contains("there is no nothing.nvtex in any of"), "{error}");
    }

    #[test]
    fn warns_of_wrong_folders() {
        let folders = Folders::new("folders");
        let list = [folders.0.join("missing"), "relative".into(), folders.1[1].clone()];
        let found = find("", &list).expect("sources");
        assert_eq!(paths(&found), [folders.path(1, "a.nvtex"), folders.path(1, "z.nvtex")]);
        assert_eq!(found.warnings.len(), 2);
        assert!(found.warnings[0].contains("No such file"), "{}", found.warnings[0]);
        assert!(found.warnings[1].contains("relative: the path is not absolute"));
        // The folder of the system, the last one, may be missing.
        assert_eq!(find("", &list[..1]), Ok(Sources::default()));
    }
}
