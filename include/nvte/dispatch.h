#ifndef NVTE_DISPATCH_H
#define NVTE_DISPATCH_H

/* Generated from the Rust sources by tests/abi.rs. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "nvte/types.h"
#include "nvte/plugin.h"

/**
 * What a handle of a policy points to. Only the library knows what it is.
 */
typedef struct NVTEXPolicy_st NVTEXPolicy_st;

/**
 * What is known of an implementation. Texts live as long as the process.
 */
typedef struct NVTEXImplInfo {
  /**
   * The size of the struct, set by the caller: so many bytes of it are filled.
   */
  size_t struct_size;
  /**
   * Number of the operator.
   */
  uint32_t op;
  /**
   * NVTEX_KIND_DEFAULT, NVTEX_KIND_VENDOR or NVTEX_KIND_REFERENCE.
   */
  uint32_t kind;
  /**
   * The operator or the variant that it was registered for: `softmax`, `softmax.causal_forward`.
   */
  const char *name;
  const char *id;
  /**
   * Null if it names none.
   */
  const char *vendor;
  const char *domain;
  /**
   * The plugin that has registered it; null for the library's own.
   */
  const char *plugin;
  /**
   * The version of the plugin, or of the library.
   */
  const char *version;
  /**
   * As the fields of NVTEXImpl.
   */
  int32_t priority;
  uint32_t min_arch;
  uint32_t max_arch;
  uint32_t modes;
  uint64_t dtypes;
  uint64_t features;
  uint32_t flags;
  uint32_t numerics;
  float rtol;
  float atol;
} NVTEXImplInfo;

/**
 * What calls of an implementation came to.
 */
typedef struct NVTEXImplCounters {
  /**
   * The size of the struct, set by the caller: so many bytes of it are filled.
   */
  size_t struct_size;
  /**
   * Calls that it has run.
   */
  uint64_t calls;
  /**
   * Calls that it was asked to run, and declined.
   */
  uint64_t declined;
  /**
   * Calls in which it failed; counted also while counters are off.
   */
  uint64_t failed;
  /**
   * Time of the host in the calls that it has run, with the search for it, in nanoseconds.
   */
  uint64_t host_ns;
} NVTEXImplCounters;

/**
 * Handle of a policy.
 */
typedef struct NVTEXPolicy_st *NVTEXPolicy;

/**
 * An implementation that does not run a call.
 */
typedef struct NVTEXRefusal {
  const char *id;
  /**
   * Why it would not run the call; null if it would be asked next.
   */
  const char *reason;
} NVTEXRefusal;

/**
 * What would become of a call of an operator. Valid until the callback returns.
 */
typedef struct NVTEXExplanation {
  size_t struct_size;
  /**
   * The variant: `softmax.causal_forward`.
   */
  const char *name;
  /**
   * The arguments as a text for people.
   */
  const char *arguments;
  /**
   * Id of the implementation that would be asked first to run the call; null if there is none.
   */
  const char *chosen;
  /**
   * All other implementations of the variant.
   */
  const struct NVTEXRefusal *others;
  size_t num_others;
} NVTEXExplanation;

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

/**
 * What is known of a domain.
 */
typedef struct NVTEXDomainInfo {
  /**
   * The size of the struct, set by the caller: so many bytes of it are filled.
   */
  size_t struct_size;
  /**
   * Lives as long as the process.
   */
  const char *name;
  /**
   * Why it cannot run in this process, valid until the thread asks for the next domain; null if it can.
   */
  const char *unusable;
  /**
   * NVTEX_DOMAIN_HOST_ACCESSIBLE, NVTEX_DOMAIN_ASYNC.
   */
  uint32_t flags;
  /**
   * Devices; 0 where it cannot run, or cannot tell.
   */
  int32_t devices;
  /**
   * Architecture of the current device, as `NVTEXImpl.min_arch` counts it; 0 where devices have none.
   */
  uint32_t arch;
  /**
   * Parts into which an operator may be divided on the current device so that all run at once.
   */
  int32_t multiprocessors;
} NVTEXDomainInfo;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Returns the number of operators. They are numbered from 0 on.
 */
size_t nvtex_op_count(void);

/**
 * Returns what is known of an operator: name, version of its arguments, variants, features. Null with an error for
 * a number that no operator has.
 */
const NVTEXOpInfo *nvtex_op_info(uint32_t op);

/**
 * Returns the number of implementations that are registered, of all operators. It loads the plugins that are
 * configured, if that has not been done.
 */
size_t nvtex_impl_count(void);

/**
 * Writes what is known of an implementation, and returns whether there is one of this index. An index stays with
 * its implementation; those that are registered later follow.
 */
bool nvtex_impl_info(size_t index,
                     struct NVTEXImplInfo *info);

/**
 * Writes what calls of an implementation came to since counters were turned on, and returns whether there is one of
 * this index.
 */
bool nvtex_impl_counters(size_t index,
                         struct NVTEXImplCounters *counters);

/**
 * Turns counters of implementations on or off, for the process, and returns whether they were on. Those of all
 * implementations become 0 when they are turned on.
 */
bool nvtex_dispatch_counters(bool on);

/**
 * Turns checks of what plugins promise on or off, for the process, and returns whether they were on. A plugin then
 * fails the call in which its `supports` or `needs` answers otherwise when NVTEX_CALL_QUERY is set than when it is not,
 * or in which it writes behind its scratch memory, where that is the host's. Each call asks twice, so that this is for
 * tests; `nvtex-conform` does it.
 */
bool nvtex_dispatch_check(bool on);

