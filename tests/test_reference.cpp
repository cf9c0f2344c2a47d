// The float64 reference against what shares nothing with it: PyTorch's float64 (tests/data), the formulas written out,
// closed forms.
#include <cmath>
#include <limits>
#include <set>

#include "common/base/text.h"
#include "tests/catch.h"
#include "tests/closed_forms.h"

using namespace attention;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// max |a - b| / max |b|, equal infinities aside; infinite for a NaN or a mismatch of infinities or sizes.
double distance(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return kInfinity;
  double largest = 0, scale = 1e-300;
  for (size_t n = 0; n < a.size(); ++n) {
    if (a[n] == b[n]) continue;
    if (!std::isfinite(a[n] - b[n])) return kInfinity;
    largest = std::max(largest, std::abs(a[n] - b[n]));
    scale = std::max(scale, std::abs(b[n]));
  }
  return largest / scale;
}

double distance(const Reference& a, const Reference& b, bool allowances) {
  double largest = 0;
  for (const auto tensor : {&Reference::o, &Reference::lse, &Reference::dq, &Reference::dk, &Reference::dv}) {
    if (allowances)
      largest = std::max({largest, distance((a.*tensor).allowance, (b.*tensor).allowance),
                          distance((a.*tensor).stored, (b.*tensor).stored)});
    else largest = std::max(largest, distance((a.*tensor).value, (b.*tensor).value));
  }
  return largest;
}

/// The mask of one problem, row by row, as the reference applies it: with q = 0 a row's LSE is the log of the number of
/// keys it
/// sees, and with v = the key's own power of two, o tells which ones.
std::string mask(int64_t seqlen_q, int64_t seqlen_k) {
  Case c = make_case(1, seqlen_q, seqlen_k, 1, true, "zeros");
  for (int64_t j = 0; j < seqlen_k; ++j) c.v[j] = std::ldexp(1.0f, static_cast<int>(j));
  const Reference r = c.reference(false);
  std::string text;
  for (int64_t i = 0; i < seqlen_q; ++i) {
    if (i > 0) text += '/';
    const auto seen = static_cast<int64_t>(std::lround(std::exp(r.lse.value[i]) * r.o.value[i]));
    for (int64_t j = 0; j < seqlen_k; ++j) text += seen >> j & 1 ? '1' : '0';
  }
  return text;
}

}  // namespace

TEST_CASE("reference equals PyTorch's float64", "[reference]") {
  std::vector<std::string> names = golden_cases();
  names.insert(names.end(), half_golden_cases().begin(), half_golden_cases().end());
  for (const std::string& name : names) {
    INFO(name);
    const Case c = read_golden(name);
    const Reference r = c.reference();
    // The golden scale is 1/sqrt(d) in float64; ours is a float, the same number only for d = 64. A scale off by 3e-8
    // moves
    // a score of 5 by 1.5e-7.
    const double bound = c.problem.head_dim == 64 ? 1e-12 : 3e-7;
    for (const std::string output : {"o", "lse", "dq", "dk", "dv"}) {
      INFO(output);
      const std::vector<double>& value = r.find(output).value;
      if (name == "one_token" && (output == "dq" || output == "dk"))  // zero by cancellation: compared with 0
        for (const double gradient : value) CHECK(std::abs(gradient) < 1e-14);
      else
        CHECK(distance(value, read_npy_double(golden_path(name, output + ".npy"), output == "lse" ? 3 : 4).values) <
              bound);
    }
  }
}

