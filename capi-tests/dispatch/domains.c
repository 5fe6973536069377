// What is known of domains, and of operators by number.
#include "nvte/dispatch.h"

#include "support.h"

static void test_domains(void) {
  if (case_begin("the domain of the backend can be used and has a device")) {
    const size_t count = nvtex_domain_count();
    CHECK(count >= 1, "no domain");
    bool found = false, host = false;
    for (size_t i = 0; i < count; i++) {
      NVTEXDomainInfo info = {.struct_size = sizeof info};
      CHECK(nvtex_domain_info(i, &info), "domain %zu: %s", i, nvtex_last_error());
      CHECK_EQ(info.struct_size, sizeof info);
      if (strcmp(info.name, "cpu") == 0) {
        host = true;
        CHECK_EQ(info.devices, 1);
        CHECK(!info.unusable, "cpu: %s", info.unusable);
      }
      if (strcmp(info.name, g_test.backend) != 0) continue;
      found = true;
      CHECK(!info.unusable, "%s: %s", info.name, info.unusable);
      CHECK(info.devices >= 1 && info.multiprocessors >= 1, "%d devices, %d parts", info.devices,
            info.multiprocessors);
      CHECK((info.arch >= 70) == on_cuda(), "architecture %u", info.arch);
      CHECK(((info.flags & NVTEX_DOMAIN_ASYNC) != 0) == on_cuda(), "flags %u", info.flags);
    }
    CHECK(found && host, "no domain %s or no cpu among %zu", g_test.backend, count);
    EXPECT_OK();
  }
  if (case_begin("wrong arguments are refused")) {
    NVTEXDomainInfo info = {.struct_size = sizeof info};
    CHECK(!nvtex_domain_info(nvtex_domain_count(), &info), "a domain past the last one");
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvtex_domain_info: index", "less than");
    CHECK(!nvtex_domain_info(0, NULL), "no struct");
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvtex_domain_info: info", "got null");
    info.struct_size = 8;
    CHECK(!nvtex_domain_info(0, &info), "a struct of 8 bytes");
    EXPECT_ERROR(NVTEX_INVALID_ARGUMENT, "nvtex_domain_info: info.struct_size", "got 8");
    CHECK(!info.name, "the struct was written");
  }
}

// What the headers that a plugin is built with say, against the library that runs.
static void test_operators(void) {
  if (!case_begin("headers and library agree about operators")) return;
  static const struct {
    const char *name;
    uint32_t version;
    size_t size;
    const char *feature;
    uint64_t bit;
  } rows[] = {
      {"softmax", NVTEX_BUILT_WITH(SOFTMAX), NULL, 0},
      {"gemm", NVTEX_BUILT_WITH(GEMM), "BETA", NVTEX_GEMM_BETA},
      {"norm_forward", NVTEX_BUILT_WITH(NORM_FORWARD), "RESIDUAL", NVTEX_NORM_FORWARD_RESIDUAL},
      {"attention", NVTEX_BUILT_WITH(ATTENTION), "BOTTOM_RIGHT", NVTEX_ATTENTION_BOTTOM_RIGHT},
      {"nvfp4_quantize", NVTEX_BUILT_WITH(NVFP4_QUANTIZE), "STOCHASTIC",
       NVTEX_NVFP4_QUANTIZE_STOCHASTIC},
  };
  size_t found = 0;
  for (size_t op = 0; op < nvtex_op_count(); op++) {
    const NVTEXOpInfo *info = nvtex_op_info((uint32_t)op);
    for (size_t i = 0; i < COUNT(rows); i++) {
      if (strcmp(info->name, rows[i].name) != 0) continue;
      found++;
      CHECK_EQ(info->version, rows[i].version);
      CHECK_EQ(info->args_size, rows[i].size);
      for (size_t bit = 0; rows[i].feature && bit < info->feature_count; bit++) {
        const bool same = strcmp(info->features[bit], rows[i].feature) == 0;
        CHECK(same == (rows[i].bit == UINT64_C(1) << bit), "%s: bit %zu is %s", info->name, bit,
              info->features[bit]);
      }
    }
  }
  CHECK_EQ(found, COUNT(rows));
  EXPECT_OK();
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  test_domains();
  test_operators();
  return test_end();
}
