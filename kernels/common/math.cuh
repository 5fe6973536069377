// Mathematical constants.
#pragma once

namespace nvte {

constexpr float kLog2e = 1.44269504f;  // exp(x) is 2^(x log2(e)).

}  // namespace nvte