TEST_CASE("values and allowances equal the formulas written out", "[reference]") {
  // Straight from the docstring of compute_reference, one element at a time; sizes straddle the blocks of the
  // implementation.
  for (const auto& [seqlen_q, seqlen_k, d, causal, scale, dtype] :
       {std::tuple{70, 131, 5, false, 0.0f, Dtype::fp32},
        {131, 70, 17, true, 0.0f, Dtype::fp32},
        {9, 65, 40, true, -0.3f, Dtype::fp32},
        {70, 131, 5, false, 0.0f, Dtype::fp16},
        {131, 70, 17, true, -0.3f, Dtype::fp16},
        {66, 130, 20, true, 0.0f, Dtype::bf16}}) {
    Case c = make_case(2, seqlen_q, seqlen_k, d, causal, "randn:2");
    c.problem.dtype = dtype;
    const double e = dtype == Dtype::fp32 ? 0 : dtype == Dtype::fp16 ? 0x1p-15 : 0x1p-127;
    if (scale != 0) c.problem.softmax_scale = scale;
    const double softmax_scale = c.problem.softmax_scale, size = std::abs(softmax_scale);
    Reference r = allocate_reference(c.problem, spelled_out(c.problem, {}, true), true);
    for (int h = 0; h < 2; ++h) {
      for (int i = 0; i < seqlen_q; ++i) {
        std::vector<double> s(seqlen_k, -kInfinity), a(seqlen_k);
        double largest = -kInfinity, largest_abs = 0, largest_a = 0, sum = 0;
        for (int j = 0; j < seqlen_k; ++j) {
          if (!c.problem.visible(i, j)) continue;
          s[j] = 0;
          for (int x = 0; x < d; ++x) {
            const double term = static_cast<double>(c.at_query(c.q, h, i, x)) * c.at_key(c.k, h, j, x);
            s[j] += softmax_scale * term;
            a[j] += size * std::abs(term);
          }
          largest = std::max(largest, s[j]);
          largest_abs = std::max(largest_abs, std::abs(s[j]));
          largest_a = std::max(largest_a, a[j]);
        }
        for (const double score : s) sum += std::exp(score - largest);
        const int64_t row = h * seqlen_q + i;
        if (largest == -kInfinity) {
          r.lse.value[row] = -kInfinity;
          continue;
        }
        const double lse = largest + std::log(sum), share = dtype == Dtype::fp32 ? 1.0 / 3 : 0;
        double mean_a = 0;
        for (int j = 0; j < seqlen_k; ++j) mean_a += std::exp(s[j] - lse) * a[j];
        const auto with_lse = [&](double w) { return std::max(w + share * mean_a, share * std::abs(lse)); };
        r.lse.value[row] = lse;
        r.lse.allowance[row] = std::max({1.0, std::abs(lse), largest_a / 3});
        const auto add_stored = [&, dtype = dtype](ReferenceTensor& tensor, int64_t at, double term) {
          if (dtype != Dtype::fp32) tensor.stored[at] += term;
        };
        double mean_score = 0;
        for (int j = 0; j < seqlen_k; ++j)
          if (c.problem.visible(i, j)) mean_score += std::exp(s[j] - lse) * std::abs(s[j]);
        add_stored(r.lse, row, mean_score);
        double delta = 0, delta_abs = 0;
        for (int x = 0; x < d; ++x) {
          double o = 0, o_allowance = 0;
          for (int j = 0; j < seqlen_k; ++j) {
            if (!c.problem.visible(i, j)) continue;
            const double p = std::exp(s[j] - lse), w = std::max({1.0, a[j] / 3, largest_abs / 3}), W = with_lse(w),
                         v = c.at_key(c.v, h, j, x), d_o = c.at_query(c.d_o, h, i, x);
            o += p * v;
            o_allowance += (p * w + e * std::exp(largest - lse)) * std::abs(v);
            add_stored(r.o, row * d + x, (p * (std::abs(s[j]) + mean_score) + 2 * e) * std::abs(v));
            r.dv.value[(h * seqlen_k + j) * d + x] += p * d_o;
            r.dv.allowance[(h * seqlen_k + j) * d + x] += (p * W + e) * std::abs(d_o);
            add_stored(r.dv, (h * seqlen_k + j) * d + x, (p * (std::abs(s[j]) + mean_score) + 2 * e) * std::abs(d_o));
          }
          r.o.value[row * d + x] = o;
          r.o.allowance[row * d + x] = o_allowance;
          delta += c.at_query(c.d_o, h, i, x) * o;
          delta_abs += std::abs(c.at_query(c.d_o, h, i, x) * o);
        }
        for (int j = 0; j < seqlen_k; ++j) {
          if (!c.problem.visible(i, j)) continue;
          double dp = 0, dp_abs = 0;
          for (int x = 0; x < d; ++x) {
            const double term = static_cast<double>(c.at_query(c.d_o, h, i, x)) * c.at_key(c.v, h, j, x);
            dp += term;
            dp_abs += std::abs(term);
          }
          const double p = std::exp(s[j] - lse), W = with_lse(std::max({1.0, a[j] / 3, largest_abs / 3}));
          const double ds = softmax_scale * p * (dp - delta), parts = size * (dp_abs + delta_abs);
          r.largest_dp = std::max(r.largest_dp, std::abs(dp));
          r.largest_ds = std::max(r.largest_ds, std::abs(ds));
          const double ds_allowance = p * W * parts + e,
                       ds_stored = (p * (1 + std::abs(s[j]) + mean_score) + 2 * e) * parts;
          for (int x = 0; x < d; ++x) {
            const double q = c.at_query(c.q, h, i, x), k = c.at_key(c.k, h, j, x);
            r.dq.value[row * d + x] += ds * k;
            r.dq.allowance[row * d + x] += ds_allowance * std::abs(k);
            r.dk.value[(h * seqlen_k + j) * d + x] += ds * q;
            r.dk.allowance[(h * seqlen_k + j) * d + x] += ds_allowance * std::abs(q);
            add_stored(r.dq, row * d + x, ds_stored * std::abs(k));
            add_stored(r.dk, (h * seqlen_k + j) * d + x, ds_stored * std::abs(q));
          }
        }
      }
    }
    const Reference reference = c.reference();
    CHECK(distance(reference, r, false) < 1e-12);
    CHECK(distance(reference, r, true) < 1e-12);
    CHECK(reference.largest_dp == Approx(r.largest_dp).epsilon(1e-12));
    CHECK(reference.largest_ds == Approx(r.largest_ds).epsilon(1e-12));
    CHECK(c.reference(false).largest_dp == 0);
  }
}

