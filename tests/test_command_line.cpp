// The steps as a person meets them: flags, exit codes, the one line on stderr, files. Runs the executables themselves.
#include <sys/stat.h>

#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "common/base/npy.h"
#include "common/harness/trace.h"
#include "tests/catch.h"
#include "tests/programs.h"

using namespace attention;

namespace {

using Json = nlohmann::json;

/// Runs "stepNN flags" with the CPU executor, unless the flags name a device.
Outcome run(const std::string& command, const std::string& before = "") {
  const size_t name_end = std::min(command.find(' '), command.size());
  const std::string device = has(command, "--device") ? "" : " --device cpu";
  return run_program(command.substr(0, name_end) + device + command.substr(name_end), before);
}
Json json_of(const std::string& command, const std::string& before = "") {
  const Outcome outcome = run(command + " --json -", before);
  INFO(command << ": " << outcome.err);
  REQUIRE(outcome.code == 0);
  return Json::parse(outcome.out);
}

/// One clear line, nothing on stdout, this exit code.
void refuses(const std::string& command, int code, const std::string& says, const std::string& environment = "") {
  INFO(command);
  const Outcome outcome = run(command, environment);
  INFO(outcome.err);
  CHECK(outcome.code == code);
  CHECK(outcome.err_lines() == 1);
  CHECK(outcome.out.empty());
  CHECK(has(outcome.err, says));
}
/// The same for each pair of a command and what is said of it.
void refuses(int code, const std::vector<std::pair<const char*, const char*>>& commands) {
  for (const auto& [command, says] : commands) refuses(command, code, says);
}

/// A run of hours, stopped after 11 seconds, since a file hears of its progress after 10. It is started with the first
/// test
/// of this file and read by the last.
struct LongRun {
  const Folder folder;
  std::FILE* process = popen(
      ("nice timeout 11 '" ATTN_STEP_FOLDER "'/step04 --device cpu --seqlen 200000 --heads 1 --check none"
       " --threads 1 >/dev/null 2>" +
       folder.file("err"))
          .c_str(),
      "r");
  std::string wait() {
    if (process) pclose(std::exchange(process, nullptr));
    return slurp(folder.file("err"));
  }
  ~LongRun() { wait(); }
};
LongRun& long_run() {
  static LongRun started;
  return started;
}

}  // namespace

TEST_CASE("bad arguments exit 2 with one line") {
  long_run();
  refuses(
      2,
      {
          {"step04 --seqlen 0", "--seqlen 0"},
          {"step03 --seqlen -4", "--seqlen -4"},
          {"step04 --heads 0", "--heads 0"},
          {"step04 --batch -1", "--batch -1"},
          {"step04 --head-dim 0", "--head-dim 0"},
          {"step04 --seqlen 1.5", "not a whole number"},
          {"step04 --seqlen 4k", "not a whole number"},
          {"step04 --seqlen 99999999999999999999999", "64 bits"},
          {"step04 --seqlen 4000000000", "at most 2147479552 queries or keys"},
          {"step04 --batch 4000000000 --heads 4000000000", "64 bits"},
          {"step04 --no-such-flag", "--no-such-flag"},
          {"step04 --no-pingpong", "--no-pingpong"},  // step08's own
          {"step07 --no-overlap", "--no-overlap"},
          {"step05 --deterministic", "--deterministic"},  // whose blocks share no sum
          {"step04 4096", "4096"},
          {"step04 --seqlen", "--seqlen"},
          {"step04 --dtype fp8", "fp32, fp16, bf16"},
          {"step04 --device tpu", "auto, gpu, cpu"},
          {"step04 --init gauss", "randn"},
          {"step04 --tile 64", "BrxBc"},
          {"step04 --tile 0x64", "at least 1"},
          {"step04 --check maybe", "sample:n"},
          {"step04 --check sample:0", "at least 1"},
          {"step04 --softmax-scale nan", "finite"},
          {"step04 --softmax-scale 1e-50", "above 0"},
          {"step04 --softmax-scale 0", "above 0"},
          {"step04 --repeat 0", "--repeat"},
          {"step04 --sweep-tiles --tile 64x64", "--tile"},
          {"step04 --sweep-tiles --save /tmp", "--save"},
          {"step04 --sweep-tiles --trace-row 3", "--trace-row"},
          {"step04 --seed -1", "--seed"},
          {"step04 --preset bert", "article, gpt2"},
          {"step04 --seqlen 64 --trace-row 64", "0 to 63"},
          {"step04 --load /no/such/folder", "/no/such/folder/q.npy"},
          {"step04 --json /no/such/folder/x.json", "--json"},
          {"step04 --json", "--json"},  // a flag that --help hides is named all the same
          {"step04 --tile 64x64 --tile 64x64", "--tile"},
          {"step04 --softmax-scale 1e40", "finite in fp32"},
          {"step04 --seqlen 64 --save /proc/no", "--save"},
      });
  refuses("step04", 2, "ATTN_SMEM_LIMIT is 'abc', it must be a positive number of bytes", "ATTN_SMEM_LIMIT=abc");
  for (const char* step : {"step01", "step02", "step03", "step04", "step05", "step06"})  // positions have 32 bits
    for (const char* sizes : {"--seqlen-q 1 --seqlen-k 2147483648", "--seqlen-q 2147483648 --seqlen-k 1"})
      refuses(step + std::string(" --plan --heads 1 ") + sizes, 2, "at most 2147479552 queries or keys");
  CHECK(run("step04 --seqlen 64 --heads 1 --softmax-scale 1e-40").code == 0);
}

