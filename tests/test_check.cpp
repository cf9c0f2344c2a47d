// The comparer must reject every kind of wrong output that has once passed for a right one, and accept what correct
// fp32, fp16 and bf16 give, wherever they round.
#include "common/harness/check.h"

#include <cmath>
#include <functional>
#include <limits>

#include "common/base/text.h"
#include "tests/catch.h"
#include "tests/half_attention.h"

using namespace attention;

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<float> rounded(const std::vector<double>& values) { return {values.begin(), values.end()}; }

/// What the comparison says of all outputs. `stored`: S and P lie in HBM, in the problem's type.
std::vector<CheckResult> check_all(const Case& c, const Reference& r, const HalfOutputs& out, bool default_inputs,
                                   bool stored = false) {
  std::vector<CheckResult> results;
  for (const auto& [name, values] :
       {std::pair{"o", &out.o}, {"lse", &out.lse}, {"dq", &out.dq}, {"dk", &out.dk}, {"dv", &out.dv}})
    results.push_back(check_output(name, c.problem, *values, r.find(name), {}, default_inputs, stored));
  return results;
}

struct Edited {
  Case c = make_case(2, 128, 128, 64);
  Reference reference = c.reference(false);
  std::vector<float> o = rounded(reference.o.value);
  std::vector<float> lse = rounded(reference.lse.value);

  CheckResult check_o() const { return check_output("o", c.problem, o, reference.o, {}, false); }
  CheckResult check_lse() const { return check_output("lse", c.problem, lse, reference.lse, {}, false); }
};

}  // namespace

TEST_CASE("comparer_accepts the true output rounded to fp32", "[check]") {
  const Edited e;
  for (const CheckResult& result : {e.check_o(), e.check_lse()}) {
    CHECK(result.pass);
    CHECK(result.reason.empty());
    CHECK(result.checked == result.elements);
    CHECK(result.worst < 0.1);
    CHECK(*result.relative_l2 < 6e-8);
    CHECK(result.max_abs < 1e-6);
    CHECK(result.tolerance == 1e-6);
  }
}

TEST_CASE("an overflow is named: what exceeds which type", "[check]") {
  Case c = make_case(1, 2, 3, 64, false, "const:32");
  const auto why = [&](const char* output, bool stored_pairs) {
    return describe_overflow(output, c.problem, c.reference(), stored_pairs);
  };
  c.problem.dtype = Dtype::fp16;  // S = 8192, dP = 65536
  CHECK(why("dq", true) == "dP exceeds fp16's 65504: up to 65536");
  CHECK(why("dk", true) == "dP exceeds fp16's 65504: up to 65536");
  for (const char* output : {"o", "lse", "dv"}) CHECK(why(output, true) == "");
  CHECK(why("dq", false) == "");
  c = make_case(1, 2, 3, 64, false, "const:100");
  c.problem.dtype = Dtype::fp16;  // S = 80000: in all that comes from it
  for (const char* output : {"o", "lse", "dq", "dk", "dv"})
    CHECK(why(output, true) == "S exceeds fp16's 65504: up to 80000");
  CHECK(why("o", false) == "");
  // On chip dP is fp32, but dS is not, nor is what comes out. P = 1/2 and dP - delta = +- 160000, with a scale of 1.
  c = make_case(1, 1, 2, 1, false, "zeros");
  c.problem.dtype = Dtype::fp16;
  c.v = {800, -800};
  c.d_o = {200};
  CHECK(why("dq", false) == "dS exceeds fp16's 65504: up to 80000");
  CHECK(why("dv", false) == "");
  c.d_o = {80};
  CHECK(why("dq", false) == "");
  c.k = {4, 0};
  CHECK(why("dq", false) == "dq exceeds fp16's 65504: up to 128000");
  c.problem.dtype = Dtype::bf16;
  CHECK(why("dq", true) == "");
  c = make_case(1, 4, 4, 16, false, "randn:1e30");
  for (const bool stored_pairs : {false, true})
    CHECK(why("o", stored_pairs).find("Q K^T exceeds fp32's 3.40282e+38: up to ") == 0);
  c.problem.dtype = Dtype::bf16;
  CHECK(why("o", false).find("Q K^T exceeds fp32's") == 0);
  std::fill(c.q.begin(), c.q.end(), 0.0f);
  CHECK(why("o", true) == "");
  CHECK(why("dk", false).find("dP exceeds fp32's 3.40282e+38: up to ") == 0);
}

