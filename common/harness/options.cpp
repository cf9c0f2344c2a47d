#include "common/harness/options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "common/base/error.h"
#include "common/base/text.h"
#include "common/harness/describe.h"

namespace attention {

namespace {

/// A size: a whole number from 1 on. CLI11's own conversion accepts 0x10 and 1'000; a size is plain digits.
int64_t parse_size(const std::string& flag, const std::string& text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc::result_out_of_range)
    throw BadArguments(fmt::format("{} {}: does not fit in 64 bits", flag, text));
  if (error != std::errc() || end != text.data() + text.size())
    throw BadArguments(fmt::format("{} {}: not a whole number", flag, text));
  if (value < 1) throw BadArguments(fmt::format("{} {}: must be at least 1", flag, text));
  return value;
}

int parse_at_most(const std::string& flag, const std::string& text, int most) {
  const int64_t value = parse_size(flag, text);
  if (value > most) throw BadArguments(fmt::format("{} {}: at most {}", flag, text, most));
  return static_cast<int>(value);
}

uint64_t parse_number(const std::string& flag, const std::string& text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size())
    throw BadArguments(fmt::format("{} {}: must be a whole number from 0 to 2^64-1", flag, text));
  return value;
}

TileShape parse_tile(const std::string& text) {
  const size_t x = text.find('x');
  if (x == std::string::npos) throw BadArguments(fmt::format("--tile {}: must be BrxBc, for example 64x64", text));
  const int64_t br = parse_size("--tile", text.substr(0, x)), bc = parse_size("--tile", text.substr(x + 1));
  if (br > 65536 || bc > 65536) throw BadArguments(fmt::format("--tile {}: no tile is that large", text));
  return {static_cast<int>(br), static_cast<int>(bc)};
}

CheckChoice parse_check(const std::string& text) {
  if (text == "full") return {CheckChoice::Kind::full, 0};
  if (text == "none") return {CheckChoice::Kind::none, 0};
  if (text.rfind("sample:", 0) == 0) return {CheckChoice::Kind::sample, parse_size("--check sample:", text.substr(7))};
  throw BadArguments(fmt::format("--check {}: must be full, sample:n or none", text));
}

float parse_scale(const std::string& text) {
  char* end = nullptr;
  const float value = std::strtof(text.c_str(), &end);  // reads numbers below 2^-126 too, where std::stof throws
  if (text.empty() || *end != '\0' || !std::isfinite(value) || value <= 0)
    throw BadArguments(fmt::format("--softmax-scale {}: must be above 0 and finite in fp32", text));
  return value;
}

template <class T>
T parse_choice(const std::string& flag, const std::string& text,
               const std::vector<std::pair<std::string, T>>& choices) {
  std::string names;
  for (const auto& [name, value] : choices) {
    if (text == name) return value;
    names += (names.empty() ? "" : ", ") + name;
  }
  throw BadArguments(fmt::format("{} {}: must be one of {}", flag, text, names));
}

/// A preset gives what was not typed.
void apply_preset(const std::string& name, Options& options) {
  const auto set_sizes = [&](int64_t batch, int64_t heads, int64_t seqlen) {
    if (!options.batch) options.batch = batch;
    if (!options.heads) options.heads = heads;
    if (!options.seqlen_q) options.seqlen_q = seqlen;
    if (!options.seqlen_k) options.seqlen_k = seqlen;
    if (!options.head_dim) options.head_dim = 64;
  };
  if (name == "article") {
    set_sizes(1, 1, 4096);
    if (!options.dtype) options.dtype = Dtype::fp16;
  } else if (name == "gpt2") {
    set_sizes(64, 16, 1024);
  } else {
    throw BadArguments(fmt::format("--preset {}: must be one of article, gpt2", name));
  }
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

}  // namespace

