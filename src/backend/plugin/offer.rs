//! What a plugin offers, from the first look at its file to the registration of all of it or nothing.
#![allow(unsafe_code)]

use super::host::{self, Staged};
use super::library::{self, Entry};
use super::manifest::{Manifest, plugin_name};
use super::text::{MOST_TEXT, read};
use super::{AfterFork, Record, name_is_free};
use crate::backend::args::plugin::{NVTEX_PLUGIN_ABI_MINOR, Plugin};
use crate::backend::registry::Transaction;
use crate::sized;
use std::ffi::{CString, c_char};
use std::fmt::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A plugin on its way into the registry.
#[derive(Default)]
pub struct Offer {
    /// The name that the manifest or the plugin gives; empty until then.
    pub name: String,
    pub path: PathBuf,
    pub manifest: Option<Manifest>,
    version: String,
    vendor: String,
    notes: String,
    implementations: usize,
    domains: usize,
    after_fork_child: Option<AfterFork>,
}

impl Offer {
    pub fn of(path: &Path) -> Self {
        Self { path: path.to_owned(), ..Self::default() }
    }

    /// Keeps a line for whoever asks why something is missing.
    pub fn note(&mut self, text: fmt::Arguments) {
        let _ = writeln!(self.notes, "{text}");
    }

    pub fn name_or_path(&self) -> String {
        match self.name.is_empty() {
            true => self.path.display().to_string(),
            false => self.name.clone(),
        }
    }

    /// Calls an entry function and registers everything that it offers, or nothing.
    pub fn take_from(&mut self, entry: Entry) -> Result<(), String> {
        // Larger than any version of the struct, so that a plugin that was built with a later one does not write
        // beyond it.
        let mut room = [0_usize; 128];
        room[0] = size_of::<Plugin>();
        let plugin: *mut Plugin = room.as_mut_ptr().cast();
        let staging = host::Staging::begin(plugin, self.manifest.as_ref());
        let answer = library::call(entry, staging.host(), plugin);
        let staged = staging.end();
        for note in &staged.notes {
            self.note(format_args!("{note}"));
        }
        // SAFETY: the struct has room for what the plugin wrote, and texts are still there.
        let described = unsafe { self.describe(plugin) };
        if let Some(why) = &staged.refused {
            return Err(why.clone());
        }
        answer?;
        described?;
        self.commit(staged)
    }

    /// Reads what the plugin says of itself.
    ///
    /// # Safety
    /// The struct has been filled by the entry function of a plugin.
    unsafe fn describe(&mut self, plugin: *const Plugin) -> Result<(), String> {
        // SAFETY: the caller's promise.
        let plugin = unsafe { sized::read("plugin", plugin) }?;
        let text = |field: &str, text: *const c_char| {
            // SAFETY: the texts of a plugin are C strings.
            let text = unsafe { read(field, text, MOST_TEXT) }?;
            text.ok_or_else(|| format!("{field}: expected a text, got null"))
        };
        let name = text("plugin.name", plugin.name)?;
        let name = plugin_name(&name).map_err(|why| format!("plugin.name: {why}, got {name:?}"))?;
        if let Some(manifest) = self.manifest.as_ref().filter(|manifest| manifest.name != name) {
            return Err(format!(
                "its manifest names it {:?}, and it names itself {name:?}",
                manifest.name
            ));
        }
        self.name = name;
        self.version = text("plugin.version", plugin.version)?;
        self.vendor = text("plugin.vendor", plugin.vendor)?;
        self.after_fork_child =
            plugin.after_fork_child.map(|hook| AfterFork { hook, user: plugin.user });
        if plugin.abi_minor > NVTEX_PLUGIN_ABI_MINOR {
            return Err(format!(
                "it needs minor version {} of the plugin ABI, and this library has {NVTEX_PLUGIN_ABI_MINOR}: a newer \
                 library is needed",
                plugin.abi_minor
            ));
        }
        match name_is_free(&self.name) {
            true => Ok(()),
            false => Err(format!("a plugin named {} is loaded already", self.name)),
        }
    }

    /// Registers all of it, or nothing.
    fn commit(&mut self, staged: Staged) -> Result<(), String> {
        let mut transaction = Transaction::new(&self.name, &self.version);
        for domain in &staged.domains {
            transaction.add_domain(&domain.name, &domain.given)?;
        }
        for one in &staged.implementations {
            let vendor = one.vendor.as_deref().unwrap_or(&self.vendor);
            transaction.add_impl(
                (one.op, one.variant),
                &one.id,
                vendor,
                &one.domain,
                &one.given,
            )?;
        }
        transaction.commit()?;
        (self.implementations, self.domains) = (staged.implementations.len(), staged.domains.len());
        Ok(())
    }

    /// What is kept of the plugin.
    pub fn record(&self, refused: Option<&String>) -> Record {
        let text = |text: &[u8]| {
            CString::new(text.iter().copied().filter(|byte| *byte != 0).collect::<Vec<_>>())
                .unwrap_or_default()
        };
        Record {
            name: text(self.name.as_bytes()),
            version: text(self.version.as_bytes()),
            vendor: text(self.vendor.as_bytes()),
            path: text(self.path.as_os_str().as_bytes()),
            refused: refused.map(|why| text(why.as_bytes())),
            notes: text(self.notes.trim_end().as_bytes()),
            implementations: self.implementations,
            domains: self.domains,
            after_fork_child: self.after_fork_child.filter(|_| refused.is_none()),
        }
    }
}
