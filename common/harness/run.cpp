#include "common/harness/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <memory>
#include <utility>

#include "common/base/error.h"
#include "common/base/half.h"
#include "common/harness/device_run.h"
#include "common/harness/film.h"
#include "common/harness/inputs.h"
#include "common/harness/memory.h"
#include "common/base/npy.h"
#include "common/harness/split_range.h"
#include "common/harness/trace.h"
#include "common/traffic/cupti.h"

namespace attention {

namespace {

// Rows of a sampled check, and how long a full one may take before it is sampled instead.
constexpr int64_t kSampledRowsGpu = 256, kSampledRowsCpu = 64;
constexpr double kCheckSecondsGpu = 5, kCheckSecondsCpu = 2;
// The CPU executor's thread orders: by index, and shuffled by two seeds (one fixed order misses races that another
// shows).
constexpr uint64_t kThreadOrders[] = {0, 1, 2};
constexpr int64_t kFilmedBlocks = 64;  // of a launch

/// Compares what the executor counted with the formulas, per kernel and tensor; one line per difference.
std::vector<std::string> count_differences(const std::vector<KernelCost>& expected,
                                           const std::vector<LaunchRecord>& launches) {
  if (expected.size() != launches.size())
    return {fmt::format("{} kernels were launched, the traffic formula has {}", launches.size(), expected.size())};
  std::vector<std::string> lines;
  for (size_t n = 0; n < launches.size(); ++n) {
    const KernelCost& formula = expected[n];
    const LaunchRecord& launch = launches[n];
    if (formula.name != launch.kernel)
      lines.push_back(fmt::format("launch {} is {}, the traffic formula names {}", n, launch.kernel, formula.name));
    std::vector<TensorBytes> difference = launch.counted;  // becomes counted - expected
    for (const TensorBytes& bytes : formula.requested) difference.push_back({bytes.tensor, -bytes.load, -bytes.store});
    for (const TensorBytes& off : sum_by_tensor(difference))
      if (off.load != 0 || off.store != 0)
        lines.push_back(fmt::format("{}: counted minus expected bytes of {}: load {:+}, store {:+}", launch.kernel,
                                    off.tensor, off.load, off.store));
    if (launch.counted_flops != formula.executed_flops)
      lines.push_back(fmt::format(
          "{}: counted {} FLOPs, expected {}", launch.kernel, launch.counted_flops, formula.executed_flops));
  }
  return lines;
}

/// ||b - a|| / ||a||, 0 where both are 0.
double relative_distance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, norm = 0;
  for (size_t n = 0; n < a.size(); ++n)
    difference += std::pow(double{b[n]} - a[n], 2), norm += std::pow(double{a[n]}, 2);
  return difference == 0 ? 0 : std::sqrt(difference / norm);
}

/// What a kernel's run takes time for, in numbers that add up.
double work_of(const KernelCost& kernel) {
  return static_cast<double>(kernel.executed_flops + total_load(kernel.requested) + total_store(kernel.requested));
}

double work_of(const std::vector<KernelCost>& kernels) {
  double work = 0;
  for (const KernelCost& kernel : kernels) work += work_of(kernel);
  return work;
}

/// `launches`: as Device::launches_done.
double share_done(const std::vector<KernelCost>& kernels, double launches) {
  double done = 0;
  for (size_t n = 0; n < kernels.size(); ++n)
    done += work_of(kernels[n]) * std::clamp(launches - static_cast<double>(n), 0.0, 1.0);
  return kernels.empty() ? 0 : done / work_of(kernels);
}

/// "N=4096, 16 heads", "Nq=300, Nk=1000, 8 heads".
std::string describe_sizes(const Problem& p) {
  const std::string lengths =
      p.seqlen_q == p.seqlen_k ? fmt::format("N={}", p.seqlen_q) : fmt::format("Nq={}, Nk={}", p.seqlen_q, p.seqlen_k);
  return fmt::format("{}, {} head{}", lengths, p.heads_total(), p.heads_total() == 1 ? "" : "s");
}

std::string human_duration(double seconds) {
  if (seconds < 120) return fmt::format("{:.0f} seconds", seconds);
  if (seconds < 7200) return fmt::format("{:.0f} minutes", seconds / 60);
  return seconds < 172800 ? fmt::format("{:.0f} hours", seconds / 3600) : fmt::format("{:.0f} days", seconds / 86400);
}

/// The state of one run; its methods are the stages, in order.
class Run {
 public:
  Run(const Options& options, const Step& step, Device& device, Progress& progress, ProblemData& data,
      RunResult& result, const std::vector<Scratch>& scratch)
      : options_(options),
        step_(step),
        device_(device),
        progress_(progress),
        inputs_(data.inputs),
        selection_(data.selection),
        reference_(data.reference),
        result_(result),
        problem_(result.problem),
        on_device_(device, problem_, scratch, inputs_.spans()) {}

