// The comparison in half precision: accepts what correct fp16 and bf16 give, wherever they round. What it rejects in
// every
// type is in test_check.
#include <cmath>
#include <limits>

#include "common/base/text.h"
#include "common/harness/check.h"
#include "common/harness/options.h"
#include "tests/catch.h"
#include "tests/half_attention.h"

using namespace attention;

namespace {

std::vector<float> rounded(const std::vector<double>& values, Dtype dtype) {
  std::vector<float> floats(values.begin(), values.end());
  round_all(dtype, floats);
  return floats;
}

std::vector<CheckResult> check_all(const Case& c, const Reference& r, const HalfOutputs& out, bool stored) {
  return {check_output("o", c.problem, out.o, r.o, {}, true, stored),
          check_output("lse", c.problem, out.lse, r.lse, {}, true, stored),
          check_output("dq", c.problem, out.dq, r.dq, {}, true, stored),
          check_output("dk", c.problem, out.dk, r.dk, {}, true, stored),
          check_output("dv", c.problem, out.dv, r.dv, {}, true, stored)};
}

}  // namespace

TEST_CASE("half: a correct attention passes, with pairs on chip and stored", "[half]") {
  std::vector<std::pair<std::string, Case>> cases;
  for (const std::string& name : half_golden_cases()) cases.emplace_back(name, read_golden(name));
  for (const std::string init : {"randn", "abs", "randn:4", "randn:0.05", "const:3"}) {
    for (const auto& [nq, nk, d, causal] :
         {std::tuple{1, 1, 64, false},
          {2, 3, 64, true},
          {9, 9, 40, true},
          {33, 70, 16, true},
          {130, 70, 128, true},
          {192, 192, 64, false},
          {257, 257, 64, true}})
      cases.emplace_back(init + " " + std::to_string(nq) + "x" + std::to_string(nk) + " d " + std::to_string(d),
                         make_case(2, nq, nk, d, causal, init));
  }
  for (const Dtype dtype : {Dtype::fp16, Dtype::bf16}) {
    for (const auto& [name, in_fp32] : cases) {
      const Case c = in_half(in_fp32, dtype);
      const Reference r = c.reference();
      for (const Pairs pairs : {Pairs::on_chip, Pairs::stored}) {
        for (const CheckResult& result : check_all(c, r, half_attention(c, pairs), pairs == Pairs::stored)) {
          INFO(name << " " << dtype_name(dtype) << (pairs == Pairs::stored ? " stored, " : " on chip, ")
                    << result.output << ": worst " << result.worst << " " << result.reason);
          CHECK(result.pass);
          CHECK_FALSE(result.l2_judged);
          CHECK_FALSE(result.l2_bound.has_value());
          CHECK(result.tolerance == (dtype == Dtype::fp16 ? 0x1p-10 : 0x1p-7));
          CHECK(result.stored_pairs == (pairs == Pairs::stored));
        }
      }
    }
  }
}

TEST_CASE("half: the true output, rounded, uses at most its own rounding", "[half]") {
  for (const Dtype dtype : {Dtype::fp16, Dtype::bf16}) {
    const Case c = in_half(make_case(2, 70, 90, 32, true), dtype);
    const Reference r = c.reference();
    for (const auto& [name, tensor] : {std::pair{"o", &r.o}, {"dq", &r.dq}, {"dk", &r.dk}, {"dv", &r.dv}}) {
      const CheckResult result = check_output(name, c.problem, rounded(tensor->value, dtype), *tensor, {}, true);
      CHECK(result.pass);
      CHECK(result.worst <=
            1.0 / 3 * (1 + 1e-9));  // u |ref| of u |ref| and tol * allowance, which is at least 2u |ref|
    }
  }
}

TEST_CASE("half: the allowance of stored pairs is given to none else, and needed", "[half]") {
  // Two keys whose scores lie just above and just below the middle of two fp16 numbers: storing them parts them by
  // 2^-6.
  Case c = make_case(1, 1, 2, 2, false, "ones");
  c.problem.softmax_scale = 1;
  c.k = {16, 0x1p-7f + 0x1p-10f, 16, 0x1p-7f - 0x1p-10f};
  c.v = {1, 1, -1, -1};
  c.problem.dtype = Dtype::fp16;
  const Reference r = c.reference(false);
  const auto worst = [&](Pairs pairs, bool stored) {
    return check_output("o", c.problem, half_attention(c, pairs, false).o, r.o, {}, false, stored).worst;
  };
  CHECK(worst(Pairs::on_chip, false) < 0.1);
  CHECK(worst(Pairs::stored, false) > 1.3);
  CHECK(worst(Pairs::stored, true) < 0.7);
}

TEST_CASE("half: a scale off by 1 % fails in fp16", "[half]") {
  for (const std::string init : {"randn", "abs", "randn:4"}) {
    for (const int n : {64, 300}) {
      const Case c = in_half(make_case(1, n, n, 64, false, init), Dtype::fp16);
      const Reference r = c.reference(false);
      Case off = c;
      off.problem.softmax_scale *= 1.01f;
      for (const Pairs pairs : {Pairs::on_chip, Pairs::stored}) {
        INFO(init << " " << n);
        const HalfOutputs wrong = half_attention(off, pairs, false);
        CHECK_FALSE((check_output("o", c.problem, wrong.o, r.o, {}, false, pairs == Pairs::stored).pass &&
                     check_output("lse", c.problem, wrong.lse, r.lse, {}, false, pairs == Pairs::stored).pass));
      }
    }
  }
}

TEST_CASE("half: a row that sees no key is exactly 0", "[half]") {
  const Case c = in_half(make_case(1, 70, 33, 32, true), Dtype::fp16);
  const Reference r = c.reference();
  HalfOutputs out = half_attention(c, Pairs::on_chip);
  CHECK(out.lse[0] == -std::numeric_limits<float>::infinity());
  CHECK(check_output("o", c.problem, out.o, r.o, {}, false).pass);
  CHECK(check_output("dq", c.problem, out.dq, r.dq, {}, false).pass);
  out.o[0] = out.dq[0] = 0x1p-24f;  // the smallest number that is not
  CHECK_FALSE(check_output("o", c.problem, out.o, r.o, {}, false).pass);
  CHECK_FALSE(check_output("dq", c.problem, out.dq, r.dq, {}, false).pass);
}

TEST_CASE("half: tol does not grow with the length, and the verdict names the type", "[half]") {
  Problem p;
  p.seqlen_q = p.seqlen_k = 131072;
  p.dtype = Dtype::fp16;
  CHECK(tolerance(p) == 0x1p-10);
  p.dtype = Dtype::bf16;
  CHECK(tolerance(p) == 0x1p-7);
  CHECK_FALSE(l2_bound(p, "o").has_value());
  const Reference huge = in_half(make_case(1, 1, 1, 64, false, "const:133120"), Dtype::bf16).reference(false);
  CHECK(verdict(true, Dtype::bf16, huge).find("PASS, 2u of bf16 not claimed: scores up to ") == 0);
}
