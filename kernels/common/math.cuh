// Mathematical constants.
#pragma once

namespace nvte {

constexpr float kLog2e = 1.44269504f;  // exp(x) is 2^(x log2(e)).
constexpr float kLn2 = 0.693147181f;   // 2^x is exp(x log(2)).

}  // namespace nvte