  void run_method(const Method& method, MethodResult& into) {
    progress_.stage(fmt::format("{} {}: running", step_.id, method.name));
    std::vector<Output> first;
    if (device_.kind() == DeviceKind::gpu) run_on_gpu(method, into, first);
    else run_on_cpu(method, into, first);
    for (Output& output : first) {
      const auto old = std::find_if(
          outputs_.begin(), outputs_.end(), [&](const Output& other) { return other.tensor == output.tensor; });
      if (old == outputs_.end()) outputs_.push_back(std::move(output));
      else *old = std::move(output);
    }
  }

  /// Says on stderr what a run of more than half a minute on the CPU executor will take, and what takes less.
  void announce(const std::vector<Method>& methods) {
    if (device_.kind() != DeviceKind::cpu) return;
    double seconds = 0;
    const double orders = options_.thread_order ? 1 : static_cast<double>(std::size(kThreadOrders));
    for (size_t n = 0; n < methods.size(); ++n)
      if (result_.methods[n].not_run.empty())
        seconds += orders * expected_seconds(methods[n], result_.methods[n].expected);
    constexpr double kLong = 30, kShort = 10;
    if (seconds < kLong) return;
    const bool few_heads = problem_.heads_total() == 1;
    const double shrink = std::sqrt(kShort / seconds * (few_heads ? 1 : static_cast<double>(problem_.heads_total())));
    int64_t shorter = 64;
    while (2 * shorter <=
           shrink * std::sqrt(static_cast<double>(problem_.seqlen_q) * static_cast<double>(problem_.seqlen_k)))
      shorter *= 2;
    progress_.say(fmt::format(
        "{}: about {} on the CPU executor, {} thread order{}. Less: --plan tells bytes and FLOPs at once; {}--seqlen "
        "{} takes about {:.0f} s{}",
        step_.id, human_duration(seconds), orders, orders == 1 ? "" : "s", few_heads ? "" : "--batch 1 --heads 1 ",
        shorter, kShort, orders == 1 ? "" : "; --thread-order 0 runs one order instead of three"));
  }

  /// Runs the method some more times, for its traffic. After the timed runs of all methods: a profiler in the process
  /// slows launches.
  void measure_method(const Method& method, MethodResult& into) {
    progress_.stage(fmt::format("{} {}: measuring traffic", step_.id, method.name));
    if (into.uses_library()) {
      into.measured = MeasuredTraffic{
          .reason = "a library's call may launch several kernels, and measured traffic is told per launch"};
      return;
    }
    MeasurableDevice* gpu = device_.measurable();
    if (gpu) on_device_.prepare(method);
    into.measured = measure_traffic(
        gpu, [&] { method.run(problem_, on_device_.tensors()); }, static_cast<int>(into.launches.size()), open_cupti);
    if (std::none_of(
            into.expected.begin(), into.expected.end(), [](const KernelCost& kernel) { return kernel.copy_engine; }))
      return;
    for (const Counter counter : {Counter::requested_load, Counter::requested_store}) {
      into.measured->together[counter].reset();
      for (CounterBytes& kernel : into.measured->kernels) kernel[counter].reset();
      into.measured->why_not[static_cast<size_t>(counter)] =
          "the copy engine's loads and stores are not counted as requested; what it loads is all of L2→SM";
    }
  }

