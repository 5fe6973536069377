// Expert parallelism with NVTE_CHECK=device: what only device memory says is refused before
// anything is written.
#define _POSIX_C_SOURCE 200809L
#include "transformer_engine/ep.h"

#include "support.h"

enum { TOKENS = 6, TOPK = 2, EXPERTS = 3, COLS = 8 };

static const NVTECommWindow kNoWindow = {NULL, 0, NULL, 0};

static NVTEEpGroupConfig group_config(int capacity, int drop) {
  NVTEEpGroupConfig c;
  memset(&c, 0, sizeof c);
  c.struct_size = sizeof c, c.ep_size = 1, c.num_experts = EXPERTS, c.max_tokens_per_rank = TOKENS;
  c.max_recv_tokens_per_rank = capacity, c.hidden_dim = COLS, c.max_token_dtype = kNVTEFloat32;
  c.drop_on_overflow = drop;
  return c;
}

int main(int argc, char **argv) {
  setenv("NVTE_CHECK", "device", 1);
  test_begin(argc, argv);
  NVTEEpLayerConfig layer;
  memset(&layer, 0, sizeof layer);
  layer.struct_size = sizeof layer, layer.top_k = TOPK;
  layer.dispatch_output_per_expert_alignment = 4;
  // 3, 5 and 2 choices, and 2 of no expert: 4 + 8 + 4 rows.
  const int32_t chosen[TOKENS * TOPK] = {0, 1, 1, 2, 0, 1, -1, 1, 2, 3, 0, 1};
  for (int drop = 0; drop < 2; drop++) {
    for (int capacity = 15; capacity <= 16; capacity++) {
      if (!case_begin("16 rows of %d, drop %d", capacity, drop)) continue;
      nvte_ep_shutdown();
      NVTEEpGroupConfig config = group_config(capacity, drop);
      nvte_ep_initialize(NULL, &config);
      size_t bytes = nvte_ep_handle_mem_size(&layer);
      EXPECT_OK();
      Buffer *memory = buffer(bytes), *total = buffer(4);
      NVTETensor handle = tensor(memory->ptr, kNVTEByte, SHAPE(bytes));
      nvte_ep_prepare(
          handle,
          tensor(buffer_from(chosen, sizeof chosen, 0)->ptr, kNVTEInt32, SHAPE(TOKENS, TOPK)), NULL,
          tensor(total->ptr, kNVTEInt32, SHAPE(1)), &layer, NULL);
      if (capacity < 16 && !drop) {
        EXPECT_ERROR(
            NVTEX_INVALID_ARGUMENT,
            "nvte_ep_prepare: topk_idx: expected choices that need at most 15 rows, got 16");
        CHECK(untouched(memory) && untouched(total), "a refused call wrote");
        continue;
      }
      if (!EXPECT_OK()) return TEST_FAIL;
      CHECK_EQ(*(const int32_t *)buffer_read(total), 16);
      // Other sizes than those of the plan.
      Buffer *x = buffer(TOKENS * COLS * 4), *out = buffer(16 * COLS * 4), *w = buffer(TOKENS * 4);
      NVTETensor rows = tensor(out->ptr, kNVTEFloat32, SHAPE(16, COLS));
      NVTETensor fewer = tensor(x->ptr, kNVTEFloat32, SHAPE(TOKENS - 1, COLS));
      nvte_ep_combine_bwd(handle, fewer, kNoWindow, rows, kNoWindow, NULL);
      EXPECT_ERROR(
          NVTEX_INVALID_ARGUMENT,
          "nvte_ep_combine_bwd: grad.shape: expected 6 tokens of 2 experts, as in the plan, "
          "got 5 tokens");
      nvte_ep_combine(handle, rows, kNoWindow, fewer, NULL);
      EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvte_ep_combine: result.shape: expected 6 tokens");
      nvte_ep_dispatch_bwd(handle, rows, kNoWindow,
                           tensor(buffer(16 * 4)->ptr, kNVTEFloat32, SHAPE(16)), kNoWindow,
                           tensor(x->ptr, kNVTEFloat32, SHAPE(TOKENS, COLS)),
                           tensor(w->ptr, kNVTEFloat32, SHAPE(TOKENS, 1)), NULL);
      EXPECT_ERROR(NVTEX_INVALID_ARGUMENT,
                   "nvte_ep_dispatch_bwd: grad_topk_weights.shape: ", "got 6 of 1");
      CHECK(untouched(x) && untouched(out) && untouched(w), "a refused call wrote");
      nvte_ep_combine(handle, rows, kNoWindow, tensor(x->ptr, kNVTEFloat32, SHAPE(TOKENS, COLS)),
                      NULL);
      EXPECT_OK();
    }
  }
  case_end();
  nvte_ep_shutdown();
  return test_end();
}
