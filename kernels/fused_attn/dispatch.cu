// Choice of an implementation of attention: the first that does not say why not.

#include <string>

#include "attention.cuh"

namespace nvte {
namespace {

struct Implementation {
  const char *name;
  // Null: supported with a workspace of this many bytes.
  const char *(*reject)(const NVTEXAttentionArgs *, size_t *) noexcept;
  NVTEXOutcome (*run)(const NVTEXAttentionArgs *, cudaStream_t) noexcept;
};

// In order of preference. cuDNN declines what is not measured to be faster by it.
constexpr Implementation kImplementations[] = {
    {"cudnn", nvte_attention_cudnn_reject, nvte_attention_cudnn},
    {"decode", nvte_attention_decode_reject, nvte_attention_decode},
    {"sm90-forward", nvte_attention_sm90_forward_reject, nvte_attention_sm90_forward},
    {"sm90-backward", nvte_attention_sm90_backward_reject, nvte_attention_sm90_backward},
    {"sm90-fp8-backward", nvte_attention_sm90_fp8_backward_reject,
     nvte_attention_sm90_fp8_backward},
    {"mma-forward", nvte_attention_mma_forward_reject, nvte_attention_mma_forward},
    {"mma-backward", nvte_attention_mma_backward_reject, nvte_attention_mma_backward},
    {"simt-forward", nvte_attention_simt_forward_reject, nvte_attention_simt_forward},
    {"simt-backward", nvte_attention_simt_backward_reject, nvte_attention_simt_backward},
};

// The first that is supported, or null; `rejected` gets the reasons of those before it.
const Implementation *choose(const NVTEXAttentionArgs &a, size_t *workspace,
                             std::string *rejected) {
  for (const Implementation &candidate : kImplementations) {
    const char *reason = candidate.reject(&a, workspace);
    if (reason == nullptr) return &candidate;
    if (!rejected->empty()) *rejected += '\n';
    (*rejected += candidate.name).append(": ").append(reason);
  }
  return nullptr;
}

// What the thread's last call rejected.
std::string &last_rejected() {
  thread_local std::string text;
  text.clear();
  return text;
}

}  // namespace
}  // namespace nvte

extern "C" NVTEXOutcome nvte_cuda_attention_plan(const NVTEXAttentionArgs *args,
                                                 NVTEXAttentionPlan *plan) noexcept {
  using namespace nvte;
  std::string &rejected = last_rejected();
  size_t workspace = 0;
  const Implementation *chosen = choose(*args, &workspace, &rejected);
  if (chosen == nullptr) return unimplemented(rejected.c_str());
  *plan = {workspace, chosen->name, rejected.c_str()};
  return ok();
}

extern "C" NVTEXOutcome nvte_cuda_attention(const NVTEXAttentionArgs *args,
                                            cudaStream_t stream) noexcept {
  using namespace nvte;
  std::string &rejected = last_rejected();
  size_t workspace = 0;
  const Implementation *chosen = choose(*args, &workspace, &rejected);
  if (chosen == nullptr) return unimplemented(rejected.c_str());
  if (workspace > args->workspace_bytes) return unimplemented("the workspace is too small");
  return chosen->run(args, stream);
}
