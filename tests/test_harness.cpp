// The harness with steps made for the purpose: a wrong, stale, unsteady or miscounted result must never look like a right one.
#include <cmath>
#include <string>
#include <vector>

#include "common/harness/error.h"
#include "common/harness/json.h"
#include "common/harness/memory.h"
#include "common/harness/report.h"
#include "common/harness/run.h"
#include "common/harness/timing.h"
#include "tests/catch.h"

using namespace attention;

namespace {

/// Attention in plain host code: on the CPU executor device memory is host memory, and no kernel is launched.
void plain_attention(const Problem& p, const Tensors& t) {
  const float *q = static_cast<const float*>(t.q), *k = static_cast<const float*>(t.k), *v = static_cast<const float*>(t.v);
  float *o = static_cast<float*>(t.o), *lse = static_cast<float*>(t.scratch("LSE"));
  for (int64_t head = 0; head < p.heads_total(); ++head) {
    for (int64_t i = 0; i < p.seqlen_q; ++i) {
      const float* qi = q + (head * p.seqlen_q + i) * p.head_dim;
      std::vector<double> s(p.seqlen_k), sum(p.head_dim);
      double m = -INFINITY, l = 0;
      for (int64_t j = 0; j < p.seqlen_k; ++j) {
        for (int c = 0; c < p.head_dim; ++c) s[j] += double{qi[c]} * k[(head * p.seqlen_k + j) * p.head_dim + c];
        m = std::max(m, s[j] *= p.softmax_scale);
      }
      for (int64_t j = 0; j < p.seqlen_k; ++j) {
        l += s[j] = std::exp(s[j] - m);
        for (int c = 0; c < p.head_dim; ++c) sum[c] += s[j] * v[(head * p.seqlen_k + j) * p.head_dim + c];
      }
      for (int c = 0; c < p.head_dim; ++c) o[(head * p.seqlen_q + i) * p.head_dim + c] = static_cast<float>(sum[c] / l);
      lse[head * p.seqlen_q + i] = static_cast<float>(m + std::log(l));
    }
  }
}

Step made_step(std::function<void(const Problem&, const Tensors&)> run) {
  Step step;
  step.id = "step99";
  step.title = "made for a test";
  step.largest_head_dim = 64;
  step.tiles = [](const Problem&) { return std::vector<TileChoice>{{{16, 16}, 1024}}; };
  step.methods = {{.name = "forward",
                   .scratch = [](const Problem& p) { return std::vector<Scratch>{{"LSE", p.L() * 4, false}}; },
                   .cost = [](const Problem&) { return std::vector<KernelCost>{}; },
                   .run = std::move(run)}};
  return step;
}

RunResult run(const Step& step, std::vector<const char*> flags = {}) {
  flags.insert(flags.begin(), {"step99", "--device", "cpu", "--seqlen", "40", "--head-dim", "16"});
  std::string help;
  const Options options = *parse_options(static_cast<int>(flags.size()), flags.data(), step, help);
  ChosenDevice chosen = choose_device(options);
  Progress progress;
  return run_step(options, step, chosen, progress);
}

bool mentions(const RunResult& result, const std::string& text) {
  for (const std::string& line : result.failures)
    if (line.find(text) != std::string::npos) return true;
  return false;
}

}  // namespace

TEST_CASE("a right step passes") {
  const RunResult result = run(made_step(plain_attention));
  CHECK(result.failures.empty());
  CHECK(result.verdict == "PASS");
  CHECK(result.methods.front().checks.size() == 2);
}

TEST_CASE("stale_output_detected") {  // hard case A14: a kernel that never ran leaves NaN, not the last right answer
  int calls = 0;
  const RunResult second_does_nothing = run(made_step([&](const Problem& p, const Tensors& t) {
    if (calls++ == 0) plain_attention(p, t);
  }));
  CHECK(mentions(second_does_nothing, "not the same"));
  const RunResult nothing = run(made_step([](const Problem&, const Tensors&) {}));
  CHECK(mentions(nothing, "forward: o"));
  CHECK(mentions(nothing, "forward: lse"));
  CHECK(nothing.verdict == "FAIL");
}

