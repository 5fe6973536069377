// nvtex-info: what this installation has and would run: versions, domains with their devices, the
// policy, plugins loaded and refused, operators with their variants and implementations. Exit
// status 0; 1 if plugins that the environment asks for cannot be loaded or the policy is wrong, and
// then with the reason; 2 for a wrong option.
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "nvte/dispatch.h"
#include "nvte/nvtex.h"

static const char kUsage[] =
    "usage: nvtex-info [options]\n"
    "  --op NAME  an operator (softmax) or a variant (softmax.causal_forward), with all that is "
    "known of it\n"
    "  --all      the same for every operator\n";

// What a call that has failed says.
static int failed(void) {
  fprintf(stderr, "nvtex-info: %s\n", nvtex_last_error());
  nvtex_clear_error();
  return 1;
}

static void say_nothing(int32_t level, const char *text, void *user) {
  (void)level, (void)text, (void)user;
}

static const char *or_none(const char *text) { return text && *text ? text : "none"; }

static void print_flags(const char *head, uint64_t flags, const char *const *names) {
  const char *between = head;
  for (int bit = 0; names[bit]; bit++) {
    if (!(flags >> bit & 1)) continue;
    printf("%s%s", between, names[bit]);
    between = " ";
  }
}

static int print_backend(void) {
  const char *backend = nvtex_backend_name();
  if (!backend) return failed();
  printf("backend: %s\n", backend);
  return 0;
}

static int print_policy(void) {
  NVTEXPolicy policy = nvtex_policy_current();
  const char *text = policy ? nvtex_policy_text(policy) : NULL;
  if (text) printf("policy: %s\n", *text ? text : "the defaults");
  nvtex_policy_destroy(policy);
  if (!text) return failed();
  const uint64_t fingerprint = nvtex_dispatch_fingerprint();
  if (nvtex_last_status() != NVTEX_OK) return failed();
  printf("fingerprint: %016" PRIx64 "\n", fingerprint);
  return 0;
}

static int print_domains(void) {
  static const char *const kFlags[] = {"host_accessible", "async", NULL};
  int status = 0;
  printf("domains:\n");
  for (size_t i = 0, n = nvtex_domain_count(); i < n; i++) {
    NVTEXDomainInfo info = {.struct_size = sizeof info};
    if (!nvtex_domain_info(i, &info)) {
      status = failed();
      continue;
    }
    printf("  %s: ", info.name);
    if (info.unusable) {
      printf("cannot be used: %s\n", info.unusable);
      continue;
    }
    printf("%d device%s", info.devices, info.devices == 1 ? "" : "s");
    if (info.arch) printf(", architecture %" PRIu32, info.arch);
    printf(", multiprocessors %d", info.multiprocessors);
    print_flags(", ", info.flags, kFlags);
    printf("\n");
  }
  return status;
}

// The lines of a text, each after a head.
static void print_lines(const char *head, const char *text) {
  while (text && *text) {
    const int length = (int)strcspn(text, "\n");
    printf("%s%.*s\n", head, length, text);
    text += length;
    text += *text == '\n';
  }
}

static int print_plugins(void) {
  const size_t n = nvtex_plugin_count();
  int status = 0;
  printf("plugins:%s\n", n ? "" : " none");
  for (size_t i = 0; i < n; i++) {
    NVTEXPluginInfo info = {.struct_size = sizeof info};
    if (!nvtex_plugin_info(i, &info)) {
      status = failed();
      continue;
    }
    const char *path = info.path && *info.path ? info.path : "the program";
    if (info.refused) {
      printf("  %s from %s: refused: %s\n", or_none(info.name), path, info.refused);
    } else {
      printf("  %s %s of %s from %s: loaded: %zu implementations, %zu domains\n",
             or_none(info.name), or_none(info.version), or_none(info.vendor), path,
             info.implementations, info.domains);
    }
    print_lines("    ", info.notes);
  }
  return status;
}

static const char *kind_of(uint32_t kind) {
  return kind == NVTEX_KIND_DEFAULT  ? "default"
         : kind == NVTEX_KIND_VENDOR ? "vendor"
                                     : "reference";
}