/**
 * Returns the id of the implementation that has last run a variant (`softmax.causal_forward`; an operator without
 * variants by its own name) in this process; null if none has.
 *
 * Errors: no variant has the name.
 */
const char *nvtex_impl_last(const char *variant);

/**
 * Returns a number that each registration of a plugin raises.
 */
uint64_t nvtex_dispatch_generation(void);

/**
 * Returns 64 bits of the policy of the calling thread and of the operators, ids and versions of what is registered.
 * They are equal in processes where these are equal, whatever was loaded first and from where: ranks compare them.
 */
uint64_t nvtex_dispatch_fingerprint(void);

/**
 * Creates a policy: `base`, or the defaults if that is null, with the changes of a text.
 *
 * A policy says which implementations may run, and in which order they are asked. The text has pieces
 * `NAME=VALUE`, divided by semicolons; names and values are read without case:
 *
 * - `prefer=default|vendor|reference`: the kind that is asked first. The other two follow. (`flagos` is another
 *   word for `default`.) Of one kind, a higher priority comes first, and of one priority the lower id.
 * - `OPERATOR=WORD|WORD` (`gemm=vendor:acme|*`) or `VARIANT=WORD|WORD` (`softmax.causal_forward=impl:a.b`): the
 *   order for one operator or variant in place of `prefer`; `order=WORD|WORD` is for all that have none of their
 *   own. A word is `default`, `vendor`, `reference`, `vendor:NAME`, `impl:ID`, or `*` for all that are left. What no
 *   word stands for is not asked.
 * - `strict=1`: nothing but what the first word stands for runs. Where neither an order nor `prefer` is given, this is
 *   the first of the words default, vendor and reference that stands for anything.
 * - `allow_vendors=NAME,NAME`, `none` or `all`; `deny_vendors=NAME,NAME` or `none`: vendors whose implementations
 *   may run, and those whose may not. Denied beats allowed. They bind all implementations that name a vendor.
 * - `deterministic=1`: implementations that are not deterministic do not run, and attentions add in a fixed order, as
 *   with their own option of this name. That may change the size of their workspace.
 * - `domain=NAME`: the domain of calls, of memory and of streams; `domain=auto`: that of the process.
 *
 * Names of vendors, ids and domains need not exist when the policy is created.
 *
 * Errors: a piece that is not of this form, or names an operator that does not exist.
 */
NVTEXPolicy nvtex_policy_create(NVTEXPolicy base,
                                const char *changes);

/**
 * Creates a policy of what the variables `NVTE_PREFER`, `NVTE_STRICT`, `NVTE_OP_ORDER`, `NVTE_ALLOW_VENDORS` and
 * `NVTE_DENY_VENDORS` were at the first call. Their values are those of the pieces of `nvtex_policy_create`;
 * `NVTE_OP_ORDER` holds orders, divided by semicolons.
 *
 * Errors: a wrong value. It fails every operator, too, unless the program has set a policy of the process.
 */
NVTEXPolicy nvtex_policy_from_env(void);

/**
 * Creates a handle of the policy of the calling thread: the top of its stack, or else that of the process. Threads
 * do not inherit policies: push this one there.
 */
NVTEXPolicy nvtex_policy_current(void);

/**
 * Returns a text from which `nvtex_policy_create` makes the same policy. It lives as long as the process.
 */
const char *nvtex_policy_text(NVTEXPolicy policy);

/**
 * Destroys the handle of a policy. Where the policy is in use, it stays in use. Null is ignored.
 */
void nvtex_policy_destroy(NVTEXPolicy policy);

/**
 * Sets the policy of the process, null for that of the variables, and returns a handle of what was set before,
 * null if that was the policy of the variables.
 *
 * Whether an attention is supported, and the sizes that queries report, follow this policy, never that of a thread's
 * stack. What was captured in a graph stays as it is.
 */
NVTEXPolicy nvtex_policy_set(NVTEXPolicy policy);

/**
 * Puts a policy on the stack of the calling thread, whose calls follow it until `nvtex_policy_pop`. A tape keeps the
 * policy of its forward pass, and the backward pass follows that on any thread.
 *
 * Errors: 32 policies are on the stack.
 */
void nvtex_policy_push(NVTEXPolicy policy);

/**
 * Takes the last policy from the stack of the calling thread.
 *
 * Errors: there is none.
 */
void nvtex_policy_pop(void);

/**
 * Has operators of the calling thread explain themselves until `nvtex_explain_end`: functions of the library check
 * their arguments and choose implementations as ever, but what operators would write is not written. For each operator
 * `callback` gets what would run, what would not, and why. An implementation that would be asked may still decline
 * when it runs. A call that no implementation takes fails as it would otherwise.
 *
 * Functions that are no operators (memory, copies, streams) act as ever.
 *
 * Errors: operators of the thread explain themselves already; a null callback.
 */
void nvtex_explain_begin(void (*callback)(void *user, const struct NVTEXExplanation *explanation),
                         void *user);

/**
 * Has operators of the calling thread run again.
 *
 * Errors: they do not explain themselves.
 */
void nvtex_explain_end(void);

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

/**
 * Returns the number of domains, those of the library and of plugins. It loads the plugins that are configured, if
 * that has not been done.
 */
size_t nvtex_domain_count(void);

/**
 * Writes what is known of a domain, and returns whether there is one of this index. Devices are started for it: a
 * child that is forked afterwards cannot use those of CUDA.
 */
bool nvtex_domain_info(size_t index,
                       struct NVTEXDomainInfo *info);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* NVTE_DISPATCH_H */
