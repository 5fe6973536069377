#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE
#include "cases.h"

// The choices of the case that is being made.
static Recipe *g_recipe;
static size_t g_chosen, g_given;

static size_t choose(size_t drawn, size_t least, size_t most) {
  if (!g_recipe || g_chosen == MOST_CHOICES) return drawn;
  Choice *choice = &g_recipe->choices[g_chosen];
  // A given choice that is out of range belongs to another number.
  const bool given = g_chosen < g_given && choice->value >= least && choice->value <= most;
  *choice = (Choice){least, most, given ? choice->value : drawn};
  g_chosen++;
  return choice->value;
}

#define CONFORM_CHOOSE(drawn, least, most) choose((drawn), (least), (most))
#include "nvte/conform.h"

struct Case {
  ConformCase c;
};

struct CaseRun {
  ConformRun run;
  const Case *of;
};

Case *case_make(Recipe *recipe) {
  const ConformGenerator *generator = conform_generator(recipe->op);
  if (!generator || conform_unreachable(recipe->variant)) return NULL;
  Case *made = conform_alloc(sizeof *made);
  made->c.index = (size_t)recipe->index;
  ConformRandom random = {recipe->seed * 0x100000001B3u + recipe->index};
  for (const char *p = recipe->variant; *p; p++) {
    random.state = (random.state ^ (unsigned char)*p) * 0x100000001B3u;
  }
  const char *dot = strchr(recipe->variant, '.');
  g_recipe = recipe;
  g_given = recipe->num_choices;
  g_chosen = 0;
  const bool known = generator->make(&made->c, &random, dot ? dot + 1 : "", made->c.index);
  recipe->num_choices = g_chosen;
  g_recipe = NULL;
  if (known) return made;
  case_free(made);
  return NULL;
}

void case_free(Case *c) {
  conform_free_case(&c->c);
  free(c);
}

const char *case_text(const Case *c) { return c->c.what; }

size_t case_bytes(const Case *c) {
  size_t bytes = 0;
  for (int i = 0; i < c->c.num_buffers; i++) bytes += c->c.buffers[i].bytes;
  return bytes;
}

CaseRun *run_begin(const Case *c) {
  CaseRun *run = conform_alloc(sizeof *run);
  run->of = c;
  conform_begin(&run->run, &c->c, NULL);
  return run;
}

void run_call(CaseRun *run) { run->of->c.call(&run->of->c, &run->run); }

void run_fetch(CaseRun *run) { conform_fetch(&run->run); }

void run_free(CaseRun *run) {
  conform_end(&run->run);
  conform_finish(&run->run);
  free(run);
}

int run_status(const CaseRun *run, const char **text) {
  *text = run->run.error;
  return (int)run->run.status;
}

size_t run_buffers(const CaseRun *run, RunBuffer buffers[MOST_BUFFERS]) {
  _Static_assert((int)MOST_BUFFERS == (int)CONFORM_BUFFERS, "as many as the kit has");
  const ConformCase *c = &run->of->c;
  for (int i = 0; i < c->num_buffers; i++) {
    const ConformBuffer *b = &c->buffers[i];
    buffers[i] = (RunBuffer){.name = b->name,
                             .image = b->image,
                             .base = run->run.base[i],
                             .bytes = b->bytes,
                             .lead = CONFORM_GUARD + b->shift,
                             .element = conform_size(b->dtype),
                             .output = b->role == CONFORM_OUTPUT || b->role == CONFORM_EXACT};
  }
  return (size_t)c->num_buffers;
}

const unsigned char *run_result(const CaseRun *run, size_t buffer) {
  return conform_data(&run->run, (int)buffer);
}

void run_compare(const CaseRun *first, const CaseRun *second, const Nearness *near, char *text,
                 size_t room, size_t *buffer, size_t *element, double *worst) {
  const ConformCase *c = &first->of->c;
  // The kit advises the vendor of a plugin in further lines.
  char *said = NULL;
  size_t length = 0;
  FILE *out = open_memstream(&said, &length);
  if (!out) abort();
  const NVTEXConformOptions options = {.out = out};
  ConformJudge judge;
  memset(&judge, 0, sizeof judge);
  judge.options = &options;
  const NVTEXImplInfo exact = {.numerics = NVTEX_NUMERICS_BITS},
                      promised = {
                          .numerics = near->numerics, .rtol = near->rtol, .atol = near->atol};
  *text = 0;
  *buffer = *element = 0;
  bool good = conform_check_memory(&judge, &second->run, false);
  for (int i = 0; good && i < c->num_buffers; i++) {
    const ConformRole role = c->buffers[i].role;
    if (role == CONFORM_INPUT || role == CONFORM_SCRATCH) continue;
    judge.impl = near->same_bits ? exact : promised;
    good = conform_check_output(&judge, &second->run, &first->run, i);
    judge.impl = promised;
    good = good && conform_check_expected(&judge, &second->run, i, "");
    if (good) continue;
    *buffer = (size_t)i;
    const char *at = strchr(judge.failure, '[');
    if (at) *element = (size_t)strtoull(at + 1, NULL, 10);
  }
  *worst = judge.worst;
  fclose(out);
  const char *begin = said ? strstr(said, "FAILED: ") : NULL;
  if (!good)
    snprintf(text, room, "%.*s", begin ? (int)strcspn(begin + 8, "\n") : 7,
             begin ? begin + 8 : "differs");
  free(said);
}
