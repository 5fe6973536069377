//! From where the library loads code: only from files that nobody but root and the user can replace.
#![allow(unsafe_code)]

use std::ffi::OsString;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

/// Whether the process has more privileges than the user who started it. Then what that user says must not
/// decide which code it runs.
pub fn privileged() -> bool {
    // SAFETY: these calls only return numbers.
    unsafe {
        libc::getauxval(libc::AT_SECURE) != 0
            || libc::getuid() != libc::geteuid()
            || libc::getgid() != libc::getegid()
    }
}

fn user() -> u32 {
    // SAFETY: the call only returns a number.
    unsafe { libc::geteuid() }
}

/// Why no library of CUDA may be loaded from a folder; none if it may. A folder of the user or of root
/// may be writable by its group.
pub fn folder(folder: &Path) -> Option<String> {
    if privileged() {
        return Some("the process has more privileges than the user who started it".into());
    }
    if !folder.is_absolute() {
        return Some("the path is not absolute".into());
    }
    let metadata = match folder.metadata() {
        Ok(metadata) => metadata,
        Err(error) => return Some(error.to_string()),
    };
    let writable = |bit| metadata.mode() & bit != 0;
    if writable(libc::S_IWOTH) {
        return Some("every user can write to it".into());
    }
    if writable(libc::S_IWGRP) && ![0, user()].contains(&metadata.uid()) {
        return Some("its group can write to it, and it belongs to another user".into());
    }
    None
}

/// As many symbolic links as the kernel follows in one path.
const MOST_LINKS: usize = 40;

/// The path of a regular file without symbolic links in it, or why somebody other than root and the
/// effective user could put another file there.
///
/// Every folder on the way is checked, also those of symbolic links.
pub fn file(path: &Path) -> Result<PathBuf, String> {
    if !path.is_absolute() {
        return Err(format!("{}: the path is not absolute", path.display()));
    }
    let mut links = 0;
    let mut reached = PathBuf::from("/");
    let mut metadata = inspect(&reached)?;
    // The parts that are still to be entered, the next one last.
    let mut rest = parts(path);
    while let Some(part) = rest.pop() {
        if !metadata.is_dir() {
            return Err(format!("{}: not a folder", reached.display()));
        }
        if part == ".." {
            reached.pop();
            metadata = inspect(&reached)?;
            continue;
        }
        let next = reached.join(&part);
        let found = next.symlink_metadata().map_err(|error| explain(&next, &error))?;
        if found.is_symlink() {
            links += 1;
            if links > MOST_LINKS {
                return Err(format!("{}: too many symbolic links", path.display()));
            }
            let target = next.read_link().map_err(|error| explain(&next, &error))?;
            if target.is_absolute() {
                reached = PathBuf::from("/");
                metadata = inspect(&reached)?;
            }
            rest.extend(parts(&target));
            continue;
        }
        reached = next;
        metadata = inspect(&reached)?;
    }
    match metadata.is_file() {
        true => Ok(reached),
        false => Err(format!("{}: not a regular file", reached.display())),
    }
}

/// The parts of a path, the last one first.
fn parts(path: &Path) -> Vec<OsString> {
    let part = |component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    };
    let mut parts: Vec<_> = path.components().filter_map(part).collect();
    parts.reverse();
    parts
}

/// What lies at a path that is no symbolic link, if others can neither change it nor, for a folder,
/// replace what is in it.
fn inspect(path: &Path) -> Result<Metadata, String> {
    let metadata = path.symlink_metadata().map_err(|error| explain(path, &error))?;
    match distrust(user(), &metadata) {
        None => Ok(metadata),
        Some(why) => Err(format!("{}: {why}", path.display())),
    }
}

fn distrust(user: u32, metadata: &Metadata) -> Option<String> {
    let owner = metadata.uid();
    if ![0, user].contains(&owner) {
        return Some(format!(
            "it belongs to user {owner}, expected user {user}, as whom the process runs, or root"
        ));
    }
    // In a sticky folder only an entry's owner can replace it, and every entry on the way is checked.
    if metadata.is_dir() && metadata.mode() & libc::S_ISVTX != 0 {
        return None;
    }
    let who = match (metadata.mode() & libc::S_IWGRP != 0, metadata.mode() & libc::S_IWOTH != 0) {
        (_, true) => "every user",
        (true, false) => "its group",
        (false, false) => return None,
    };
    Some(format!("{who} can write to it; chmod go-w makes it acceptable"))
}