TEST_CASE("mask_2x5", "[reference]") { CHECK(mask(2, 5) == "11110/11111"); }
TEST_CASE("mask_5x2", "[reference]") { CHECK(mask(5, 2) == "00/00/00/10/11"); }

TEST_CASE("closed forms", "[reference]") {
  for (const ClosedForm& form : closed_forms()) {
    const Reference r = form.c.reference();
    for (const KnownValues& known : form.known) {
      INFO(form.name << ", " << known.output);
      CHECK(worst_of(r.find(known.output).value, known.values, known.digits) <= 1);
    }
  }
}

TEST_CASE("rows that see no key", "[reference]") {
  const Case c = make_case(2, 96, 48, 16, true);
  const Reference r = c.reference();
  for (int64_t i = 0; i < 48; ++i) CHECK((r.lse.value[i] == -kInfinity && r.lse.allowance[i] == 0));
  for (const ReferenceTensor* tensor : {&r.o, &r.dq})
    for (int64_t n = 0; n < 48 * 16; ++n) CHECK((tensor->value[n] == 0 && tensor->allowance[n] == 0));
  for (int64_t x = 0; x < 16; ++x) CHECK(r.o.value[48 * 16 + x] == c.v[x]);  // row 48 sees key 0 alone
  for (const ReferenceTensor* tensor : {&r.dk, &r.dv})
    for (const double gradient : tensor->value) CHECK(std::isfinite(gradient));
  // The rows without a key count in no average: the other rows alone give the same weight.
  Case seeing = make_case(1, 48, 48, 16, true);
  std::copy_n(c.q.begin() + 48 * 16, 48 * 16, seeing.q.begin());
  std::copy_n(c.k.begin(), 48 * 16, seeing.k.begin());
  Case first_head = make_case(1, 96, 48, 16, true);
  std::copy_n(c.q.begin(), 96 * 16, first_head.q.begin());
  std::copy_n(c.k.begin(), 48 * 16, first_head.k.begin());
  CHECK(first_head.reference().mean_weight == Approx(seeing.reference().mean_weight).epsilon(1e-12));
}