TEST_CASE("a result that is no number says what was too large") {
  const Outcome backward = run("step05 --dtype fp16 --seqlen 64 --heads 1 --init const:32");
  CHECK(backward.code == 1);
  CHECK(has(backward.err, "standard backward: dq: "));
  CHECK(has(backward.err, "dP exceeds fp16's 65504: up to 65536"));
  const Outcome scores = run("step04 --seqlen 64 --heads 1 --init randn:1e30");
  CHECK(scores.code == 1);
  CHECK(has(scores.err, "Q K^T exceeds fp32's 3.40282e+38: up to "));
}

TEST_CASE("what blocks add up in any order may differ by its rounding, and --deterministic fixes the order") {
  const Outcome any = run("step10 --heads 1 --seqlen 300");
  CHECK(any.code == 0);
  CHECK(has(any.out, "equal to the bit but dq; "));
  CHECK(has(any.out, "spread    dq differs from run to run by "));
  const Outcome fixed = run("step10 --heads 1 --seqlen 300 --deterministic");
  CHECK(fixed.code == 0);
  CHECK(has(fixed.out, "equal to the bit; "));
  CHECK(!has(fixed.out, "spread"));
}

TEST_CASE("what a step cannot serve exits 3 and says what there is") {
  refuses(
      3, {
             {"step10 --device cpu --dtype fp32", "step05 is a backward in fp32"},
             {"step11 --device cpu --head-dim 96", "step10 takes 8, 16, 24"},
             {"step07 --device cpu --head-dim 96", "takes head_dim 64 and 128, not 96"},
             {"step07 --device cpu --dtype fp32", "step08 takes it on these units"},
             {"step08 --device cpu --dtype fp32 --product cuda-cores", "step04 is the same algorithm in fp32"},
             {"step08 --device cpu --dtype fp32 --no-persistent", "leaves out no technique in fp32"},
             {"step08 --device cpu --dtype fp32 --init const:1e30", "fp32 on tensor cores cannot hold that"},
             {"step04 --product tensor-cores --head-dim 200", "--product cuda-cores"},
             {"step05 --product tensor-cores --init const:1e30", "--product cuda-cores"},
             {"tiles/step04 --product tensor-cores --tile 48x48", "128x64, 64x64"},
             {"step04 --product cuda-cores --dtype fp16", "fp16 runs on tensor cores alone"},
             {"tiles/step04 --tile 48x48", "64x64"},
             {"step04 --head-dim 100000", "takes head_dim 1 to"},
             {"step04 --tile 64x64", "compiled in: 128x64; `make step04-tiles` builds it with 8 more"},
             {"step04 --sweep-tiles", "make step04-tiles"},
             {"step04 --dtype fp16 --tile 48x48", "make step04-tiles"},
         });
  refuses("tiles/step04 --sweep-tiles", 3, "even the smallest tile", "ATTN_SMEM_LIMIT=1000");
  refuses("step04", 3, "bytes of SRAM per block, 1000 are allowed", "ATTN_SMEM_LIMIT=1000");
  refuses("step04", 3, "make step04-tiles", "ATTN_SMEM_LIMIT=65536");
}