std::optional<Options> parse_options(int argc, const char* const* argv, const Step& step, std::string& help) {
  Options options;
  CLI::App app(fmt::format("{}  {}: {}\nChapter: {}", step.id, step.title, step.idea, step.chapter), step.id);
  app.set_help_flag("--help,-h", "These flags");
  app.set_help_all_flag("--help-all", "All flags");
  app.get_formatter()->column_width(34);

  // --help-all is CLI11's own for subcommands; here it lifts the group that --help hides.
  std::vector<CLI::Option*> advanced;
  const auto flag = [&](const std::string& name, bool& target, const std::string& text, bool first = false) {
    CLI::Option* option = app.add_flag(name, target, text);
    if (!first) advanced.push_back(option);
  };
  // read(flag, text) is called when the flag was typed.
  using Read = std::function<void(const std::string& flag, const std::string& text)>;
  const auto value =
      [&](const std::string& name, const std::string& type, const std::string& text, Read read, bool first = false) {
        const auto typed = [name, read](const std::string& what) { read(name, what); };
        CLI::Option* option = app.add_option_function<std::string>(name, typed, text)->type_name(type);
        if (!first) advanced.push_back(option);
      };
  const auto size = [](std::optional<int64_t>& target) -> Read {
    return [&target](const std::string& flag, const std::string& text) { target = parse_size(flag, text); };
  };
  const auto name = [](std::string& target) -> Read {
    return [&target](const std::string& flag, const std::string& text) {
      if (text.empty()) throw BadArguments(flag + ": the name is empty");
      target = text;
    };
  };
  const auto one_of = [](auto& target, auto... choices) -> Read {
    using T = typename std::tuple_element_t<0, std::tuple<decltype(choices)...>>::second_type;
    return [&target, list = std::vector<std::pair<std::string, T>>{choices...}](
               const std::string& flag, const std::string& text) { target = parse_choice(flag, text, list); };
  };
  const auto choice = [](const char* called, auto value) { return std::pair{std::string(called), value}; };
  std::optional<int64_t> seqlen;
  std::string preset;
  std::map<std::string, bool> left_out;
  bool described = false;

  value("--seqlen", "N", "Queries and keys per head (GPU 4096, CPU 512)", size(seqlen), true);
  value("--heads", "H", "Heads (GPU 16, CPU 2)", size(options.heads), true);
  value("--head-dim", "d", "Length of a row of Q, K, V (64)", size(options.head_dim), true);
  flag("--causal", options.causal, "Query i sees the keys j <= i + Nk - Nq (bottom-right)", true);
  value("--dtype", "TYPE",
        fmt::format("fp32, fp16 or bf16 ({}; float16 files that are loaded: fp16)", dtype_name(step.default_dtype)),
        one_of(options.dtype, choice("fp32", Dtype::fp32), choice("fp16", Dtype::fp16), choice("bf16", Dtype::bf16)),
        true);
  value("--device", "DEVICE", "auto, gpu or cpu; auto takes the CPU executor only when there is no GPU",
        one_of(options.device, choice("auto", DeviceChoice::automatic), choice("gpu", DeviceChoice::gpu),
               choice("cpu", DeviceChoice::cpu)),
        true);
  value("--batch", "B", "Batch (1)", size(options.batch));
  value("--seqlen-q", "Nq", "Queries per head", size(options.seqlen_q));
  value("--seqlen-k", "Nk", "Keys per head", size(options.seqlen_k));
  value("--softmax-scale", "s", "Factor of Q K^T (1/sqrt(d))",
        [&](const std::string&, const std::string& text) { options.softmax_scale = parse_scale(text); });
  value("--seed", "n", "Seed of the inputs (0)",
        [&](const std::string& flag, const std::string& text) { options.seed = parse_number(flag, text); });
  value("--init", "KIND",
        "Inputs: randn[:sigma], abs, outlier[:columns:factor] (1:40), zeros, ones or const:x (randn; V has mean 0.5 "
        "sigma)",
        [&](const std::string&, const std::string& text) { options.init = parse_init(text); });
  value(
      "--preset", "NAME", "article: one head, N=4096, fp16. gpt2: B64 H16 N1024 d64. Flags override it", name(preset));
  value("--product", "KIND",
        fmt::format("In fp32: tile products on cuda-cores or tensor-cores, both exact ({}-cores)",
                    step.fp32_on_tensor_cores ? "tensor" : "cuda"),
        one_of(options.tensor_cores, choice("cuda-cores", false), choice("tensor-cores", true)));
  value("--tile", "BrxBc", "Query rows by key rows of a tile; one that is compiled in",
        [&](const std::string&, const std::string& text) { options.tile = parse_tile(text); });
  flag("--sweep-tiles", options.sweep_tiles, "Run every tile that is compiled in and compare them");
  value("--trace-row", "i", "Print m, l and alpha per key tile for query i of head 0",
        [&](const std::string& flag, const std::string& text) {
          const uint64_t row = parse_number(flag, text);
          if (row > INT64_MAX) throw BadArguments(flag + " " + text + ": there is no such row");
          options.trace_row = static_cast<int64_t>(row);
        });
  value("--load", "DIR",
        "Read q.npy k.npy v.npy [batch, heads, seqlen, head_dim], and for the backward do.npy, the gradient of O; "
        "float32 or float16, whose sizes hold",
        name(options.load_dir));
  value("--save", "DIR", "Write o.npy lse.npy (dq dk dv) when the check passes, or with --check none",
        name(options.save_dir));
  value("--check", "HOW", "full, sample:n rows, or none (full while it takes seconds, else a sample)",
        [&](const std::string&, const std::string& text) { options.check = parse_check(text); });
  value("--traffic", "HOW", "Measured traffic: auto or off (auto)",
        one_of(options.traffic, choice("auto", true), choice("off", false)));
  value(
      "--repeat", "n",
      "Exactly n timed runs; the outputs of all must be bitwise equal, sums in any order but for rounding",
      [&](const std::string& flag, const std::string& text) { options.repeat = parse_at_most(flag, text, 1'000'000); });
  flag("--plan", options.plan, "Print bytes, FLOPs and memory without running");
  if (step.splits)
    value("--splits", "n", "Share out the keys of a row among up to n blocks; auto: as many as pay (auto)",
          [&](const std::string& flag, const std::string& text) {
            options.splits = text == "auto" ? 0 : parse_size(flag, text);
          });
  for (const Technique& technique : step.techniques)
    flag(technique.option(), left_out[technique.name], "Without " + technique.name + ": " + technique.without);
  value("--json", "FILE", "Write the results as JSON; - is standard output", name(options.json));
  value("--film", "FILE.html", "CPU executor: a page that plays what it saw, event by event", name(options.film));
  value("--timeline", "FILE",
        "Tracks of warps and copies, in the CPU executor's logical time or (make stepNN-timeline) by a GPU's clock: a "
        "page (.html), a picture (.svg), for ui.perfetto.dev (.json), or a GPU's timestamps (.stamps)",
        name(options.timeline));
  value("--stamps", "FILE", "Draw --timeline from a GPU's timestamps of an earlier run; nothing runs",
        name(options.stamps));
  flag("--describe", described, "Print what this step is and serves as JSON, for scripts");
  using RaceCheck = ExecutorOptions::RaceCheck;
  value("--race-check", "BLOCKS", "CPU executor: race-check none, ends (first and last block) or all blocks (ends)",
        one_of(options.race_check, choice("none", RaceCheck::none), choice("ends", RaceCheck::ends),
               choice("all", RaceCheck::all)));
  value("--thread-order", "n",
        "CPU executor: one run, threads in index order (0) or shuffled by seed n (default: three orders)",
        [&](const std::string& flag, const std::string& text) { options.thread_order = parse_number(flag, text); });
  value(
      "--threads", "n", "CPU executor: threads of the operating system (one per core)",
      [&](const std::string& flag, const std::string& text) { options.os_threads = parse_at_most(flag, text, 1024); });

  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    for (CLI::Option* option : advanced) option->group("");  // hidden; CLI11 would leave its name out of messages too
    help = app.help();
    return std::nullopt;
  } catch (const CLI::CallForAllHelp&) {
    for (CLI::Option* option : advanced) option->group("More");
    help = app.help();
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    throw BadArguments(first_line(error.what()) + " (--help-all lists the flags)");
  }

  if (described) {
    help = describe(step);
    return std::nullopt;
  }
  if (!options.seqlen_q) options.seqlen_q = seqlen;
  if (!options.seqlen_k) options.seqlen_k = seqlen;
  if (!preset.empty()) apply_preset(preset, options);
  options.init_given = app.count("--seed") > 0 || app.count("--init") > 0;
  for (const auto& [technique, left] : left_out)
    if (left) options.left_out.push_back(technique);
  if (!options.stamps.empty() && options.timeline.empty())
    throw BadArguments("--stamps FILE is what --timeline FILE is drawn from: give both");
  if (options.sweep_tiles)
    for (const char* one_tile : {"--tile", "--trace-row", "--save", "--film", "--timeline"})
      if (app.count(one_tile) > 0)
        throw BadArguments(
            fmt::format("--sweep-tiles runs every tile, {} is about one: leave one of the two out", one_tile));
  return options;
}

}  // namespace attention