TEST_CASE("one token: o = v, lse = the score", "[reference]") {
  const Reference r = make_case(1, 1, 1, 64, false, "const:133120").reference();
  CHECK(r.o.value == std::vector<double>(64, 133120.0));
  CHECK(r.lse.value[0] == 133120.0 * 133120.0 * 64 * 0.125);
  CHECK(r.largest_score == r.lse.value[0]);
  CHECK(r.largest_weight == r.lse.value[0] / 3);
}

TEST_CASE("huge equal scores leave the probabilities exact", "[reference]") {
  const Reference r = make_case(1, 64, 64, 8, true, "const:133120").reference();  // scores of 5e10
  double harmonic = 0;
  for (int i = 64; i >= 1; --i) harmonic += 1.0 / i;
  CHECK(r.dv.value[0] / 133120 == Approx(harmonic).epsilon(1e-13));
  CHECK(r.dv.value[63 * 8] / 133120 == Approx(1 / 64.0).epsilon(1e-13));
  for (const double o : r.o.value) CHECK(o == Approx(133120).epsilon(1e-13));
}

TEST_CASE("a sampled reference is part of the full one", "[reference]") {
  for (const bool causal : {false, true}) {
    Case c = make_case(5, 130, 77, 12, causal);
    c.problem.dtype = Dtype::bf16;
    const Reference full = c.reference();
    for (const bool all_heads_keys : {false, true}) {
      const Selection rows = sample_rows(c.problem, 40, 3, true, all_heads_keys);
      const Reference sampled = compute_reference_cpu(c.problem, c.inputs(), rows, true);
      const auto is_part = [&](const ReferenceTensor& part, const ReferenceTensor& whole,
                               const std::vector<HeadRow>& list, int64_t rows_per_head) {
        REQUIRE(part.value.size() == list.size() * part.cols);
        for (size_t n = 0; n < part.value.size(); ++n) {
          const HeadRow& at = list[n / part.cols];
          const int64_t there = (at.head * rows_per_head + at.row) * part.cols + static_cast<int64_t>(n) % part.cols;
          if (part.value[n] == whole.value[there]) continue;
          CHECK(part.value[n] == Approx(whole.value[there]).epsilon(1e-12).margin(1e-14));
          CHECK(part.allowance[n] == Approx(whole.allowance[there]).epsilon(1e-12));
          CHECK(part.stored[n] == Approx(whole.stored[there]).epsilon(1e-12));
        }
      };
      for (const auto tensor : {&Reference::o, &Reference::lse, &Reference::dq})
        is_part(sampled.*tensor, full.*tensor, rows.queries, 130);
      for (const auto tensor : {&Reference::dk, &Reference::dv}) is_part(sampled.*tensor, full.*tensor, rows.keys, 77);
    }
  }
}

TEST_CASE("sample_rows takes the corners, the tile edges and the rest at random", "[reference]") {
  const Problem p{.batch = 2, .heads = 3, .seqlen_q = 1000, .seqlen_k = 700, .causal = true, .tile = {128, 32}};
  const Selection rows = sample_rows(p, 64, 5, true, true);
  CHECK_FALSE(rows.full);
  CHECK(rows.queries.size() == 64);
  CHECK(rows.keys.size() == 64);
  const std::set<HeadRow> queries(rows.queries.begin(), rows.queries.end()), keys(rows.keys.begin(), rows.keys.end());
  CHECK(queries.size() == 64);
  CHECK(std::is_sorted(rows.queries.begin(), rows.queries.end()));
  for (const int64_t head : {0, 5}) {
    for (const int64_t row : {0, 999, 127, 128, 895, 896, 299, 300}) CHECK(queries.contains({head, row}));
    for (const int64_t row : {0, 699, 31, 32, 671, 672}) CHECK(keys.contains({head, row}));
  }
  std::set<int64_t> heads;
  for (const HeadRow& row : rows.queries) {
    heads.insert(row.head);
    CHECK((row.row >= 0 && row.row < 1000));
  }
  CHECK(heads.size() == 6);
  for (const HeadRow& row : sample_rows(p, 64, 5, true, false).keys) CHECK((row.head == 0 || row.head == 5));
  CHECK(sample_rows(p, 64, 5, true, true).queries == rows.queries);
  CHECK(sample_rows(p, 64, 6, true, true).queries != rows.queries);
  CHECK(sample_rows(p, 1, 5, false, true).queries == std::vector<HeadRow>{{5, 999}});
  CHECK(sample_rows(p, 6000, 5, true, true).full);
  CHECK(sample_rows(p, 5999, 5, true, true).keys.size() == 4200);
}

