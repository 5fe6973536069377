// Grids: which ranks share what, by coordinates that are counted here, and grids of ready
// communicators.
#define _POSIX_C_SOURCE 200809L

#include <pthread.h>

#include "ranks.h"

enum { MOST = 12 };

typedef struct Sizes {
  size_t tp, cp, dp, pp, ep;
} Sizes;

static struct {
  Sizes sizes;
  int world;
  NVTEXCommunicator comms[MOST];
} g_run;

// Places of a rank: t, c, d, p, and those among the ranks of experts.
static void places_of(const Sizes *s, size_t rank, size_t place[6]) {
  size_t at = 0;
  for (size_t p = 0; p < s->pp; p++) {
    for (size_t d = 0; d < s->dp; d++) {
      for (size_t c = 0; c < s->cp; c++) {
        for (size_t t = 0; t < s->tp; t++, at++) {
          size_t share = d * s->cp + c;
          size_t all[6] = {t, c, d, p, share % s->ep, share / s->ep};
          if (at == rank) memcpy(place, all, sizeof all);
        }
      }
    }
  }
}

// What the members of each group have in common, of the places above.
static const bool kFixed[NVTEX_GRID_GROUPS][6] = {
    [NVTEX_GRID_TP] = {0, 1, 1, 1, 0, 0},         [NVTEX_GRID_CP] = {1, 0, 1, 1, 0, 0},
    [NVTEX_GRID_DP] = {1, 1, 0, 1, 0, 0},         [NVTEX_GRID_DP_CP] = {1, 0, 0, 1, 0, 0},
    [NVTEX_GRID_ALL_BUT_PP] = {0, 0, 0, 1, 0, 0}, [NVTEX_GRID_EP] = {1, 0, 0, 1, 0, 1},
    [NVTEX_GRID_EXPERT_DP] = {1, 0, 0, 1, 1, 0},  [NVTEX_GRID_PP] = {1, 1, 1, 0, 0, 0},
};

static void check_group(NVTEXGrid grid, int group, int rank) {
  NVTEXCommunicator comm = nvtex_grid_communicator(grid, (NVTEXGridGroup)group);
  RANK_OK(rank);
  size_t own[6] = {0}, count = 0, expected[MOST] = {0};
  places_of(&g_run.sizes, (size_t)rank, own);
  for (int other = 0; other < g_run.world; other++) {
    size_t place[6] = {0};
    places_of(&g_run.sizes, (size_t)other, place);
    bool member = true;
    for (int i = 0; i < 6; i++) member = member && (!kFixed[group][i] || place[i] == own[i]);
    if (member) expected[count++] = (size_t)other;
  }
  RANK_CHECK(nvtex_communicator_size(comm) == (int)count, "group %d of rank %d has %d, not %zu",
             group, rank, nvtex_communicator_size(comm), count);
  float mine = (float)rank, got[MOST] = {0};
  void *send = device_copy(&mine, sizeof mine), *recv = device_copy(got, sizeof got);
  nvtex_all_gather(comm, send, recv, 1, kNVTEFloat32, "ranks", NULL);
  RANK_OK(rank);
  nvtex_memcpy_to_host(got, recv, sizeof got, NULL);
  nvtex_stream_synchronize(NULL);
  for (size_t i = 0; i < count; i++) {
    RANK_CHECK(got[i] == (float)expected[i], "group %d of rank %d: place %zu is %g, not %zu", group,
               rank, i, got[i], expected[i]);
  }
  nvtex_free(send);
  nvtex_free(recv);
}

static void check_groups(NVTEXGrid grid, int rank) {
  for (int group = 0; group < NVTEX_GRID_GROUPS; group++) check_group(grid, group, rank);
}