TEST_CASE("comparer_accepts an honest fp32 attention", "[check]") {
  std::vector<std::pair<std::string, Case>> cases;
  for (const std::string& name : golden_cases()) cases.emplace_back(name, read_golden(name));
  for (const int64_t n : {1, 2, 3, 9, 31, 192}) {
    for (const bool causal : {false, true}) {
      for (const std::string init : {"randn", "abs"}) {
        cases.emplace_back(
            init + " N " + std::to_string(n) + (causal ? " causal" : ""), make_case(2, n, n, 64, causal, init));
      }
    }
  }
  cases.emplace_back("empty rows, d 128", make_case(1, 130, 70, 128, true));
  for (const auto& [name, c] : cases) {
    const Reference r = c.reference();
    for (const CheckResult& result : check_all(c, r, half_attention(c, Pairs::on_chip), name.starts_with("randn"))) {
      INFO(name << ", " << result.output << ": worst " << result.worst << ", relative L2 "
                << result.relative_l2.value_or(-1) << " " << result.reason);
      CHECK(result.pass);
    }
  }
}

TEST_CASE("the worst element is named: batch, head, row and column", "[check]") {
  Case c = make_case(6, 5, 4, 2);
  c.problem.batch = 2;
  c.problem.heads = 3;
  const Reference r = c.reference(false);
  for (const float wrong : {kNan, kInf, -kInf, 7.0f}) {
    INFO(wrong);
    std::vector<float> o = rounded(r.o.value), lse = rounded(r.lse.value);
    o[(5 * 5 + 3) * 2 + 1] = lse[5 * 5 + 3] = wrong;  // head 5 of 6: batch 1, head 2
    const CheckResult of_o = check_output("o", c.problem, o, r.o, {}, false),
                      of_lse = check_output("lse", c.problem, lse, r.lse, {}, false);
    CHECK_FALSE((of_o.pass || of_lse.pass));
    CHECK(of_o.worst_index == std::array<int64_t, 4>{1, 2, 3, 1});
    CHECK(of_lse.worst_index == std::array<int64_t, 4>{1, 2, 3, 0});
    CHECK(std::isinf(of_o.worst) == (wrong != 7));
    if (wrong == 7) CHECK(of_o.max_abs == Approx(7 - r.o.value[(5 * 5 + 3) * 2 + 1]));
    if (std::isnan(wrong)) CHECK(of_o.reason.find("nan") != std::string::npos);
  }
}

TEST_CASE("comparer_rejects what has passed for attention elsewhere, in each type", "[check]") {  // hard case A15
  for (const Dtype dtype : {Dtype::fp32, Dtype::fp16, Dtype::bf16}) {
    Case c = in_half(make_case(2, 128, 128, 64), dtype);
    const Reference r = c.reference(false);
    const HalfOutputs right = half_attention(c, Pairs::stored, false);
    Case unscaled = c;
    unscaled.problem.softmax_scale = 1;
    using Edit = std::function<void(std::vector<float>&)>;
    const auto mean_of_v = [&](std::vector<float>& o) {
      for (int n = 0; n < 2 * 128 * 64; ++n) {
        o[n] = 0;
        for (int j = 0; j < 128; ++j) o[n] += c.at_key(c.v, n / 8192, j, n % 64) / 128;
      }
    };
    const std::vector<std::pair<const char*, Edit>> wrong = {
        {"one NaN", [](auto& o) { o[5000] = kNan; }},
        {"one inf", [](auto& o) { o[8191] = kInf; }},
        {"one -inf", [](auto& o) { o[8191] = -kInf; }},
        {"all zeros", [](auto& o) { std::ranges::fill(o, 0.0f); }},
        {"the mean of V in every row", mean_of_v},
        {"the other head", [](auto& o) { std::copy(o.begin() + 128 * 64, o.end(), o.begin()); }},
        {"rows shifted by one", [](auto& o) { std::rotate(o.begin(), o.begin() + 64, o.end()); }},
        {"no scale", [&](auto& o) { o = half_attention(unscaled, Pairs::on_chip, false).o; }},
        {"one element off by a little",
         [&](auto& o) { *std::ranges::max_element(o) *= dtype == Dtype::fp32 ? 1.01f : 1.05f; }},
        {"an element missing", [](auto& o) { o.pop_back(); }},
        {"nothing", [](auto& o) { o.clear(); }}};
    const auto passes = [&](const Edit& edit) {
      std::vector<float> o = right.o;
      edit(o);
      return check_output("o", c.problem, o, r.o, {}, false, true).pass;
    };
    CHECK(passes([](auto&) {}));
    for (const auto& [name, edit] : wrong) {
      INFO(dtype_name(dtype) << ", " << name);
      CHECK_FALSE(passes(edit));
    }
  }
}