static void print_implementation(const NVTEXImplInfo *one, const NVTEXOpInfo *op) {
  static const char *const kNumerics[] = {"bits", "rounded", "order", "approx"};
  static const char *const kFlags[] = {"capturable", "deterministic", "fork_safe",
                                       "batch_invariant", NULL};
  printf("    %s for %s: domain %s, vendor %s, kind %s, priority %" PRId32 ", numerics %s", one->id,
         one->name, one->domain, or_none(one->vendor), kind_of(one->kind), one->priority,
         one->numerics < 4 ? kNumerics[one->numerics] : "?");
  if (one->numerics == NVTEX_NUMERICS_APPROX) printf(" (%g, %g)", one->rtol, one->atol);
  print_flags(", ", one->flags, kFlags);
  printf(", of %s %s\n", one->plugin ? one->plugin : "the library", or_none(one->version));
  // The library's own understand all features and have no such limits.
  if (!one->plugin) return;
  if (one->min_arch || one->max_arch) {
    printf("      architectures from %" PRIu32 " to %" PRIu32 " (0: any)\n", one->min_arch,
           one->max_arch);
  }
  if (one->dtypes) printf("      dtypes (bits) 0x%" PRIx64 "\n", one->dtypes);
  if (one->modes) printf("      scaling modes (bits) 0x%" PRIx32 "\n", one->modes);
  printf("      features:");
  for (size_t bit = 0; bit < op->feature_count; bit++) {
    if (one->features >> bit & 1) printf(" %s", op->features[bit]);
  }
  printf("%s\n", one->features ? "" : " none");
}

// Whether an implementation is one of the operator, or of the variant, that is asked for.
static bool concerns(const NVTEXImplInfo *one, const NVTEXOpInfo *op, const char *variant) {
  return one->op == op->op &&
         (!variant || strcmp(one->name, op->name) == 0 || strcmp(one->name, variant) == 0);
}

// An operator in one line, or with all that is known of it.
static void print_operator(const NVTEXOpInfo *op, const char *variant, bool all) {
  printf("  %s %" PRIu32 ".%" PRIu32, op->name, op->version >> 16, op->version & 0xffff);
  if (op->variant_count > 1) printf(", %zu variants", op->variant_count);
  printf(":");
  if (all) {
    printf("\n    arguments of %zu bytes\n    variants:", op->args_size);
    for (size_t i = 0; i < op->variant_count; i++) {
      if (!variant || strcmp(op->variants[i], variant) == 0) printf(" %s", op->variants[i]);
    }
    printf("\n    features:");
    for (size_t i = 0; i < op->feature_count; i++) printf(" %s", op->features[i]);
    printf("%s\n", op->feature_count ? "" : " none");
  }
  for (size_t i = 0, n = nvtex_impl_count(); i < n; i++) {
    NVTEXImplInfo one = {.struct_size = sizeof one};
    if (!nvtex_impl_info(i, &one) || !concerns(&one, op, variant)) continue;
    if (all) {
      print_implementation(&one, op);
    } else {
      printf(" %s", one.id);
      if (strcmp(one.name, op->name) != 0) printf("(%s)", one.name + strlen(op->name) + 1);
    }
  }
  if (!all) printf("\n");
}

// Whether `name` is the operator or one of its variants; the latter goes to `variant`.
static bool names(const NVTEXOpInfo *op, const char *name, const char **variant) {
  *variant = NULL;
  if (strcmp(op->name, name) == 0) return true;
  for (size_t i = 0; i < op->variant_count; i++) {
    if (strcmp(op->variants[i], name) != 0) continue;
    *variant = op->variants[i];
    return true;
  }
  return false;
}

static int print_operators(const char *name, bool all) {
  bool found = false;
  printf("operators:\n");
  for (size_t i = 0, n = nvtex_op_count(); i < n; i++) {
    const NVTEXOpInfo *op = nvtex_op_info((uint32_t)i);
    const char *variant = NULL;
    if (name && !names(op, name, &variant)) continue;
    print_operator(op, variant, all || name);
    found = true;
  }
  if (found) return 0;
  fprintf(stderr, "nvtex-info: --op: expected an operator or a variant, got %s\n", name);
  return 2;
}

int main(int argc, char **argv) {
  const char *name = NULL;
  bool all = false;
  for (int i = 1; i < argc; i++) {
    if (strcmp(argv[i], "--help") == 0) {
      fputs(kUsage, stdout);
      return 0;
    } else if (strcmp(argv[i], "--all") == 0) {
      all = true;
    } else if (strcmp(argv[i], "--op") == 0 && i + 1 < argc) {
      name = argv[++i];
    } else {
      fprintf(stderr, "nvtex-info: unknown option %s\n%s", argv[i], kUsage);
      return 2;
    }
  }
  // Failures are printed here, once.
  nvtex_set_log(say_nothing, NVTEX_LOG_NONE, NULL);
  nvtex_set_error_mode(NVTEX_ERROR_RETURN);
  printf("nvte %s, interface of plugins %d.%d\n", nvtex_version(), NVTEX_PLUGIN_ABI_MAJOR,
         NVTEX_PLUGIN_ABI_MINOR);
  // Without its plugins the process has no backend either.
  int status = nvtex_plugins_discover() ? print_backend() : failed();
  if (print_policy() != 0) status = 1;
  if (print_domains() != 0) status = 1;
  if (print_plugins() != 0) status = 1;
  const int operators = print_operators(name, all);
  return operators ? operators : status;
}