  /// The whole outputs, of the last method that computed each.
  const std::vector<Output>& outputs() const { return outputs_; }

 private:
  /// What one run of the method takes, from a run on a small part of the problem. 0 for a problem that is small itself.
  double expected_seconds(const Method& method, const std::vector<KernelCost>& expected) {
    constexpr int64_t kPart = 512;
    constexpr double kQuick = 4;  // so many times the part's work take no time worth telling
    Problem part = problem_;
    part.batch = part.heads = 1;
    part.seqlen_q = std::min(kPart, part.seqlen_q);
    part.seqlen_k = std::min(kPart, part.seqlen_k);
    const std::vector<KernelCost> cost = method.cost(part);
    if (cost.empty() || work_of(expected) <= kQuick * work_of(cost)) return 0;
    const auto some = [&](const std::vector<float>& values, int64_t elements) {
      return std::span(values).first(std::min(values.size(), static_cast<size_t>(elements)));
    };
    DeviceRun small(device_, part, scratch_of(method, part),
                    {some(inputs_.q, part.Xq()), some(inputs_.k, part.Xk()), some(inputs_.v, part.Xk()),
                     some(inputs_.d_o, part.Xq())});
    const double ms = device_.time_ms([&] {
      small.prepare(method);
      method.run(part, small.tensors());
    });
    return ms / 1000 * work_of(expected) / work_of(cost);
  }

  /// A failure line when the device's outputs are not, bit for bit, those of the first run; of one that is summed in
  /// any order, when it differs by more than its rounding.
  void compare_with_first(const Method& method, MethodResult& into, const std::vector<Output>& first,
                          const std::string& which) {
    const std::vector<Output> now = on_device_.outputs(method);
    for (size_t n = 0; n < now.size(); ++n) {
      const std::vector<float>&a = first[n].values, &b = now[n].values;
      const std::string name = now[n].tensor->file;
      if (!method.repeats(name, problem_)) {
        const double spread = relative_distance(a, b);
        if (!(spread <= unit_roundoff(problem_.dtype)))
          fail_outputs(fmt::format("{}: {} in {} is {:.1e} away from the first run's, more than its rounding",
                                   method.name, name, which, spread));
        into.spread = std::max(into.spread.value_or(0), spread);
        continue;
      }
      if (std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0) continue;
      size_t at = 0;
      while (std::memcmp(&a[at], &b[at], sizeof(float)) == 0) ++at;
      fail_outputs(fmt::format("{}: {} is not the same in {} as in the first run (element {}: {} then, {} now)",
                               method.name, name, which, at, a[at], b[at]));
    }
  }

  /// The outputs are wrong, or not the same each time.
  void fail_outputs(const std::string& line) {
    result_.outputs_wrong = true;
    fail(line);
  }

  void fail(const std::string& line) {
    if (std::find(result_.failures.begin(), result_.failures.end(), line) == result_.failures.end())
      result_.failures.push_back(line);
  }

  void check(const Method& method, MethodResult& into, const std::vector<Output>& outputs) {
    if (options_.check.kind == CheckChoice::Kind::none) return;
    if (!reference_) compute_reference();
    progress_.stage(fmt::format("{} {}: checking", step_.id, method.name));
    const bool default_inputs = options_.load_dir.empty() && options_.init.is_default() && !options_.softmax_scale;
    for (const Output& output : outputs) {
      CheckResult& result = into.checks.emplace_back(check_output(
          output.tensor->file, problem_, output.values, reference_->find(output.tensor->file), selection_,
          default_inputs, into.grows_quadratically(), tolerance_factor()));
      if (result.pass) continue;
      if (std::isinf(result.max_abs)) {
        const std::string why =
            describe_overflow(output.tensor->file, problem_, *reference_, into.grows_quadratically());
        if (!why.empty()) result.reason += "; " + why;
      }
      fail_outputs(fmt::format("{}: {}", method.name, result.reason));
    }
  }