fn explain(path: &Path, error: &io::Error) -> String {
    format!("{}: {error}", path.display())
}

#[cfg(test)]
mod tests {
    use super::file;
    use std::ffi::CString;
    use std::fs::{self, Permissions};
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::{Path, PathBuf};

    /// A folder of its own for each test, which goes when the test ends. It lies in the folder for temporary
    /// files, which is sticky and writable by all.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path =
                std::env::temp_dir().join(format!("nvte-trust-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir(&path).expect("a folder");
            mode(&path, 0o755);
            Self(path.canonicalize().expect("a path"))
        }

        fn folder(&self, name: &str, bits: u32) -> PathBuf {
            let path = self.0.join(name);
            fs::create_dir(&path).expect("a folder");
            mode(&path, bits);
            path
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn mode(path: &Path, bits: u32) {
        fs::set_permissions(path, Permissions::from_mode(bits)).expect("permissions");
    }

    fn plain(folder: &Path, bits: u32) -> PathBuf {
        let path = folder.join("file");
        fs::write(&path, "text").expect("a file");
        mode(&path, bits);
        path
    }

    fn refused(path: &Path, why: &str) {
        let error = file(path).expect_err(why);
        assert!(error.contains(why), "{error}");
    }

    #[test]
    fn accepts_own_files() {
        let folder = Folder::new("own");
        let path = plain(&folder.0, 0o644);
        assert_eq!(file(&path), Ok(path.clone()));
        // Also on a way round, and through links.
        let inner = folder.folder("inner", 0o755);
        assert_eq!(file(&inner.join("../file")), Ok(path.clone()));
        symlink("../file", inner.join("relative")).expect("a link");
        symlink(&path, inner.join("absolute")).expect("a link");
        symlink(&inner, folder.0.join("to inner")).expect("a link");
        assert_eq!(file(&folder.0.join("to inner/relative")), Ok(path.clone()));
        assert_eq!(file(&inner.join("absolute")), Ok(path));
    }

    #[test]
    fn refuses_what_is_no_file() {
        let folder = Folder::new("kinds");
        refused(Path::new("file"), "not absolute");
        refused(&folder.0, "not a regular file");
        refused(&folder.0.join("missing"), "No such file");
        let path = plain(&folder.0, 0o644);
        refused(&path.join("below"), "not a folder");
        let fifo = folder.0.join("fifo");
        let name = CString::new(fifo.as_os_str().as_bytes()).expect("a path");
        // SAFETY: the name is a C string.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        refused(&fifo, "not a regular file");
        symlink("loop", folder.0.join("loop")).expect("a link");
        refused(&folder.0.join("loop"), "too many symbolic links");
    }

    #[test]
    fn refuses_what_others_can_write() {
        let folder = Folder::new("write");
        let path = plain(&folder.0, 0o664);
        refused(&path, "its group can write to it");
        mode(&path, 0o646);
        refused(&path, "every user can write to it");
        for (name, bits) in [("group", 0o775), ("all", 0o757)] {
            let bad = folder.folder(name, bits);
            refused(&plain(&bad, 0o644), "can write to it");
            // Not even behind a link in a good folder, or on the way to a good file.
            let link = folder.0.join(format!("to {name}"));
            symlink(bad.join("file"), &link).expect("a link");
            refused(&link, "can write to it");
            mode(&path, 0o644);
            symlink(&path, bad.join("back")).expect("a link");
            refused(&bad.join("back"), "can write to it");
        }
        let sticky = folder.folder("sticky", 0o1777);
        let inside = plain(&sticky, 0o644);
        assert_eq!(file(&inside), Ok(inside));
    }

    #[test]
    fn refuses_files_of_other_users() {
        let folder = Folder::new("owner");
        let path = plain(&folder.0, 0o644);
        let name = CString::new(path.as_os_str().as_bytes()).expect("a path");
        // SAFETY: the name is a C string. Only root may give files away.
        if unsafe { libc::chown(name.as_ptr(), 1, 1) } == 0 {
            refused(&path, "belongs to user 1");
        } else {
            let own = fs::metadata(&path).expect("metadata");
            let why = super::distrust(super::user() + 1, &own).expect("a reason");
            assert!(why.contains("belongs to user"), "{why}");
        }
    }
}