TEST_CASE("less SRAM takes a smaller tile, or names the bytes") {  // hard case A13
  const Outcome smaller = run("tiles/step04 --seqlen 70 --json -", "ATTN_SMEM_LIMIT=65536");
  REQUIRE(smaller.code == 0);
  CHECK(Json::parse(smaller.out)["tile"] != Json::parse(run("tiles/step04 --seqlen 70 --json -").out)["tile"]);
  refuses("tiles/step04 --tile 128x64", 3, "65536 are allowed", "ATTN_SMEM_LIMIT=65536");
}

TEST_CASE("--sweep-tiles: a line per tile, the article's tile last, JSON") {
  const std::string sweep = "tiles/step04 --sweep-tiles --load '" ATTN_TEST_DATA "/half_d64'";
  const Outcome outcome = run(sweep + " --json -", "ATTN_SMEM_LIMIT=20000");
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
  const Json json = Json::parse(outcome.out);
  CHECK(json["schema"] == "attention-sweep-1");
  CHECK(json["dtype"] == "fp16");  // as the files say
  CHECK(json["tiles"].size() == 9);
  for (const Json& tile : json["tiles"]) {
    CHECK(has(outcome.err, "\n  " + tile["tile"].get<std::string>() + " "));
    CHECK(tile["not_run"].is_null() == (tile["sram_bytes"] <= 20000));
  }
  const std::string last = "\narticle   64x64 asks for 27664 bytes of SRAM per block, 20000 are allowed\n";
  CHECK(outcome.err.substr(outcome.err.size() - std::min(last.size(), outcome.err.size())) == last);
  const Outcome planned = run("tiles/step04 --sweep-tiles --plan --seqlen 131072 --heads 64 --json -");
  CHECK(planned.code == 0);
  CHECK(Json::parse(planned.out)["tiles"][0]["not_run"] == "nothing ran (--plan)");
}

TEST_CASE("a request that cannot fit ends before any work") {  // hard case A11
  refuses("step01 --seqlen 131072 --heads 16", 4, "step01 at N=131072, 16 heads: S and P need 2199023255552 bytes");
  refuses("step02 --seqlen 131072 --heads 16", 4, "step03 needs none of them");
}

TEST_CASE("--device gpu without a usable GPU never falls back") {
  if (std::system("test -e /dev/nvidia0") == 0) return;
  refuses("step04 --device gpu", 3, "no GPU found");
  const Outcome automatic = run("step04 --device auto --seqlen 64");
  CHECK(automatic.code == 0);
  CHECK(has(automatic.out, "device: CPU executor"));
  CHECK(!has(automatic.out, "TFLOP/s   predicted"));  // no row of GPU time
}

TEST_CASE("--help shows the first line's flags, --help-all the rest") {
  const Outcome help = run("step04 --help"), all = run("step04 --help-all");
  CHECK(help.code == 0);
  CHECK(all.code == 0);
  for (const char* flag : {"--seqlen ", "--heads", "--head-dim", "--causal", "--dtype", "--device"}) {
    CHECK(has(help.out, flag));
    CHECK(has(all.out, flag));
  }
  for (const char* flag : {"--batch", "--seqlen-q", "--softmax-scale", "--preset", "--trace-row", "--load", "--save",
                           "--plan", "--json", "--race-check", "--thread-order", "--threads"}) {
    CHECK(!has(help.out, flag));
    CHECK(has(all.out, flag));
  }
}

TEST_CASE("--json - gives JSON on stdout and the report on stderr") {
  const Outcome outcome = run("tiles/step04 --batch 1 --heads 1 --seqlen 1024 --head-dim 64 --tile 64x64 --json -");
  REQUIRE(outcome.code == 0);
  CHECK(has(outcome.err, "PASS"));
  const Json json = Json::parse(outcome.out);
  CHECK(json["step"] == "step04");
  CHECK(json["device"] == "cpu");
  CHECK(json["tile"] == "64x64");
  CHECK(json["traffic"]["requested_expected_bytes"]["load"] == 8650752);
  CHECK(json["traffic"]["requested_counted_bytes"] == Json({{"load", 8650752}, {"store", 266240}}));
  CHECK(json["traffic"]["by_tensor"]["K"]["requested_counted_bytes"]["load"] == 4194304);
  CHECK(json["flops"]["counted"] == 268435456);
  CHECK(json["memory"]["extra_bytes"] == 4096);
  CHECK(json["memory"]["grows"] == "N");
  CHECK(json["time"]["emulated"] == true);
  CHECK(json["exactness"][0]["pass"] == true);
  CHECK(json["exactness"][0]["checked"] == 65536);
  // What does not exist is null, with a reason.
  CHECK(json["traffic"]["hbm_measured_bytes"].is_null());
  CHECK_FALSE(json["traffic"]["hbm_measured_reason"].get<std::string>().empty());
  CHECK(json["kernels"][0]["blocks_per_sm"].is_null());
  CHECK(json["kernels"][0]["blocks_per_sm_reason"] == "the CPU executor has no SMs");
  CHECK(json["time"]["tflops"].is_null());
}