  double tolerance_factor() const { return problem_.dtype == Dtype::fp32 ? step_.fp32_tolerance_factor : 1; }

  void compute_reference() {
    progress_.stage(step_.id + ": float64 reference");
    const bool backward = !inputs_.d_o.empty();
    const bool on_gpu = device_.kind() == DeviceKind::gpu && reference_gpu_available();
    const double seconds = on_gpu ? kCheckSecondsGpu : kCheckSecondsCpu;
    const double rate = on_gpu ? reference_rate_gpu() : reference_rate_cpu();
    if (options_.check.kind == CheckChoice::Kind::automatic) {
      selection_ = choose_selection(
          problem_, backward, seconds, rate, on_gpu ? kSampledRowsGpu : kSampledRowsCpu, options_.seed);
    } else if (options_.check.kind == CheckChoice::Kind::sample) {
      selection_ = sample_rows(problem_, options_.check.rows, options_.seed, backward, true);
      if (reference_flops(problem_, selection_, backward) > seconds * rate)
        selection_ = sample_rows(problem_, options_.check.rows, options_.seed, backward, false);
    }
    reference_ =
        std::make_unique<Reference>(on_gpu ? compute_reference_gpu(problem_, inputs_.spans(), selection_, backward)
                                           : compute_reference_cpu(problem_, inputs_.spans(), selection_, backward));
  }

  void run_on_gpu(const Method& method, MethodResult& into, std::vector<Output>& first) {
    const auto work = [&] { method.run(problem_, on_device_.tensors()); };
    on_device_.prepare(method);
    work();
    device_.synchronize();
    first = on_device_.outputs(method);
    check(method, into, first);
    if (result_.outputs_wrong) return;  // a wrong answer's time is no result

    progress_.stage(fmt::format("{} {}: timing", step_.id, method.name));
    int run = 1;
    on_device_.poison_outputs(method);
    into.time = measure(
        device_, work, options_.repeat,
        [&] {
          if (options_.repeat) on_device_.poison_outputs(method);
        },
        [&] {
          ++run;
          if (options_.repeat) compare_with_first(method, into, first, fmt::format("run {}", run));
        });
    compare_with_first(method, into, first, "the last timed run");

    into.launches = record_launches(device_, work, *into.time);
    if (!options_.timeline.empty() && &method == &step_.methods.back()) note_times(method, into, first);
  }

  /// The kernels that note what their warps do when: how long they take beside the plain ones, then a run whose notes
  /// the timeline is made of.
  void note_times(const Method& method, MethodResult& into, const std::vector<Output>& first) {
    const std::vector<Method>& timed = find_step(DeviceKind::gpu_timed, step_.id)->methods;
    const auto same =
        std::find_if(timed.begin(), timed.end(), [&](const Method& one) { return one.name == method.name; });
    const auto work = [&] { same->run(problem_, on_device_.tensors()); };
    progress_.stage(fmt::format("{} {}: timestamps", step_.id, method.name));
    on_device_.prepare(method);
    device_.start_timestamps();
    into.noted_time = measure(device_, work, options_.repeat, [] {}, [] {});
    into.noted = device_.take_timestamps(work);
    for (NotedLaunch& launch : into.noted) launch.tensors = on_device_.addresses();
    compare_with_first(method, into, first, "the run with timestamps");
    if (std::all_of(into.noted.begin(), into.noted.end(), [](const NotedLaunch& one) { return one.warps.empty(); }))
      fail(fmt::format(
          "{}: no block ran on SM 0, whose timeline was asked for: more heads or tokens fill all SMs", method.name));
  }