TEST_CASE("a result that changes from run to run fails") {
  int calls = 0;
  const auto unsteady = [&](const Problem& p, const Tensors& t) {
    plain_attention(p, t);
    float* o = static_cast<float*>(t.o);
    if (++calls == 6) o[5] = std::nextafter(o[5], 1e9f);  // right to 1e-6, and yet another number
  };
  CHECK(mentions(run(made_step(unsteady), {"--repeat", "10"}), "run 4"));  // three thread orders, then the timed runs 2, 3, ...
}

TEST_CASE("a NaN in one element fails, whatever the rest") {
  const RunResult result = run(made_step([](const Problem& p, const Tensors& t) {
    plain_attention(p, t);
    static_cast<float*>(t.o)[17] = NAN;
  }));
  CHECK(mentions(result, "o"));
  CHECK(json_text(result).find("\"worst\": null") != std::string::npos);
}

TEST_CASE("memory behind a tensor and in fresh scratch is NaN") {  // hard case A8
  bool all_nan = true;
  run(made_step([&](const Problem& p, const Tensors& t) {
    plain_attention(p, t);
    const float* behind_k = static_cast<const float*>(t.k) + p.Xk();
    for (int n = 0; n < 64 * 1024 / 4; ++n) all_nan = all_nan && std::isnan(behind_k[n]);
  }));
  CHECK(all_nan);
}

TEST_CASE("a kernel in the formula that was never launched fails") {
  Step step = made_step(plain_attention);
  step.methods.front().cost = [](const Problem& p) { return std::vector<KernelCost>{KernelCost("attention", p).loads("Q", 1, 1)}; };
  CHECK(mentions(run(step), "0 kernels were launched"));
}

TEST_CASE("a baseline that does not fit is n/a with its bytes, and the rest runs") {
  Step step = made_step(plain_attention);
  Method backward = {.name = "standard backward",
                     .backward = true,
                     .scratch = [](const Problem&) { return std::vector<Scratch>{{"dP", int64_t{1} << 50, true}}; },
                     .cost = [](const Problem&) { return std::vector<KernelCost>{}; },
                     .run = [](const Problem&, const Tensors&) {}};
  step.methods.push_back(backward);
  backward.name = "recompute backward";
  backward.scratch = [](const Problem&) { return std::vector<Scratch>{}; };
  step.methods.push_back(backward);
  const RunResult result = run(step, {"--check", "none"});
  CHECK(result.methods[1].not_run.find("dP needs 1125899906842624 bytes") != std::string::npos);
  CHECK(result.methods[2].not_run.empty());
  CHECK(result.failures.empty());
  CHECK(report_text(result).find("n/a: dP needs") != std::string::npos);
}

TEST_CASE("quantiles") {
  const TimeStats stats = summarize({5, 1, 2, 3, 4}, false);
  CHECK(stats.median_ms == Approx(3));
  CHECK(stats.p10_ms == Approx(1.4));
  CHECK(stats.p90_ms == Approx(4.6));
  CHECK(stats.runs == 5);
  CHECK(summarize({7}, true).p90_ms == Approx(7));
}

TEST_CASE("the shortage names what grows as N^2") {
  CHECK(describe_shortage(5, 300, {{"S", 100, true}, {"P", 100, true}, {"LSE", 10, false}}) == "S and P need 200 bytes, 5 are free");
  CHECK(describe_shortage(5, 300, {{"P", 1, true}, {"dP", 2, true}, {"dS", 3, true}}) == "P, dP and dS need 6 bytes, 5 are free");
  CHECK(describe_shortage(5, 300, {{"LSE", 10, false}}) == "the tensors need 300 bytes, 5 are free");
}

TEST_CASE("bytes for a person") {
  CHECK(human_bytes(67371008) == "67.4 MB");
  CHECK(human_bytes(1099511627776) == "1.1 TB");
  CHECK(human_bytes(4096) == "4.1 kB");
  CHECK(human_bytes(0) == "0 B");
}