TEST_CASE("comparer_rejects_a_scale_off_by_1e-5", "[check]") {
  for (const std::string& name : golden_cases()) {
    if (name == "one_token") continue;  // one key: the scale shows in lse alone
    INFO(name);
    const Case c = read_golden(name);
    Case off = c;
    off.problem.softmax_scale *= 1 + 1e-5f;
    const Reference reference = c.reference(false), wrong = off.reference(false);
    CHECK_FALSE((check_output("o", c.problem, rounded(wrong.o.value), reference.o, {}, false).pass &&
                 check_output("lse", c.problem, rounded(wrong.lse.value), reference.lse, {}, false).pass));
  }
}

TEST_CASE("comparer_rejects_empty_comparison", "[check]") {
  Edited e;
  Selection nothing;
  nothing.full = false;
  const Reference empty = compute_reference_cpu(e.c.problem, e.c.inputs(), nothing, false);
  const CheckResult result = check_output("o", e.c.problem, e.o, empty.o, nothing, false);
  CHECK_FALSE(result.pass);
  CHECK(result.checked == 0);
  CHECK(result.reason.find("nothing was compared") != std::string::npos);
}

TEST_CASE("comparer_rejects_a_nan_reference", "[check]") {
  Edited e;
  e.c.q[3] = kNan;
  e.reference = e.c.reference(false);
  CHECK_FALSE(e.check_o().pass);
  CHECK_FALSE(e.check_lse().pass);
}

TEST_CASE("rows without a key: minus infinity equals itself and zero must be zero", "[check]") {
  const Case c = make_case(1, 70, 33, 32, true);
  const Reference r = c.reference();
  std::vector<float> o = rounded(r.o.value), lse = rounded(r.lse.value), dq = rounded(r.dq.value);
  const auto passes = [&](const std::string& name, const std::vector<float>& actual, const ReferenceTensor& tensor) {
    return check_output(name, c.problem, actual, tensor, {}, false).pass;
  };
  CHECK(lse[0] == -kInf);
  CHECK(passes("o", o, r.o));
  CHECK(passes("lse", lse, r.lse));
  CHECK(passes("dq", dq, r.dq));
  for (const float wrong : {kInf, kNan, -1e30f, 0.0f}) {
    lse[0] = wrong;
    CHECK_FALSE(passes("lse", lse, r.lse));
  }
  o[0] = 1e-30f;
  CHECK_FALSE(passes("o", o, r.o));
  dq[0] = kNan;
  CHECK_FALSE(passes("dq", dq, r.dq));
  // In 16 bits too, where numbers near 0 are given half of the smallest one.
  const Case half = in_half(c, Dtype::fp16);
  const Reference of_half = half.reference();
  HalfOutputs out = half_attention(half, Pairs::on_chip);
  CHECK(check_output("o", half.problem, out.o, of_half.o, {}, false).pass);
  CHECK(check_output("dq", half.problem, out.dq, of_half.dq, {}, false).pass);
  out.o[0] = out.dq[0] = 0x1p-24f;  // the smallest number that is not 0
  CHECK_FALSE(check_output("o", half.problem, out.o, of_half.o, {}, false).pass);
  CHECK_FALSE(check_output("dq", half.problem, out.dq, of_half.dq, {}, false).pass);
}

TEST_CASE("a gradient that is zero by cancellation has no relative L2", "[check]") {
  const Case c = make_case(2, 1, 1, 64);
  const Reference r = c.reference();
  const CheckResult result = check_output("dq", c.problem, std::vector<float>(128, 1e-9f), r.dq, {}, true);
  CHECK(result.pass);
  CHECK_FALSE(result.relative_l2.has_value());
  CHECK_FALSE(check_output("dq", c.problem, std::vector<float>(128, 1e-2f), r.dq, {}, true).pass);
}

TEST_CASE("relative L2 is judged for the default inputs alone", "[check]") {
  Edited e;
  for (float& value : e.o)
    value *= 1 + 1.2e-6f;  // each element within 1e-6 of its weighted terms, all in the same direction
  const CheckResult judged = check_output("o", e.c.problem, e.o, e.reference.o, {}, true), reported = e.check_o();
  CHECK(*judged.relative_l2 == Approx(1.2e-6).epsilon(0.1));
  CHECK(judged.l2_judged);
  CHECK_FALSE(judged.pass);
  CHECK(judged.reason.find("relative L2") != std::string::npos);
  CHECK_FALSE(reported.l2_judged);
  CHECK(reported.pass);
  const CheckResult wider =
      check_output("o", e.c.problem, e.o, e.reference.o, {}, true, false, 8);  // as the yardstick's
  CHECK(wider.pass);
  CHECK(wider.tolerance == Approx(8 * judged.tolerance));
  CHECK(*wider.l2_bound == Approx(8 * *judged.l2_bound));
  // Two keys: correct fp32 may exceed any bound (its gradients cancel), so only the elements are judged.
  const Case two = make_case(1, 64, 2, 64);
  const Reference r = two.reference();
  CHECK_FALSE(check_output("dq", two.problem, half_attention(two, Pairs::on_chip).dq, r.dq, {}, true).l2_judged);
}