  /// One run per thread order, each checked. The run in index order is the one whose emulated time is told, so it goes
  /// without race checks when another order has them. It is the one that is filmed, too, which makes it slower.
  void run_on_cpu(const Method& method, MethodResult& into, std::vector<Output>& first) {
    ExecutorOptions& executor = executor_options();
    const std::vector<uint64_t> orders =
        options_.thread_order ? std::vector<uint64_t>{*options_.thread_order}
                              : std::vector<uint64_t>(std::begin(kThreadOrders), std::end(kThreadOrders));
    const auto work = [&] { method.run(problem_, on_device_.tensors()); };
    for (size_t n = 0; n < orders.size(); ++n) {
      executor.thread_order = orders[n];
      const bool another_checks =
          n == 0 && orders.size() > 1 && options_.race_check == ExecutorOptions::RaceCheck::ends;
      executor.race_check = another_checks ? ExecutorOptions::RaceCheck::none : options_.race_check;
      executor.prints = n > 0 ? nullptr : options_.json == "-" ? stderr : stdout;
      on_device_.prepare(method);
      progress_.stage(fmt::format("{} {}: thread order {} of {}", step_.id, method.name, n + 1, orders.size()),
                      [this, &into, n, of = orders.size()] {
                        return (static_cast<double>(n) + share_done(into.expected, device_.launches_done())) /
                               static_cast<double>(of);
                      });
      const bool filmed = n == 0 && options_.films();
      if (filmed) executor::start_film(kFilmedBlocks);
      std::vector<LaunchRecord> launches = device_.record(work);
      if (filmed) into.film = executor::stop_film();
      // A tile product knows its padded width, not head_dim; it counts FLOPs per dimension of a row (tile/product.h).
      for (LaunchRecord& launch : launches) launch.counted_flops *= problem_.head_dim;
      for (const std::string& line : count_differences(into.expected, launches)) {
        result_.counts_wrong = true;
        fail(fmt::format("{}: {}", method.name, line));
      }
      if (n == 0) {
        first = on_device_.outputs(method);
        check(method, into, first);
        double ms = 0;
        for (const LaunchRecord& launch : launches) ms += launch.time_ms;
        into.time = summarize({ms}, true);
        into.launches = std::move(launches);
      } else {
        compare_with_first(method, into, first, fmt::format("thread order {}", orders[n]));
      }
    }
    result_.thread_orders = orders;
    if (!options_.repeat) return;
    executor.thread_order = orders.front();
    executor.race_check = ExecutorOptions::RaceCheck::none;
    int run = 1;
    into.time = measure(
        device_, work, options_.repeat, [&] { on_device_.prepare(method); },
        [&] { compare_with_first(method, into, first, fmt::format("run {}", ++run)); });
  }