TEST_CASE("--plan runs nothing and tells bytes, FLOPs and memory") {
  const Outcome outcome = run("step01 --seqlen 131072 --heads 16 --plan --json -");
  REQUIRE(outcome.code == 0);
  const Json json = Json::parse(outcome.out);
  CHECK(json["memory"]["buffers"]["S"] == 1099511627776);
  CHECK(json["memory"]["grows"] == "N^2");
  CHECK(json["time"].is_null());
  CHECK(json["exactness"].empty());
  CHECK(json["verdict"] == "not run (--plan)");
  CHECK(has(outcome.err, "it does not fit"));
}

TEST_CASE("presets, and explicit flags that override them") {
  const Json gpt2 = json_of("step04 --preset gpt2 --heads 2 --batch 1 --seqlen-k 100 --plan")["problem"];
  CHECK((gpt2["batch"] == 1 && gpt2["heads"] == 2 && gpt2["seqlen_q"] == 1024 && gpt2["seqlen_k"] == 100));
  const Json article = json_of("step04 --preset article --plan"),
             fp32 = json_of("step04 --preset article --dtype fp32 --plan");
  CHECK((article["dtype"] == "fp16" && article["problem"]["heads"] == 1));
  CHECK(article["traffic"]["hbm_expected_bytes"] == 4 * 4096 * 64 * 2 + 4096 * 4);
  CHECK((fp32["dtype"] == "fp32" && fp32["problem"]["seqlen_q"] == 4096));
}

TEST_CASE("--check none and --check sample never look like a full check") {
  const Outcome none = run("step04 --seqlen 64 --check none");
  CHECK(none.code == 0);
  CHECK(has(none.out, "not checked"));
  CHECK(!has(none.out, "PASS"));
  const Outcome sample = run("step04 --seqlen 300 --check sample:8");
  CHECK(sample.code == 0);
  CHECK(has(sample.out, "sampled "));
}

TEST_CASE("--json writes into a pipe or a device instead of replacing it") {
  const Folder folder;
  const std::string pipe = folder.path + "/pipe", read = folder.path + "/read";
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  REQUIRE(std::system(("timeout 20 cat " + pipe + " >" + read + " &").c_str()) == 0);
  CHECK(run("step04 --plan --json " + pipe).code == 0);
  CHECK(std::filesystem::is_fifo(pipe));
  for (int n = 0; n < 100 && !Json::accept(slurp(read)); ++n) usleep(50000);  // cat ends a little later
  CHECK(Json::accept(slurp(read)));
}

TEST_CASE("--load refuses a NaN and an infinity by name") {
  for (const float bad : {NAN, INFINITY}) {
    const Folder folder;
    for (const char* name : {"q", "k", "v"})
      write_npy(folder.path + "/" + name + ".npy", {1, 1, 2, 2}, std::vector<float>{1, 2, 3, *name == 'v' ? bad : 4});
    refuses("step04 --load " + folder.path, 2, "v.npy: element 3 is");
  }
}

TEST_CASE("--load and --save") {
  const Folder folder;
  const std::string data = ATTN_TEST_DATA "/ragged_causal", saved = folder.path + "/saved";
  const Outcome outcome = run("step04 --load '" + data + "' --causal --save " + saved);
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
  const NpyArray<float> q = read_npy(data + "/q.npy", 4), o = read_npy(saved + "/o.npy", 4),
                        lse = read_npy(saved + "/lse.npy", 3);
  const NpyArray<double> golden = read_npy_double(data + "/o.npy", 4);
  REQUIRE(o.shape == q.shape);
  CHECK(lse.shape == std::vector<int64_t>(q.shape.begin(), q.shape.begin() + 3));
  for (size_t n = 0; n < o.values.size(); ++n) REQUIRE(o.values[n] == Approx(golden.values[n]).margin(1e-5));
  refuses("step04 --load '" + data + "' --seqlen 3", 2, "contradicts");
  refuses("step04 --load '" + data + "' --head-dim 3", 2, "contradicts");
  refuses("step04 --load '" + data + "' --init ones", 2, "contradict");
}

