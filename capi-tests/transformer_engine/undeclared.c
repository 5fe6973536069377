// Functions that no header declares: programs look them up by their names.
#include <pthread.h>

#include "support.h"

extern void *nvte_get_cudnn_handle(void);
extern int nvte_is_cutedsl_backend_built(void);
extern void nvte_set_cutedsl_backend(int enabled);
// bool nvte_built_with_cublasmp(), as a C++ compiler names it.
extern bool _Z24nvte_built_with_cublasmpv(void);

static void *in_thread(void *argument) {
  (void)argument;
  return nvte_get_cudnn_handle();
}

static void test_cudnn(void) {
  if (!case_begin("cuDNN's handle")) return;
  void *handle = nvte_get_cudnn_handle();
  if (!on_cuda()) {
    CHECK(handle == NULL, "a handle on the CPU");
    EXPECT_ERROR(NVTEX_UNSUPPORTED, "nvte_get_cudnn_handle: cuDNN computes on CUDA devices only");
    return;
  }
  if (!handle) {
    EXPECT_ERROR(ANY_ERROR, "nvte_get_cudnn_handle: ", "cudnn");
    return;
  }
  EXPECT_OK();
  CHECK(nvte_get_cudnn_handle() == handle, "another handle at the second call");
  pthread_t thread;
  void *other = NULL;
  if (pthread_create(&thread, NULL, in_thread, NULL)) abort();
  pthread_join(thread, &other);
  CHECK(other != NULL && other != handle, "threads share a handle");
  EXPECT_OK();
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  test_cudnn();
  if (case_begin("constants")) {
    CHECK_EQ(nvte_is_cutedsl_backend_built(), 0);
    nvte_set_cutedsl_backend(1);
    CHECK_EQ(nvte_is_cutedsl_backend_built(), 0);
    CHECK(!_Z24nvte_built_with_cublasmpv(), "cuBLASMp");
    EXPECT_OK();
  }
  return test_end();
}