  const Options& options_;
  const Step& step_;
  Device& device_;
  Progress& progress_;
  const InputTensors& inputs_;
  Selection& selection_;
  std::unique_ptr<Reference>& reference_;
  RunResult& result_;
  const Problem& problem_;
  DeviceRun on_device_;
  std::vector<Output> outputs_;
};

/// Settles which methods run: all when they fit, else (and in a sweep of tiles) without the baselines between the first
/// and the last.
std::vector<Scratch> fit_memory(const Step& step, const Device& device, bool backward, RunResult& result) {
  std::vector<const Method*> all, without_baselines;
  for (const Method& method : step.methods) {
    all.push_back(&method);
    if (&method == &step.methods.front() || &method == &step.methods.back()) without_baselines.push_back(&method);
  }
  std::vector<Scratch> scratch = shared_scratch(result.problem, all);
  result.needed_bytes = bytes_needed(device, result.problem, backward, scratch);
  const bool sweep = result.options.sweep_tiles;
  if (result.needed_bytes <= result.free_bytes && !sweep) return scratch;

  const std::string shortage = sweep ? "--sweep-tiles leaves the baselines out"
                                     : describe_shortage(result.free_bytes, result.needed_bytes, scratch);
  for (size_t n = 1; n + 1 < step.methods.size(); ++n) result.methods[n].not_run = shortage;
  scratch = shared_scratch(result.problem, without_baselines);
  result.needed_bytes = bytes_needed(device, result.problem, backward, scratch);
  if (result.needed_bytes <= result.free_bytes || result.planned_only) return scratch;

  const bool quadratic =
      std::any_of(scratch.begin(), scratch.end(), [](const Scratch& buffer) { return buffer.quadratic; });
  throw DeviceFailure(fmt::format(
      "{} at {}: {}; {}", step.id, describe_sizes(result.problem),
      describe_shortage(result.free_bytes, result.needed_bytes, scratch),
      quadratic ? "step03 needs none of them" : "choose a smaller --seqlen, --heads or --batch"));
}

std::string path_of(const std::string& folder, const TensorInfo& output) { return folder + "/" + output.file + ".npy"; }

/// Asked before a run that may take hours.
void refuse_unwritable_outputs(const std::string& folder, bool backward) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw BadArguments(fmt::format("--save {}: {}", folder, error.message()));
  for (const bool gradients : {false, true})
    for (const TensorInfo* output : outputs_of(gradients))
      if (!gradients || backward) refuse_unwritable(path_of(folder, *output), "--save");
}

void save_outputs(const std::string& folder, const std::vector<Output>& outputs, RunResult& result) {
  try {
    WholeFiles files;
    for (const Output& output : outputs)
      add_npy(files, path_of(folder, *output.tensor), output.tensor->shape(result.problem), output.values,
              output.tensor->dtype(result.problem) == Dtype::fp16);
    files.commit();
    for (const Output& output : outputs) result.saved.push_back(path_of(folder, *output.tensor));
  } catch (const BadArguments& why) {
    result.not_saved = why.what();
  }
}

}  // namespace

ProblemRuns::ProblemRuns(Options options, const Step& step, ChosenDevice& chosen, Progress& progress)
    : options_(std::move(options)),
      step_(step),
      chosen_(chosen),
      progress_(progress),
      free_bytes_(chosen.device->free_bytes()) {
  if (!options_.load_dir.empty()) data_.inputs = load_inputs(options_, has_backward());
  problem_ = make_problem(options_, step_, *chosen_.device);
}

bool ProblemRuns::has_backward() const {
  return std::any_of(step_.methods.begin(), step_.methods.end(), [](const Method& method) { return method.backward; });
}

RunResult ProblemRuns::expected(TileShape tile) const {
  const Device& device = *chosen_.device;
  RunResult result;
  result.step = step_.id;
  result.title = step_.title;
  result.chapter = step_.chapter;
  result.device = device.kind();
  result.device_name = device.name();
  result.device_note = chosen_.note;
  result.l2_bytes = device.l2_bytes();
  result.hbm_peak = device.hbm_peak();
  if (device.kind() == DeviceKind::gpu) result.figures = find_figures(device.name(), find_gpu().driver_cuda);
  else result.figures.reason = "the CPU executor has no GPU whose time could be predicted";
  result.free_bytes = free_bytes_;
  result.options = options_;
  result.planned_only = options_.plan;
  result.problem = problem_;
  result.problem.tile = tile;
  if (step_.splits) result.splits = step_.splits(result.problem);
  for (const Method& method : step_.methods) {
    MethodResult& into = result.methods.emplace_back();
    into.name = method.name;
    into.backward = method.backward;
    into.expected = method.cost(result.problem);
    into.scratch = {row_scratch("LSE", result.problem)};
    for (const Scratch& own : scratch_of(method, result.problem)) into.scratch.push_back(own);
    into.useful_flops = useful_flops(result.problem, method.backward);
  }
  result.verdict = options_.plan ? "not run (--plan)" : "not checked";
  return result;
}

