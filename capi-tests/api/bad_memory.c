// Wrong calls by where their buffers lie: outputs that declare fewer bytes than are written,
// strides that lead out of a buffer, and outputs that overlap what the call reads or also writes.
#define _POSIX_C_SOURCE 200809L
#include "refusals.h"

// A tensor from a byte of a buffer on.
#define AT(b, byte, dtype, ...) tensor((b)->ptr + (byte), dtype, SHAPE(__VA_ARGS__))

static void wrong_byte_counts(void) {
  const NVTEDType f32 = kNVTEFloat32, bf16 = kNVTEBFloat16, e4m3 = kNVTEFloat8E4M3;
  if (!case_begin("outputs of too few bytes")) return;
  // Each tensor ends where it says; the bytes behind it are guards.
  NVTETensor none = empty_tensor(), x = AT(buffer(256), 0, f32, 8, 8);
  NVTETensor y = AT(buffer(256), 0, f32, 8, 8), inter = AT(buffer(256), 0, f32, 8, 8);
  NVTETensor short_y = AT(buffer(128), 0, bf16, 8, 8), fp8 = AT(buffer(64), 0, e4m3, 8, 8);
  NVTETensor map = AT(buffer(64), 0, kNVTEByte, 8, 8), ints = AT(buffer(256), 0, kNVTEInt32, 8, 8);
  NVTETensor half_map = AT(buffer(32), 0, kNVTEFloat4E2M1, 8, 8);
  NVTETensor work = AT(buffer(1 << 18), 0, kNVTEByte, 1 << 18);

  REFUSED(nvte_topk, "indices_out.shape", NULL, x, none, y, short_y, work, 8, 8, 8);
  REFUSED(nvte_topk, "keys_out.shape", NULL, x, none, short_y, ints, work, 8, 8, 8);

#define ROUTER(probs, map, inter) x, 8, 8, 2, 0, 0, 0, 1, 0, none, probs, map, inter, NULL
  REFUSED(nvte_fused_topk_with_score_function_forward, "probs.shape", ROUTER(short_y, map, inter));
  REFUSED(nvte_fused_topk_with_score_function_forward, "intermediate_output.shape",
          ROUTER(y, map, fp8));
  REFUSED(nvte_fused_topk_with_score_function_forward, "routing_map.shape",
          ROUTER(y, half_map, inter));
#undef ROUTER
  REFUSED(nvte_fused_topk_with_score_function_backward, "intermediate_output.shape", map, short_y,
          x, 8, 8, 2, 0, 1, 0, y, NULL);
  REFUSED(nvte_fused_topk_with_score_function_backward, "grad_probs.shape", map, inter, short_y, 8,
          8, 2, 0, 1, 0, y, NULL);
  REFUSED(nvte_fused_score_for_moe_aux_loss_forward, "scores.shape", x, 8, 8, 2, 0, fp8, map, inter,
          NULL);
  REFUSED(nvte_fused_score_for_moe_aux_loss_forward, "intermediate_output.shape", x, 8, 8, 2, 0, y,
          map, short_y, NULL);
  NVTETensor counts = AT(buffer(32), 0, kNVTEInt32, 8), loss = AT(buffer(4), 0, f32, 1);
  NVTETensor short_loss = AT(buffer(2), 0, bf16, 1), short_pair = AT(buffer(4), 0, bf16, 2);
  REFUSED(nvte_fused_moe_aux_loss_forward, "aux_loss.shape", x, counts, 8, 8, 8, 8, 2, 1,
          short_loss, y, NULL);
  REFUSED(nvte_fused_moe_aux_loss_forward, "Const_buf.shape", x, counts, 8, 8, 8, 8, 2, 1, loss,
          short_pair, NULL);
  REFUSED(nvte_fused_moe_aux_loss_backward, "grad_probs.shape", y, counts, 8, 8, loss, short_y,
          NULL);

  // Rows of codes so far apart that their product with the rows does not fit 64 bits.
  NVTETensor in = tensor_of_mode(NVTE_MXFP8_1D_SCALING);
  NVTETensor out = tensor_of_mode(NVTE_MXFP8_1D_SCALING);
  Buffer *data = buffer(128 * 128), *codes = buffer(1024);
  set_param(in, kNVTERowwiseData, data->ptr, e4m3, SHAPE(128, 128));
  set_param(in, kNVTERowwiseScaleInv, codes->ptr, kNVTEFloat8E8M0, SHAPE(1, (size_t)1 << 57));
  set_param(out, kNVTEColumnwiseData, buffer(128 * 128)->ptr, e4m3, SHAPE(128, 128));
  set_param(out, kNVTERowwiseScaleInv, buffer(512)->ptr, kNVTEFloat8E8M0, SHAPE(128, 4));
  set_param(out, kNVTEColumnwiseScaleInv, buffer(512)->ptr, kNVTEFloat8E8M0, SHAPE(4, 128));
  NVTETensor offsets = AT(buffer(16), 0, kNVTEInt64, 2);
  REFUSED(nvte_group_requantize, "input.scale_inv.shape", in, out, offsets, NULL, NULL, NULL);

  // Sorting takes what the first call asks for.
  size_t given = 0;
  unsigned char *storage = buffer(256)->ptr;
  int *numbers[4];
  for (size_t i = 0; i < 4; i++) numbers[i] = (int *)buffer(64)->ptr;
  REFUSED(nvte_device_radix_sort_pairs, "temp_storage_bytes", storage, &given, numbers[0],
          numbers[1], numbers[2], numbers[3], 16);
}