TEST_CASE("a sampled check compares the listed rows", "[check]") {
  const Case c = make_case(3, 300, 200, 16);
  const Reference full = c.reference();
  const Selection rows = sample_rows(c.problem, 50, 1, true, true);
  const Reference sampled = compute_reference_cpu(c.problem, c.inputs(), rows, true);
  std::vector<float> dv = rounded(full.dv.value);
  const CheckResult result = check_output("dv", c.problem, dv, sampled.dv, rows, true);
  CHECK(result.pass);
  CHECK(result.sampled);
  CHECK(result.checked == 50 * 16);
  CHECK(result.elements == 3 * 200 * 16);
  const HeadRow hit = rows.keys[20];
  dv[(hit.head * 200 + hit.row) * 16 + 7] += 1;
  const CheckResult failed = check_output("dv", c.problem, dv, sampled.dv, rows, true);
  CHECK_FALSE(failed.pass);
  CHECK(failed.worst_index == std::array<int64_t, 4>{0, hit.head, hit.row, 7});
}

TEST_CASE("the tolerance grows beyond 4096 tokens in fp32 alone", "[check]") {
  Problem p{.seqlen_q = 1, .seqlen_k = 4096};
  CHECK(tolerance(p) == 1e-6);
  CHECK(l2_bound(p, "lse") == 1e-6);
  CHECK(l2_bound(p, "dk") == 2e-6);
  p.seqlen_k = 16384;
  CHECK(tolerance(p) == Approx(2e-6));
  CHECK(*l2_bound(p, "o") == Approx(2e-6));
  CHECK(*l2_bound(p, "dv") == Approx(4e-6));
  p.seqlen_q = 65536;
  CHECK(tolerance(p) == Approx(4e-6));
  p.dtype = Dtype::fp16;
  CHECK(tolerance(p) == 0x1p-10);
  p.dtype = Dtype::bf16;
  CHECK(tolerance(p) == 0x1p-7);
  CHECK_FALSE(l2_bound(p, "o").has_value());
}

TEST_CASE("the verdict claims nothing for huge scores", "[check]") {
  const Reference huge = make_case(1, 1, 1, 64, false, "const:133120").reference(false);
  CHECK(verdict(true, Dtype::fp32, huge) == "PASS, 1e-6 not claimed: scores up to 1.42e+11");
  CHECK(verdict(true, Dtype::bf16, huge).find("PASS, 2u of bf16 not claimed: scores up to ") == 0);
  CHECK(verdict(false, Dtype::fp32, huge) == "FAIL");
  const Reference usual = make_case(1, 64, 64, 64).reference(false);
  CHECK(verdict(true, Dtype::fp32, usual) == "PASS");
  CHECK(usual.mean_weight == Approx(1.7).margin(0.1));
}

TEST_CASE("half: a correct attention passes, with pairs on chip and stored", "[check]") {
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
        for (const CheckResult& result : check_all(c, r, half_attention(c, pairs), true, pairs == Pairs::stored)) {
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

TEST_CASE("half: the true output, rounded, uses at most its own rounding", "[check]") {
  for (const Dtype dtype : {Dtype::fp16, Dtype::bf16}) {
    const Case c = in_half(make_case(2, 70, 90, 32, true), dtype);
    const Reference r = c.reference();
    for (const auto& [name, tensor] : {std::pair{"o", &r.o}, {"dq", &r.dq}, {"dk", &r.dk}, {"dv", &r.dv}}) {
      std::vector<float> values = rounded(tensor->value);
      round_all(dtype, values);
      const CheckResult result = check_output(name, c.problem, values, *tensor, {}, true);
      CHECK(result.pass);
      CHECK(result.worst <=
            1.0 / 3 * (1 + 1e-9));  // u |ref| of u |ref| and tol * allowance, which is at least 2u |ref|
    }
  }
}

TEST_CASE("half: the allowance of stored pairs is given to none else, and needed", "[check]") {
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

TEST_CASE("half: a scale off by 1 % fails in fp16", "[check]") {
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
