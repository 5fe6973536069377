// Choice of an implementation of attention: the first that does not say why not. A plan chooses, a
// run obeys the number that the plan gave.

#include <string>

#include "attention.cuh"

namespace nvte {
namespace {

struct Implementation {
  const char *name;
  // Returns why the implementation declines, or null if it runs with a workspace of this many
  // bytes.
  const char *(*reject)(const NVTEXAttentionArgs *, size_t *) noexcept;
  NVTEXOutcome (*run)(const NVTEXAttentionArgs *, cudaStream_t) noexcept;
};

#define NVTE_ENTRY(stem, name) {name, nvte_attention_##stem##_reject, nvte_attention_##stem},
constexpr Implementation kImplementations[] = {NVTE_ATTENTION_IMPLEMENTATIONS(NVTE_ENTRY)};
#undef NVTE_ENTRY
constexpr uint32_t kCount = sizeof kImplementations / sizeof *kImplementations;

// Why an implementation declines, or null.
const char *declines(const Implementation &one, const NVTEXAttentionArgs &a, size_t *workspace) {
  const bool more = a.sums != nullptr || a.grads_amax != nullptr;
  if (more && one.run != nvte_attention_sm90_backward) return "sums or the amax of the gradients";
  return one.reject(&a, workspace);
}

// "name: reason" of the first `count` implementations, one a line; valid until the thread's next
// call.
const char *reasons(const NVTEXAttentionArgs &a, uint32_t count) {
  thread_local std::string text;
  text.clear();
  for (uint32_t i = 0; i < count; ++i) {
    size_t workspace = 0;
    const char *reason = declines(kImplementations[i], a, &workspace);
    if (i > 0) text += '\n';
    (text += kImplementations[i].name).append(": ").append(reason != nullptr ? reason : "");
  }
  return text.c_str();
}

}  // namespace
}  // namespace nvte

extern "C" NVTEXOutcome nvte_cuda_attention_plan(const NVTEXAttentionArgs *args,
                                                 NVTEXAttentionPlan *plan) noexcept {
  using namespace nvte;
  for (uint32_t i = 0; i < kCount; ++i) {
    size_t workspace = 0;
    if (declines(kImplementations[i], *args, &workspace) != nullptr) continue;
    plan->workspace_bytes = workspace;
    plan->implementation = i;
    plan->name = kImplementations[i].name;
    // The texts are built only for a caller that reads them.
    plan->rejected = plan->explain ? reasons(*args, i) : nullptr;
    return ok();
  }
  return unimplemented(reasons(*args, kCount));
}

extern "C" NVTEXOutcome nvte_cuda_attention(const NVTEXAttentionArgs *args,
                                            cudaStream_t stream) noexcept {
  using namespace nvte;
  if (args->implementation >= kCount) return unimplemented("there is no such implementation");
  return kImplementations[args->implementation].run(args, stream);
}