RunResult ProblemRuns::run(const Options& options, TileShape tile) {
  Device& device = *chosen_.device;
  RunResult result = expected(tile);
  const Problem& problem = result.problem;
  const std::vector<Scratch> scratch = fit_memory(step_, device, has_backward(), result);
  if (options.plan) return result;
  if (device.kind() == DeviceKind::gpu) {
    if (!options.film.empty()) throw BadArguments("--film shows what the CPU executor sees: add --device cpu");
    if (!options.timeline.empty() && !find_step(DeviceKind::gpu_timed, step_.id))
      throw BadArguments(fmt::format(
          "--timeline: these kernels note no times on a GPU: {}--device cpu shows the CPU executor's logical time",
          step_.id.starts_with("step") ? fmt::format("make {}-timeline builds those that do; ", step_.id) : ""));
  } else if (options.timeline.ends_with(".stamps")) {
    throw BadArguments("--timeline " + options.timeline + ": the CPU executor takes no timestamps");
  }

  if (!options.save_dir.empty()) refuse_unwritable_outputs(options.save_dir, has_backward());
  if (!has_inputs_) {
    progress_.stage(step_.id + ": inputs");
    if (options.load_dir.empty()) data_.inputs = make_inputs(options, problem, has_backward());
    round_inputs(data_.inputs, problem.dtype);
    if (problem.on_tensor_cores) refuse_what_cannot_be_split(data_.inputs.spans(), problem);
    has_inputs_ = true;
  }
  Run run(options, step_, device, progress_, data_, result, scratch);
  run.announce(step_.methods);
  if (device.kind() == DeviceKind::gpu) result.device_bytes_used = result.free_bytes - device.free_bytes();
  for (size_t n = 0; n < step_.methods.size(); ++n)
    if (result.methods[n].not_run.empty()) run.run_method(step_.methods[n], result.methods[n]);
  for (size_t n = 0; n < step_.methods.size(); ++n)
    if (options.traffic && !result.outputs_wrong && result.methods[n].not_run.empty())
      run.measure_method(step_.methods[n], result.methods[n]);

  if (options.check.kind != CheckChoice::Kind::none && data_.reference) {
    const Reference& reference = *data_.reference;
    result.verdict = verdict(!result.outputs_wrong, problem.dtype, reference);
    if (problem.dtype == Dtype::fp32 && step_.fp32_tolerance_factor != 1 && !result.outputs_wrong)
      result.verdict += fmt::format(", at {:g} times the steps' tolerance", step_.fp32_tolerance_factor);
    result.mean_weight = reference.mean_weight;
    result.largest_score = reference.largest_score;
  } else if (result.outputs_wrong) {
    result.verdict = "FAIL";
  }
  const auto values = [&](const char* tensor) -> const std::vector<float>& {
    return std::find_if(run.outputs().begin(), run.outputs().end(),
                        [&](const Output& output) { return output.tensor == find_tensor(tensor); })
        ->values;
  };
  const int64_t row = options.trace_row.value_or(problem.seqlen_q / 2);
  if (options.trace_row)
    result.trace = trace_row(problem, data_.inputs.spans(), row, values("LSE")[static_cast<size_t>(row)]);
  if (!options.film.empty())
    result.film = film_page(result, data_.inputs.spans(), row, values("O"), values("LSE")[static_cast<size_t>(row)]);
  if (!options.timeline.empty() && (device.kind() == DeviceKind::cpu || result.methods.back().noted_time))
    result.timeline = timeline_file(result, options.timeline);
  if (!options.save_dir.empty() && result.failures.empty()) save_outputs(options.save_dir, run.outputs(), result);
  return result;
}

RunResult run_step(Options options, const Step& step, ChosenDevice& chosen, Progress& progress) {
  ProblemRuns runs(std::move(options), step, chosen, progress);
  return runs.run(runs.options(), choose_tile(runs.options(), step, runs.problem()));
}

}  // namespace attention
