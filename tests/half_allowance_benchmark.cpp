// How much of the allowance a correct attention in half precision needs, and whether a wrong scale is caught: the
// tables of
// docs/precision.md. Not a test; takes minutes.
//   half_allowance_benchmark [largest N, 4096] [init ...]
#include <cstdio>
#include <cstdlib>
#include <string>

#include "common/base/text.h"
#include "common/harness/check.h"
#include "tests/half_attention.h"

using namespace attention;

int main(int argc, char** argv) {
  const int64_t largest = argc > 1 ? std::atoll(argv[1]) : 4096;
  std::vector<std::string> inits(argv + std::min(argc, 2), argv + argc);
  if (inits.empty()) inits = {"randn", "abs", "randn:4"};
  std::printf(
      "%-6s %-8s %6s %4s %-6s %-8s  worst share of what is allowed: o lse dq dk dv (relative L2 of o, dq)   with the "
      "scale off by 1 %%: o lse\n",
      "dtype", "init", "N", "d", "causal", "pairs");
  for (const Dtype dtype : {Dtype::fp16, Dtype::bf16})
    for (const std::string& init : inits)
      for (int64_t n = 64; n <= largest; n *= 8)
        for (const int d : {64, 128})
          for (const bool causal : {false, true}) {
            const Case c = in_half(make_case(1, n, n, d, causal, init), dtype);
            const Reference reference = c.reference();
            Case off = c;
            off.problem.softmax_scale *= 1.01f;
            for (const Pairs pairs : {Pairs::on_chip, Pairs::stored}) {
              const auto worst =
                  [&](const char* output, const std::vector<float>& actual, const ReferenceTensor& truth) {
                    return check_output(output, c.problem, actual, truth, {}, false, pairs == Pairs::stored);
                  };
              const HalfOutputs out = half_attention(c, pairs), wrong = half_attention(off, pairs, false);
              const CheckResult o = worst("o", out.o, reference.o), lse = worst("lse", out.lse, reference.lse),
                                dq = worst("dq", out.dq, reference.dq), dk = worst("dk", out.dk, reference.dk),
                                dv = worst("dv", out.dv, reference.dv);
              std::printf("%-6s %-8s %6ld %4d %-6s %-8s  %.2f %.3f %.2f %.2f %.2f (%.1e %.1e)   %.2f %.2f\n",
                          dtype_name(dtype), init.c_str(), static_cast<long>(n), d, causal ? "yes" : "no",
                          pairs == Pairs::stored ? "stored" : "on chip", o.worst, lse.worst, dq.worst, dk.worst,
                          dv.worst, o.relative_l2.value_or(0), dq.relative_l2.value_or(0),
                          worst("o", wrong.o, reference.o).worst, worst("lse", wrong.lse, reference.lse).worst);
              std::fflush(stdout);
            }
          }
}
