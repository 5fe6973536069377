#include "nvte/permutation.h"
#include "transformer_engine/transformer_engine.h"

#ifdef __cplusplus
inline void nvte_permute(NVTETensor input, NVTETensor output, NVTETensor sorted_row_id,
                         NVTETensor row_id_map, NVTETensor prob, NVTETensor prob_grad,
                         NVTETensor input_fwd, int num_rows, int topK, int num_cols,
                         int num_out_tokens) {
  nvte_permute(input, output, sorted_row_id, row_id_map, prob, prob_grad, input_fwd, num_rows, topK,
               num_cols, num_out_tokens, nullptr);
}

inline void nvte_unpermute(NVTETensor input, NVTETensor output, NVTETensor row_id_map,
                           NVTETensor prob, int num_rows, int topK, int num_cols) {
  nvte_unpermute(input, output, row_id_map, prob, num_rows, topK, num_cols, nullptr);
}
#endif