TEST_CASE("--repeat and thread orders give the same bits") {
  const Json json = json_of("step04 --seqlen 77 --causal --repeat 50");
  CHECK(json["time"]["runs"] == 50);
  CHECK(json["executor"]["thread_orders"].size() == 3);
  CHECK(json_of("step04 --seqlen 77 --thread-order 9")["executor"]["thread_orders"] == Json::array({9}));
}

TEST_CASE("--trace-row ends with the kernel's own LSE") {
  const Outcome outcome = run("step04 --heads 1 --seqlen 10 --init zeros --trace-row 3 --causal");
  CHECK(outcome.code == 0);
  CHECK(has(outcome.out, "  init zeros  tile"));
  CHECK(has(outcome.out, "replayed on the host"));
  CHECK(has(outcome.out, "1.38629"));  // ln 4: four visible keys of equal score
}

TEST_CASE("chapter 4's four numbers: by hand, by the trace and by the kernel") {
  // Scores 1, 3 in the first key tile and 2, 5 in the second; V is one column. The recurrence of the chapter's table,
  // in its order.
  const double alpha = std::exp(3.0 - 5), l0 = std::exp(1.0 - 3) + 1, l1 = alpha * l0 + (std::exp(2.0 - 5) + 1);
  const double a0 = std::exp(1.0 - 3) * 10 + 1 * 20, a1 = alpha * a0 + std::exp(2.0 - 5) * 30 + 1 * 40;
  const double direct = std::exp(-4.0) + std::exp(-2.0) + std::exp(-3.0) + 1;  // with the maximum known from the start
  CHECK(std::abs(l1 - direct) < 1e-15);
  const auto chapter_has = [](const char* chapter, std::initializer_list<double> numbers) {
    for (const double number : numbers) {
      char text[32];
      std::snprintf(text, sizeof text, "%.6f", number);
      INFO(text);
      CHECK(has(slurp(std::string(ATTN_SOURCE_FOLDER "/docs/") + chapter), text));
    }
  };
  chapter_has("04-online-softmax.md", {alpha, l0, l1, a0, a1, a1 / l1, 5 + std::log(l1)});

  // A tile holds 32 keys here: the first one's other 30 score -150, and e^(-150 - 3) is nothing beside 1.
  const Folder folder;
  std::vector<float> keys(34, -150), values(34, 0);
  keys[0] = 1, keys[1] = 3, keys[32] = 2, keys[33] = 5;
  values[0] = 10, values[1] = 20, values[32] = 30, values[33] = 40;
  write_npy(folder.path + "/q.npy", {1, 1, 1, 1}, std::vector<float>{1});
  write_npy(folder.path + "/k.npy", {1, 1, 34, 1}, keys);
  write_npy(folder.path + "/v.npy", {1, 1, 34, 1}, values);
  const Outcome outcome = run("tiles/step04 --load " + folder.path +
                              " --softmax-scale 1 --tile 64x32 --trace-row 0 --save " + folder.path + "/out");
  INFO(outcome.out);
  REQUIRE(outcome.code == 0);
  CHECK(has(outcome.out, "0            0..31                 3        1.13533528             0"));
  CHECK(has(outcome.out, "1           32..33                 5        1.20343799      0.135335"));
  CHECK(std::abs(read_npy(folder.path + "/out/o.npy", 4).values.at(0) - a1 / l1) < 1e-6 * a1 / l1);
  CHECK(std::abs(read_npy(folder.path + "/out/lse.npy", 3).values.at(0) - (5 + std::log(l1))) < 1e-6 * 5);

  // Chapter 9: each tile a part of its own, merged.
  const double l_of_1 = std::exp(2.0 - 5) + 1, lse0 = 3 + std::log(l0), lse1 = 5 + std::log(l_of_1),
               weight = std::exp(lse0 - lse1);
  const double o0 = a0 / l0, o1 = (std::exp(2.0 - 5) * 30 + 40) / l_of_1, merged = (weight * o0 + o1) / (weight + 1);
  CHECK(std::abs(merged - a1 / l1) < 1e-13);
  chapter_has("09-split-keys.md", {lse0, o0, lse1, o1, weight, merged, lse1 + std::log(weight + 1)});
  const Outcome split =
      run("step09 --load " + folder.path + " --softmax-scale 1 --splits 2 --save " + folder.path + "/split");
  INFO(split.out);
  REQUIRE(split.code == 0);
  CHECK(has(split.out, "splits    2 of 32 keys: as asked"));
  CHECK(std::abs(read_npy(folder.path + "/split/o.npy", 4).values.at(0) - merged) < 1e-6 * merged);
}

