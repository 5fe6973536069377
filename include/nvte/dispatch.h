#ifndef NVTE_DISPATCH_H
#define NVTE_DISPATCH_H

/* Generated from the Rust sources by tests/abi.rs. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "nvte/types.h"
#include "nvte/plugin.h"

/**
 * What is known of a plugin. Texts live as long as the process; those that are not known are empty.
 */
typedef struct NVTEXPluginInfo {
  /**
   * The size of the struct, set by the caller: so many bytes of it are filled.
   */
  size_t struct_size;
  const char *name;
  const char *version;
  const char *vendor;
  /**
   * The library or manifest without symbolic links; empty for a plugin of the program.
   */
  const char *path;
  /**
   * Why the plugin was refused; null if it was loaded.
   */
  const char *refused;
  /**
   * Implementations and keys of the manifest that were left out, a line each with the reason.
   */
  const char *notes;
  /**
   * What it has registered.
   */
  size_t implementations;
  size_t domains;
} NVTEXPluginInfo;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Loads a plugin: a library, or a manifest that names one (by the ending `.nvtex`). All that it offers is registered,
 * or nothing.
 *
 * The path is absolute. The file and every folder on the way to it, those of symbolic links too, belong to root or
 * to the user as whom the process runs, and nobody else may write to them (sticky folders excepted), because the
 * library's code runs in this process. It stays loaded until the process ends.
 *
 * Plugins of the environment (`NVTE_OP_PLUGINS` and the folders) are loaded before. A plugin that is being loaded may
 * not call this function.
 *
 * Returns whether the plugin was loaded. Errors, with status unsupported: the file is not acceptable, is no plugin,
 * or of another version; a plugin of the same name is loaded; the plugin's own entry function failed; one of its
 * implementations is not valid.
 */
bool nvtex_plugin_load(const char *path);

/**
 * Registers a plugin whose entry function is part of the program, as `nvtex_plugin_load` does with that of a library.
 *
 * Returns whether the plugin was registered.
 */
bool nvtex_plugin_register(int32_t (*entry)(const NVTEXHost *host, NVTEXPlugin *plugin));

/**
 * Loads the plugins that the environment names and those of the system's folder, which the first operator would do.
 *
 * In this order: those of `NVTE_OP_PLUGINS` (with commas between them: absolute paths of libraries or manifests, and
 * names, which stand for `NAME.nvtex` in a folder below; `none` turns all off), then the manifests of the folders of
 * `NVTE_OP_PLUGIN_PATH` (with colons between them) and of `/etc/nvte/plugins.d`, in each sorted by name.
 *
 * Returns whether all plugins that `NVTE_OP_PLUGINS` names have been loaded, but for those with `?` before them.
 * Otherwise this function and every operator fail, with status unsupported and the reason. A plugin of a folder that
 * cannot be loaded is skipped, with a warning.
 */
bool nvtex_plugins_discover(void);

/**
 * Returns how many plugins have been loaded or refused in this process.
 */
size_t nvtex_plugin_count(void);

/**
 * Says what is known of a plugin, loaded or refused, by its place in the order of loading. Returns whether there is
 * one.
 *
 * Errors: no struct, or one whose size is not set.
 */
bool nvtex_plugin_info(size_t index,
                       struct NVTEXPluginInfo *info);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* NVTE_DISPATCH_H */