static void wrong_strides(void) {
  if (!case_begin("strides of partial casts")) return;
  const NVTEDType f32 = kNVTEFloat32;
  NVTETensor x = AT(buffer(256 * 128 * 4), 0, f32, 256 * 128), two = AT(buffer(8), 0, f32, 2, 1);
  NVTETensor out = AT(buffer(256 * 128), 0, kNVTEByte, 256 * 128);
  const struct {
    size_t h, w;
    const char *amax;
  } strides[] = {{2, 1, "amax.shape"},        {40, 1, "amax.shape"},
                 {SIZE_MAX, 1, "amax.shape"}, {SIZE_MAX / 2 + 1, SIZE_MAX, "amax.shape"},
                 {0, 0, "amax_stride_h"},     {0, 1, "amax_stride_h"}};
  for (size_t i = 0; i < COUNT(strides); i++) {
    const size_t h = strides[i].h, w = strides[i].w;
    REFUSED(nvte_fp8_block_scaling_compute_partial_amax, strides[i].amax, x, two, 256, 128, h, w, 0,
            128, NULL);
    // Scales are only read: blocks may share one.
    if (h == 0) continue;
    REFUSED(nvte_fp8_block_scaling_partial_cast, "scale.shape", x, out, two, 256, 128, h, w, 0, 128,
            kNVTEFloat8E4M3, NULL);
  }
  // 16 x 8 blocks of 16 x 16.
  NVTETensor all = AT(buffer(128 * 4), 0, f32, 128), one = AT(buffer(4), 0, f32, 1);
  NVTETensor packed = AT(buffer(256 * 64), 0, kNVTEByte, 256 * 64);
  REFUSED(nvte_nvfp4_2d_compute_partial_amax, "amax.shape", x, all, 256, 128, 9, 1, 0, 16, NULL);
  REFUSED(nvte_nvfp4_2d_compute_partial_amax, "amax.shape", x, all, 256, 128, 8, SIZE_MAX / 7, 0,
          16, NULL);
  REFUSED(nvte_nvfp4_2d_compute_partial_amax, "amax_stride_h", x, all, 256, 128, 7, 1, 0, 16, NULL);
  REFUSED(nvte_nvfp4_2d_partial_cast, "scale.shape", x, packed, all, one, 256, 128, 9, 1, 0, 16,
          NULL);
}