TEST_CASE("--splits is step09's own, and long rows without it name step09") {
  refuses("step09 --splits 0", 2, "--splits 0: must be at least 1");
  refuses("step09 --splits some", 2, "not a whole number");
  refuses("step04 --splits 2", 2, "--splits");
  const std::string long_row = " --dtype fp16 --heads 1 --seqlen-q 1 --seqlen-k 65600 --head-dim 8 --thread-order 0";
  const Outcome without = run("step04" + long_row), with = run("step09" + long_row + " --json -");
  CHECK(has(without.out, "step09 sums them in pieces"));
  CHECK(!has(run("step04 --dtype fp16 --heads 1 --seqlen-q 1 --seqlen-k 600").out, "step09 sums them in pieces"));
  REQUIRE(with.code == 0);
  CHECK(!has(with.err, "step09 sums them in pieces"));
  const Json splits = Json::parse(with.out).at("splits");
  CHECK(splits.at("parts") == 94);  // of 22 key tiles of 32, the last one shorter
  CHECK(splits.at("keys_per_part") == 704);
  CHECK(splits.at("reason").get<std::string>().find("auto") == 0);
}

TEST_CASE("a trace of a step whose library chooses the tiles takes 64 keys at a time") {
  const Problem p{.seqlen_q = 100, .seqlen_k = 100, .head_dim = 1};
  const std::vector<float> ones(100, 1.0f);
  const std::string text = trace_row(p, HostInputs{ones, ones, ones, {}}, 70, 0);
  CHECK(has(text, "0..63"));
  CHECK(has(text, "64..99"));
}

TEST_CASE("output that is lost ends with exit 2, and says so") {
  const std::string step = "'" ATTN_STEP_FOLDER "'/step04 --device cpu --seqlen 64 --heads 1";
  const Folder folder;
  for (const char* lost : {">/dev/full", ">&-", "--json - >/dev/full", "--json - >&-", "--help-all >/dev/full",
                           "--json /dev/full >/dev/null"}) {
    INFO(lost);
    const int status = std::system((step + " " + lost + " 2>" + folder.file("err")).c_str());
    CHECK(WEXITSTATUS(status) == 2);
    CHECK(has(slurp(folder.file("err")), "cannot be written"));
  }
  std::filesystem::create_directories(folder.file("out/lse.npy"));
  refuses("step04 --seqlen 1000000 --save " + folder.file("out"), 2,
          "out/lse.npy: cannot be written: it is a folder");  // found before the run
  CHECK_FALSE(std::filesystem::exists(folder.file("out/o.npy")));
}

TEST_CASE("little memory ends with exit 4 and a line") {
  for (const char* limit : {"150000000", "194560000", "220000000"}) {
    INFO(limit);
    const Outcome outcome = run("step04 --seqlen 512 --heads 2 --threads 2", std::string("prlimit --as=") + limit);
    CHECK((outcome.code == 4 || outcome.code == 0));
    CHECK(outcome.err_lines() == (outcome.code == 4));
  }
  const Folder folder;
  const std::vector<float> values(1 << 22);
  for (const char* name : {"q", "k", "v"})
    write_npy(folder.file(std::string(name) + ".npy"), {1, 1, 1 << 16, 64}, values);
  refuses("step04 --plan --load " + folder.path, 4, "bytes of memory", "prlimit --as=50000000");
}

TEST_CASE("a run of hours says so before it begins, and how far it is") {
  const std::string said = long_run().wait();
  INFO(said);
  CHECK(said.find("step04: about ") == 0);
  for (const char* part : {" on the CPU executor, 3 thread orders. Less: --plan", "; --seqlen ", "--thread-order 0",
                           "thread order 1 of 3: ", " % ... 10 s"})
    CHECK(has(said, part));
}