TEST_CASE("choose_selection keeps to the budget", "[reference]") {
  const Problem small{.heads = 2, .seqlen_q = 512, .seqlen_k = 512},
      large{.heads = 16, .seqlen_q = 131072, .seqlen_k = 131072};
  CHECK(choose_selection(small, true, 2, 4e9, 64, 1).full);
  const Selection forward = choose_selection(large, false, 2, 4e9, 64, 1);
  CHECK_FALSE(forward.full);
  CHECK(forward.queries.size() == 64);
  CHECK(reference_flops(large, forward, false) < 2 * 4e9 * 2);
  const Selection backward = choose_selection(large, true, 5, 1e13, 64, 1);
  CHECK(backward.keys.size() == 64);
  for (const HeadRow& key : backward.keys) CHECK((key.head == 0 || key.head == 15));
  const Selection last_head = choose_selection(large, true, 2, 4e9, 64, 1);
  CHECK(last_head.keys.size() >= 20);
  for (const HeadRow& key : last_head.keys) CHECK(key.head == 15);
}

TEST_CASE("reference on the GPU equals the one on the CPU", "[reference][gpu]") {
  if (!reference_gpu_available()) {
    skip_test("no GPU");
    return;
  }
  constexpr Dtype fp32 = Dtype::fp32, fp16 = Dtype::fp16, bf16 = Dtype::bf16;
  for (const auto& [heads, seqlen_q, seqlen_k, d, causal, init, dtype] :
       {std::tuple{2, 1, 1, 64, false, "randn", fp32},
        {3, 77, 77, 64, true, "randn", fp32},
        {2, 100, 131, 40, false, "randn:3", fp16},
        {2, 200, 90, 63, true, "abs", bf16},
        {1, 9, 300, 128, true, "randn", fp16},
        {2, 65, 65, 256, false, "randn", fp32},
        {1, 64, 64, 1, true, "const:133120", fp32},
        {40, 33, 65, 16, true, "randn", fp16},
        {3, 2, 1000, 8, false, "randn:0.1", fp32}}) {
    Case c = make_case(heads, seqlen_q, seqlen_k, d, causal, init);
    c.problem.dtype = dtype;
    INFO(heads << " heads, " << seqlen_q << " x " << seqlen_k << ", d " << d << ", " << init << ", "
               << dtype_name(dtype));
    for (const Selection& rows :
         {Selection{}, sample_rows(c.problem, 20, 1, true, true), sample_rows(c.problem, 20, 1, true, false)}) {
      for (const bool backward : {false, true}) {
        const Reference cpu = compute_reference_cpu(c.problem, c.inputs(), rows, backward),
                        gpu = compute_reference_gpu(c.problem, c.inputs(), rows, backward);
        CHECK(distance(gpu.o.value, cpu.o.value) < 1e-12);
        CHECK(distance(gpu.lse.value, cpu.lse.value) < 1e-12);
        CHECK(distance(gpu, cpu, true) < 1e-12);
        CHECK(distance(gpu.dv.value, cpu.dv.value) < 1e-12);
        // dQ and dK may cancel to rounding: measured by the allowance, which does not.
        for (const auto tensor : {&Reference::dq, &Reference::dk}) {
          for (size_t n = 0; n < (cpu.*tensor).value.size(); ++n) {
            CHECK(std::abs((gpu.*tensor).value[n] - (cpu.*tensor).value[n]) <= 1e-12 * (cpu.*tensor).allowance[n]);
          }
        }
        for (const auto number :
             {&Reference::mean_weight, &Reference::largest_weight, &Reference::largest_score, &Reference::largest_dp})
          CHECK(gpu.*number == Approx(cpu.*number).epsilon(1e-12));
        CHECK(gpu.largest_ds ==
              Approx(cpu.largest_ds).epsilon(1e-12).margin(1e-12 * cpu.largest_dp));  // dP - D may cancel to rounding
      }
    }
  }
}