static void wrong_overlaps(void) {
  if (!case_begin("outputs that overlap")) return;
  const NVTEDType f32 = kNVTEFloat32, bf16 = kNVTEBFloat16, e4m3 = kNVTEFloat8E4M3;
  NVTETensor none = empty_tensor();
  Buffer *b = buffer(1 << 16);  // where things meet
  NVTETensor x = AT(b, 0, f32, 8, 8), shifted = AT(b, 4, f32, 8, 8), y = AT(b, 512, f32, 8, 8);
  NVTETensor inter = AT(b, 1024, f32, 8, 8), ints = AT(b, 1536, kNVTEInt32, 8, 8);
  NVTETensor map = AT(b, 2048, kNVTEByte, 8, 8);
  Buffer *w = buffer(1 << 18);
  NVTETensor work = AT(w, 0, kNVTEByte, 1 << 18), keys = AT(w, 64, f32, 8, 8);
  NVTETensor one = AT(b, 2304, f32, 1), flag = AT(b, 2308, kNVTEInt32, 1);

  REFUSED(nvte_topk, "keys_out.data", NULL, x, none, x, ints, work, 8, 8, 4);
  REFUSED(nvte_topk, "indices_out.data", NULL, x, none, y, AT(b, 516, kNVTEInt32, 8, 8), work, 8, 8,
          4);
  REFUSED(nvte_topk, "workspace.data", NULL, keys, none, y, ints, work, 8, 8, 4);
  REFUSED(nvte_fused_topk_with_score_function_forward, "intermediate_output.data", x, 8, 8, 2, 0, 0,
          0, 1, 0, none, y, map, y, NULL);
  REFUSED(nvte_fused_topk_with_score_function_forward, "routing_map.data", x, 8, 8, 2, 0, 0, 0, 1,
          0, none, y, AT(b, 255, kNVTEByte, 8, 8), inter, NULL);
  REFUSED(nvte_fused_topk_with_score_function_backward, "grad_logits.data", map, inter, x, 8, 8, 2,
          0, 1, 0, shifted, NULL);
  REFUSED(nvte_permute, "output.data", x, shifted, ints, AT(b, 1792, kNVTEInt32, 8), NULL, NULL,
          NULL, 8, 1, 8, 8, NULL);
  REFUSED(nvte_permute, "row_id_map.data", x, y, ints, ints, NULL, NULL, NULL, 8, 1, 8, 8, NULL);
  REFUSED(nvte_unpermute, "output.data", x, x, ints, NULL, 8, 1, 8, NULL);
  size_t given = SIZE_MAX;
  int *numbers = (int *)b->ptr;
  REFUSED(nvte_device_radix_sort_pairs, "keys_out", w->ptr, &given, numbers, numbers + 15,
          numbers + 32, numbers + 64, 16);

  REFUSED(nvte_transpose, "transposed_output.data", x, x, NULL);
  REFUSED(nvte_swap_first_dims, "output.data", x, x, NULL);
  REFUSED(nvte_swap_first_dims, "output.data", x, AT(b, 252, f32, 8, 8), NULL);
  NVTETensor ins[] = {x, y}, outs[] = {inter, AT(b, 516, f32, 8, 12)};
  REFUSED(nvte_multi_tensor_pad_last_dim, "outputs[1]", ins, outs, 2, NULL);
  int32_t rows[] = {8, 8};
  outs[1] = AT(b, 640, f32, 8, 8);
  REFUSED(nvte_multi_padding, "output_list[1].data", 2, ins, outs, rows, NULL);
  REFUSED(nvte_nvfp4_data_transpose, "output.data", map, AT(b, 2048, kNVTEByte, 16, 4), NULL);

  REFUSED(nvte_scaled_softmax_forward, "softmax_results.data", AT(b, 0, f32, 1, 1, 8, 8),
          AT(b, 32, f32, 1, 1, 8, 8), 1, NULL);
  NVTETensor rng = AT(buffer_from((const int64_t[]){1, 0}, 16, 0), 0, kNVTEInt64, 2);
  REFUSED(nvte_dropout_fwd, "output", x, shifted, AT(b, 3000, kNVTEByte, 8), rng, 0.5f, NULL);
  REFUSED(nvte_dropout_fwd, "mask", x, y, AT(b, 8, kNVTEByte, 8), rng, 0.5f, NULL);

  NVTETensor *scaled[] = {&x, &shifted};
  REFUSED(nvte_multi_tensor_scale_cuda, "tensor_lists[1][0].data", 64, flag, scaled, 2, 1, 2, NULL);
  NVTETensor g = AT(b, 4096, bf16, 64), p = AT(b, 4352, bf16, 64), m = AT(b, 4608, f32, 64);
  NVTETensor v = AT(b, 5120, f32, 64), low = AT(b, 4352, kNVTEInt16, 64);
  NVTETensor *halves[] = {&g, &p, &m, &v, &low};
  REFUSED(nvte_multi_tensor_adam_param_remainder_cuda, "tensor_lists[4][0].data", 64, flag, halves,
          5, 1, 1e-3f, 0.9f, 0.99f, 1e-8f, 1, 1, 1, 0, NULL);

  NVTETensor gamma = AT(b, 6144, f32, 8), rsigma = AT(b, 6208, f32, 8);
  REFUSED(nvte_rmsnorm_fwd, "z.data", x, gamma, 1e-5f, shifted, rsigma, work, 1, false, NULL);
  REFUSED(nvte_rmsnorm_fwd, "rsigma", x, gamma, 1e-5f, y, AT(b, 512, f32, 8), work, 1, false, NULL);
  REFUSED(nvte_rmsnorm_bwd, "dgamma", x, y, rsigma, gamma, inter, AT(b, 1024, f32, 8), work, 1,
          false, NULL);

  REFUSED(nvte_gelu, "output.data", x, shifted, NULL);
  REFUSED(nvte_dgelu, "output.data", y, x, shifted, NULL);
  REFUSED(nvte_geglu, "output.data", x, AT(b, 0, f32, 8, 4), NULL);
  REFUSED(nvte_dgeglu, "output.data", AT(b, 512, f32, 8, 4), x, x, NULL);
  REFUSED(nvte_scaled_swiglu, "output", AT(b, 0, f32, 8, 64), AT(b, 8192, f32, 8),
          AT(b, 0, f32, 8, 32), 0, NULL);
  NVTETensor cast = empty_tensor();
  set_param(cast, kNVTERowwiseData, b->ptr + 512, e4m3, SHAPE(8, 8));
  set_param(cast, kNVTERowwiseScaleInv, b->ptr + 2304, f32, SHAPE(1));
  set_param(cast, kNVTEColumnwiseScaleInv, b->ptr + 2304, f32, SHAPE(1));
  set_param(cast, kNVTEColumnwiseData, b->ptr + 512, e4m3, SHAPE(8, 8));
  REFUSED(nvte_quantize, "output.columnwise_data", x, cast, NULL);
  set_param(cast, kNVTEColumnwiseData, b->ptr + 255, e4m3, SHAPE(8, 8));
  REFUSED(nvte_quantize, "output.columnwise_data", x, cast, NULL);
  REFUSED(nvte_dequantize, "output.data", cast, AT(b, 512, f32, 8, 8), NULL);
  NVTETensor blocks = tensor_of_mode(NVTE_MXFP8_1D_SCALING);
  set_param(blocks, kNVTERowwiseData, b->ptr + 512, e4m3, SHAPE(8, 8));
  set_param(blocks, kNVTERowwiseScaleInv, b->ptr + 192, kNVTEFloat8E8M0, SHAPE(128, 4));
  REFUSED(nvte_quantize, "output.scale_inv", x, blocks, NULL);
  NVTETensor swizzled = tensor_of_mode(NVTE_MXFP8_1D_SCALING);
  const unsigned char yes = 1;
  nvte_set_tensor_param_v2(swizzled, kNVTEWithGEMMSwizzledScales, &yes, 1);
  set_param(swizzled, kNVTERowwiseData, NULL, e4m3, SHAPE(8, 8));
  set_param(swizzled, kNVTERowwiseScaleInv, b->ptr + 200, kNVTEFloat8E8M0, SHAPE(128, 4));
  REFUSED(nvte_swizzle_scaling_factors, "output.scale_inv", blocks, swizzled, NULL);
  REFUSED(nvte_hadamard_transform, "output.data", AT(b, 0, bf16, 16, 16), AT(b, 2, bf16, 16, 16), 0,
          0, NULL);
  REFUSED(nvte_nvfp4_compute_global_scale, "global_scale", x, shifted, NULL);
  REFUSED(nvte_nvfp4_compute_per_block_scale, "scale", x, shifted, one, NULL);
  REFUSED(nvte_fp8_block_scaling_compute_partial_amax, "amax", x, AT(b, 128, f32, 1, 1), 8, 8, 1, 1,
          0, 128, NULL);
}

int main(int argc, char **argv) {
  setenv("NVTE_VERBOSE", "none", 0);  // messages that are expected
  test_begin(argc, argv);
  wrong_byte_counts();
  wrong_strides();
  wrong_overlaps();
  return refusals_end();
}