static void *divide(void *argument) {
  int rank = (int)(intptr_t)argument;
  const Sizes *s = &g_run.sizes;
  NVTEXGridConfig config = {sizeof config, s->tp, s->cp, 0, s->pp, s->ep};
  NVTEXGrid grid = nvtex_grid_create(g_run.comms[rank], &config);
  RANK_OK(rank);
  check_groups(grid, rank);
  // The same grid of its own communicators; groups of one rank and copies of others are left out.
  NVTEXCommunicator own[NVTEX_GRID_GROUPS] = {0};
  for (int group = 0; group < NVTEX_GRID_GROUPS; group++) {
    NVTEXCommunicator one = nvtex_grid_communicator(grid, (NVTEXGridGroup)group);
    bool copy = (group == NVTEX_GRID_DP_CP && (s->cp == 1 || s->dp == 1)) ||
                (group == NVTEX_GRID_ALL_BUT_PP && (s->tp == 1 || s->cp * s->dp == 1)) ||
                (group == NVTEX_GRID_EXPERT_DP && s->ep == 1);
    if (nvtex_communicator_size(one) > 1 && !copy) own[group] = one;
  }
  NVTEXGrid again = nvtex_grid_create_from_communicators(own);
  RANK_OK(rank);
  check_groups(again, rank);
  nvtex_grid_destroy(again);
  if (s->tp * s->cp * s->dp > 1) {
    memset(own, 0, sizeof own);
    own[NVTEX_GRID_PP] = g_run.comms[rank];
    own[NVTEX_GRID_EP] = g_run.comms[rank];
    RANK_CHECK(!nvtex_grid_create_from_communicators(own), "rank %d: a grid", rank);
    RANK_ERROR(rank, "communicators[5]: expected ep, of a divisor of");
  }
  NVTEXContext context = nvtex_context_create(NULL);
  nvtex_context_set_grid(context, grid);
  RANK_OK(rank);
  nvtex_context_set_grid(context, grid);
  RANK_ERROR(rank, "context: expected a context without a grid");
  nvtex_grid_destroy(grid);
  RANK_OK(rank);
  nvtex_context_destroy(context);
  RANK_OK(rank);
  return NULL;
}

static void *refused(void *argument) {
  int rank = (int)(intptr_t)argument;
  NVTEXGridConfig config = {.struct_size = sizeof config, .tp = 3};
  RANK_CHECK(!nvtex_grid_create(g_run.comms[rank], &config), "rank %d: a grid", rank);
  RANK_ERROR(rank, "whose product is 4");
  config = (NVTEXGridConfig){.struct_size = sizeof config, .tp = 2, .ep = 4};
  RANK_CHECK(!nvtex_grid_create(g_run.comms[rank], &config), "rank %d: a grid", rank);
  RANK_ERROR(rank, "config.ep: expected a divisor of dp x cp (2), got 4");
  config = (NVTEXGridConfig){.struct_size = sizeof config, .tp = rank < 2 ? 2 : 4};
  RANK_CHECK(!nvtex_grid_create(g_run.comms[rank], &config), "rank %d: a grid", rank);
  RANK_ERROR(rank, "grid tp 4, cp 1, dp 1");
  return NULL;
}

static void run(Sizes sizes, void *(*body)(void *)) {
  g_run.sizes = sizes;
  g_run.world = (int)(sizes.tp * sizes.cp * sizes.dp * sizes.pp);
  NVTEXCommunicatorConfig config = communicator_config("world", 30);
  nvtex_stream_synchronize(NULL);
  nvtex_communicator_create_local(g_run.world, &config, g_run.comms);
  if (!EXPECT_OK()) return;
  pthread_t threads[MOST];
  for (int r = 0; r < g_run.world; r++) {
    if (pthread_create(&threads[r], NULL, body, (void *)(intptr_t)r)) abort();
  }
  for (int r = 0; r < g_run.world; r++) pthread_join(threads[r], NULL);
  for (int r = 0; r < g_run.world; r++) nvtex_communicator_destroy(g_run.comms[r]);
  EXPECT_OK();
  CHECK_EQ(failed_checks(), 0);
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  static const Sizes kAll[] = {
      {1, 1, 1, 1, 1}, {4, 1, 1, 1, 1}, {2, 1, 2, 1, 1}, {2, 2, 2, 1, 1}, {1, 2, 2, 2, 2},
      {1, 2, 4, 1, 4}, {2, 1, 4, 1, 2}, {3, 1, 2, 2, 2}, {1, 1, 1, 3, 1},
  };
  for (size_t i = 0; i < COUNT(kAll); i++) {
    Sizes s = kAll[i];
    if (case_begin("tp %zu cp %zu dp %zu pp %zu ep %zu", s.tp, s.cp, s.dp, s.pp, s.ep)) {
      run(s, divide);
    }
  }
  if (case_begin("sizes that do not fit")) run((Sizes){2, 1, 2, 1, 1}, refused);
  return test_end();
}
