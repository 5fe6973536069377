// nvtex-conform: judges a plugin. See docs/plugins.md; exit status 0: it passes, 1: it does not, 2:
// it cannot be loaded.
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE

#include <limits.h>

#include "nvte/conform.h"

static const char kUsage[] =
    "usage: nvtex-conform PLUGIN [options]\n"
    "PLUGIN is a library or a manifest (NAME.nvtex), or `built-in` for what the library itself "
    "has.\n"
    "  --op NAME               only this operator or variant\n"
    "  --cases smoke|ci|full   20, 100 or 1000 cases of each variant; ci if not given\n"
    "  --seed N                of the random cases; 1 if not given\n"
    "  --case N                only this one of them\n"
    "  --isolate               a process for each variant, so that a crash is one failure\n"
    "  --json                  one line of JSON for each variant\n"
    "  --list                  say what would be judged\n";

static int usage(const char *why, const char *what) {
  fprintf(stderr, "nvtex-conform: %s%s\n%s", why, what, kUsage);
  return 2;
}

static bool number(const char *text, unsigned long long *value) {
  char *end;
  *value = strtoull(text, &end, 10);
  return *text >= '0' && *text <= '9' && *end == 0;
}

int main(int argc, char **argv) {
  NVTEXConformOptions options = {.cases = 100, .seed = 1, .only = -1, .out = stdout};
  const char *path = NULL;
  bool list = false;
  for (int i = 1; i < argc; i++) {
    const char *word = argv[i], *value = i + 1 < argc ? argv[i + 1] : "";
    unsigned long long n;
    if (strcmp(word, "--help") == 0) {
      fputs(kUsage, stdout);
      return 0;
    } else if (strcmp(word, "--isolate") == 0) {
      options.isolate = true;
    } else if (strcmp(word, "--json") == 0) {
      options.json = true;
    } else if (strcmp(word, "--list") == 0) {
      list = true;
    } else if (strcmp(word, "--op") == 0) {
      options.op = argv[++i];
      if (!options.op) return usage("--op: expected a name", "");
    } else if (strcmp(word, "--cases") == 0) {
      options.cases = strcmp(value, "smoke") == 0  ? 20
                      : strcmp(value, "ci") == 0   ? 100
                      : strcmp(value, "full") == 0 ? 1000
                                                   : 0;
      if (!options.cases) return usage("--cases: expected smoke, ci or full, got ", value);
      i++;
    } else if (strcmp(word, "--seed") == 0 || strcmp(word, "--case") == 0) {
      if (!number(value, &n) || n > LONG_MAX) return usage("expected a number after ", word);
      if (word[2] == 's') options.seed = n;
      if (word[2] == 'c') options.only = (long)n;
      i++;
    } else if (word[0] == '-' || path) {
      return usage("unknown argument ", word);
    } else {
      path = word;
    }
  }
  if (!path) return usage("no plugin", "");

  // Calls that are declined belong to the tests and print nothing, and the plugin is the only one.
  setenv("NVTE_VERBOSE", "none", 0);
  setenv("NVTE_OP_PLUGINS", "none", 1);
  char absolute[PATH_MAX] = "built-in", repeat[PATH_MAX + 32];
  const bool own = strcmp(path, absolute) == 0;
  if (!own && !realpath(path, absolute)) {
    perror(path);
    return 2;
  }
  snprintf(repeat, sizeof repeat, "nvtex-conform %s", absolute);
  options.repeat = repeat;
  if (!own && !nvtex_plugin_load(absolute)) {
    fprintf(stderr, "%s\n", nvtex_last_error());
    return 2;
  }
  NVTEXPluginInfo info = {.struct_size = sizeof info};
  if (!own && !nvtex_plugin_info(nvtex_plugin_count() - 1, &info)) return 2;
  options.plugin = own ? NULL : info.name;
  if (!own && !options.json) {
    printf("%s %s of %s, %s\n", info.name, info.version, info.vendor, info.path);
    if (info.notes[0]) printf("left out:\n%s\n", info.notes);
  }
  if (list) {
    nvtex_conform_list(&options);
    return 0;
  }
  const unsigned failures = nvtex_conform(&options);
  if (!options.json) printf("%s\n", failures ? "does not conform" : "conforms");
  return failures ? 1 : 0;
}
