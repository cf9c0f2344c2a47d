// The steps as a person meets them: flags, exit codes, the one line on stderr, files. Runs the executables themselves.
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "common/base/npy.h"
#include "common/harness/trace.h"
#include "tests/catch.h"
#include "tests/folder.h"

using namespace attention;

namespace {

using Json = nlohmann::json;

struct Outcome {
  int code = -1;
  std::string out, err;
  int err_lines() const { return static_cast<int>(std::count(err.begin(), err.end(), '\n')); }
};

/// Runs "stepNN flags" with the CPU executor, unless the flags name a device.
Outcome run(const std::string& command, const std::string& environment = "") {
  const Folder folder;
  const size_t name_end = std::min(command.find(' '), command.size());
  const std::string device = command.find("--device") == std::string::npos ? " --device cpu" : "";
  const std::string line = environment + " '" ATTN_STEP_FOLDER "'/" + command.substr(0, name_end) + device + command.substr(name_end) + " >" + folder.path +
                           "/out 2>" + folder.path + "/err";
  const int status = std::system(line.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128, slurp(folder.path + "/out"), slurp(folder.path + "/err")};
}

/// One clear line, nothing on stdout, this exit code.
void refuses(const std::string& command, int code, const std::string& says, const std::string& environment = "") {
  INFO(command);
  const Outcome outcome = run(command, environment);
  INFO(outcome.err);
  CHECK(outcome.code == code);
  CHECK(outcome.err_lines() == 1);
  CHECK(outcome.out.empty());
  CHECK(outcome.err.find(says) != std::string::npos);
}

}  // namespace

TEST_CASE("bad arguments exit 2 with one line") {
  refuses("step04 --seqlen 0", 2, "--seqlen 0");
  refuses("step04", 2, "ATTN_SMEM_LIMIT is 'abc', it must be a positive number of bytes", "ATTN_SMEM_LIMIT=abc");
  refuses("step03 --seqlen -4", 2, "--seqlen -4");
  refuses("step04 --heads 0", 2, "--heads 0");
  refuses("step04 --batch -1", 2, "--batch -1");
  refuses("step04 --head-dim 0", 2, "--head-dim 0");
  refuses("step04 --seqlen 1.5", 2, "not a whole number");
  refuses("step04 --seqlen 4k", 2, "not a whole number");
  refuses("step04 --seqlen 99999999999999999999999", 2, "64 bits");
  refuses("step04 --seqlen 4000000000", 2, "at most 2147479552 queries or keys");
  for (const char* step : {"step01", "step02", "step03", "step04", "step05", "step06"}) {  // positions have 32 bits
    refuses(std::string(step) + " --plan --heads 1 --seqlen-q 1 --seqlen-k 2147483648", 2, "at most 2147479552 queries or keys");
    refuses(std::string(step) + " --plan --heads 1 --seqlen-q 2147483648 --seqlen-k 1", 2, "at most 2147479552 queries or keys");
  }
  refuses("step04 --batch 4000000000 --heads 4000000000", 2, "64 bits");
  refuses("step04 --no-such-flag", 2, "--no-such-flag");
  refuses("step04 --no-pingpong", 2, "--no-pingpong");  // step08's own
  refuses("step07 --no-overlap", 2, "--no-overlap");
  refuses("step05 --deterministic", 2, "--deterministic");  // whose blocks share no sum
  refuses("step04 4096", 2, "4096");
  refuses("step04 --seqlen", 2, "--seqlen");
  refuses("step04 --dtype fp8", 2, "fp32, fp16, bf16");
  refuses("step04 --device tpu", 2, "auto, gpu, cpu");
  refuses("step04 --init gauss", 2, "randn");
  refuses("step04 --tile 64", 2, "BrxBc");
  refuses("step04 --tile 0x64", 2, "at least 1");
  refuses("step04 --check maybe", 2, "sample:n");
  refuses("step04 --check sample:0", 2, "at least 1");
  refuses("step04 --softmax-scale nan", 2, "finite");
  refuses("step04 --softmax-scale 1e-50", 2, "above 0");
  CHECK(run("step04 --seqlen 64 --heads 1 --softmax-scale 1e-40").code == 0);
  refuses("step04 --softmax-scale 0", 2, "above 0");
  refuses("step04 --repeat 0", 2, "--repeat");
  refuses("step04 --sweep-tiles --tile 64x64", 2, "--tile");
  refuses("step04 --sweep-tiles --save /tmp", 2, "--save");
  refuses("step04 --sweep-tiles --trace-row 3", 2, "--trace-row");
  refuses("step04 --seed -1", 2, "--seed");
  refuses("step04 --preset bert", 2, "article, gpt2");
  refuses("step04 --seqlen 64 --trace-row 64", 2, "0 to 63");
  refuses("step04 --load /no/such/folder", 2, "/no/such/folder/q.npy");
  refuses("step04 --json /no/such/folder/x.json", 2, "--json");
  refuses("step04 --json", 2, "--json");  // a flag that --help hides is named all the same
  refuses("step04 --tile 64x64 --tile 64x64", 2, "--tile");
  refuses("step04 --softmax-scale 1e40", 2, "finite in fp32");
  refuses("step04 --seqlen 64 --save /proc/no", 2, "--save");
}

TEST_CASE("a result that is no number says what was too large") {
  const Outcome backward = run("step05 --dtype fp16 --seqlen 64 --heads 1 --init const:32");
  CHECK(backward.code == 1);
  CHECK(backward.err.find("standard backward: dq: ") != std::string::npos);
  CHECK(backward.err.find("dP exceeds fp16's 65504: up to 65536") != std::string::npos);
  const Outcome scores = run("step04 --seqlen 64 --heads 1 --init randn:1e30");
  CHECK(scores.code == 1);
  CHECK(scores.err.find("Q K^T exceeds fp32's 3.40282e+38: up to ") != std::string::npos);
}

TEST_CASE("what blocks add up in any order may differ by its rounding, and --deterministic fixes the order") {
  const Outcome any = run("step10 --heads 1 --seqlen 300");
  CHECK(any.code == 0);
  CHECK(any.out.find("equal to the bit but dq; ") != std::string::npos);
  CHECK(any.out.find("spread    dq differs from run to run by ") != std::string::npos);
  const Outcome fixed = run("step10 --heads 1 --seqlen 300 --deterministic");
  CHECK(fixed.code == 0);
  CHECK(fixed.out.find("equal to the bit; ") != std::string::npos);
  CHECK(fixed.out.find("spread") == std::string::npos);
}

TEST_CASE("what a step cannot serve exits 3 and says what there is") {
  refuses("step10 --device cpu --dtype fp32", 3, "step05 is a backward in fp32");
  refuses("step11 --device cpu --head-dim 96", 3, "step10 takes 8, 16, 24");
  refuses("step07 --device cpu --head-dim 96", 3, "takes head_dim 64 and 128, not 96");
  refuses("step07 --device cpu --dtype fp32", 3, "step08 takes it on these units");
  refuses("step08 --device cpu --dtype fp32 --product cuda-cores", 3, "step04 is the same algorithm in fp32");
  refuses("step08 --device cpu --dtype fp32 --no-persistent", 3, "leaves out no technique in fp32");
  refuses("step08 --device cpu --dtype fp32 --init const:1e30", 3, "fp32 on tensor cores cannot hold that");
  refuses("step04 --product tensor-cores --head-dim 200", 3, "--product cuda-cores");
  refuses("step05 --product tensor-cores --init const:1e30", 3, "--product cuda-cores");
  refuses("tiles/step04 --product tensor-cores --tile 48x48", 3, "128x64, 64x64");
  refuses("step04 --product cuda-cores --dtype fp16", 3, "fp16 runs on tensor cores alone");
  refuses("tiles/step04 --sweep-tiles", 3, "even the smallest tile", "ATTN_SMEM_LIMIT=1000");
  refuses("tiles/step04 --tile 48x48", 3, "64x64");
  refuses("step04 --head-dim 100000", 3, "takes head_dim 1 to");
  refuses("step04", 3, "bytes of SRAM per block, 1000 are allowed", "ATTN_SMEM_LIMIT=1000");
}

TEST_CASE("a program with the default tiles alone says where the others are") {
  refuses("step04 --tile 64x64", 3, "compiled in: 128x64; `make step04-tiles` builds it with 8 more");
  refuses("step04 --sweep-tiles", 3, "make step04-tiles");
  refuses("step04", 3, "make step04-tiles", "ATTN_SMEM_LIMIT=65536");
  refuses("step04 --dtype fp16 --tile 48x48", 3, "make step04-tiles");
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
    CHECK(outcome.err.find("\n  " + tile["tile"].get<std::string>() + " ") != std::string::npos);
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
  CHECK(automatic.out.find("device: CPU executor") != std::string::npos);
  CHECK(automatic.out.find("TFLOP/s   predicted") == std::string::npos);  // no row of GPU time
}

TEST_CASE("--help shows the first line's flags, --help-all the rest") {
  const Outcome help = run("step04 --help"), all = run("step04 --help-all");
  CHECK(help.code == 0);
  CHECK(all.code == 0);
  for (const char* flag : {"--seqlen ", "--heads", "--head-dim", "--causal", "--dtype", "--device"}) {
    CHECK(help.out.find(flag) != std::string::npos);
    CHECK(all.out.find(flag) != std::string::npos);
  }
  for (const char* flag : {"--batch", "--seqlen-q", "--softmax-scale", "--preset", "--trace-row", "--load", "--save", "--plan", "--json", "--race-check", "--thread-order", "--threads"}) {
    CHECK(help.out.find(flag) == std::string::npos);
    CHECK(all.out.find(flag) != std::string::npos);
  }
}

TEST_CASE("--json - gives JSON on stdout and the report on stderr") {
  const Outcome outcome = run("tiles/step04 --batch 1 --heads 1 --seqlen 1024 --head-dim 64 --tile 64x64 --json -");
  REQUIRE(outcome.code == 0);
  CHECK(outcome.err.find("PASS") != std::string::npos);
  const Json json = Json::parse(outcome.out);
  CHECK(json["step"] == "step04");
  CHECK(json["device"] == "cpu");
  CHECK(json["tile"] == "64x64");
  CHECK(json["problem"]["seqlen_k"] == 1024);
  CHECK(json["traffic"]["requested_expected_bytes"]["load"] == 8650752);
  CHECK(json["traffic"]["requested_counted_bytes"]["load"] == 8650752);
  CHECK(json["traffic"]["requested_counted_bytes"]["store"] == 266240);
  CHECK(json["traffic"]["by_tensor"]["K"]["requested_counted_bytes"]["load"] == 4194304);
  CHECK(json["flops"]["executed"] == 268435456);
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
  CHECK(outcome.err.find("it does not fit") != std::string::npos);
}

TEST_CASE("explicit flags override a preset") {
  const Json json = Json::parse(run("step04 --preset gpt2 --heads 2 --batch 1 --seqlen-k 100 --plan --json -").out);
  CHECK(json["problem"]["batch"] == 1);
  CHECK(json["problem"]["heads"] == 2);
  CHECK(json["problem"]["seqlen_q"] == 1024);
  CHECK(json["problem"]["seqlen_k"] == 100);
  CHECK(Json::parse(run("step04 --preset article --dtype fp32 --plan --json -").out)["problem"]["seqlen_q"] == 4096);
  CHECK(Json::parse(run("step04 --preset article --dtype fp32 --plan --json -").out)["dtype"] == "fp32");
}

TEST_CASE("--check none and --check sample never look like a full check") {
  const Outcome none = run("step04 --seqlen 64 --check none");
  CHECK(none.code == 0);
  CHECK(none.out.find("not checked") != std::string::npos);
  CHECK(none.out.find("PASS") == std::string::npos);
  const Outcome sample = run("step04 --seqlen 300 --check sample:8");
  CHECK(sample.code == 0);
  CHECK(sample.out.find("sampled ") != std::string::npos);
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
    for (const char* name : {"q", "k", "v"}) write_npy(folder.path + "/" + name + ".npy", {1, 1, 2, 2}, std::vector<float>{1, 2, 3, *name == 'v' ? bad : 4});
    refuses("step04 --load " + folder.path, 2, "v.npy: element 3 is");
  }
}

TEST_CASE("--load and --save") {
  const Folder folder;
  const std::string data = ATTN_TEST_DATA "/ragged_causal", saved = folder.path + "/saved";
  const Outcome outcome = run("step04 --load '" + data + "' --causal --save " + saved);
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
  const attention::NpyArray<float> q = attention::read_npy(data + "/q.npy", 4), o = attention::read_npy(saved + "/o.npy", 4), lse = attention::read_npy(saved + "/lse.npy", 3);
  const attention::NpyArray<double> golden = attention::read_npy_double(data + "/o.npy", 4);
  REQUIRE(o.shape == q.shape);
  CHECK(lse.shape == std::vector<int64_t>(q.shape.begin(), q.shape.begin() + 3));
  for (size_t n = 0; n < o.values.size(); ++n) REQUIRE(o.values[n] == Approx(golden.values[n]).margin(1e-5));
  refuses("step04 --load '" + data + "' --seqlen 3", 2, "contradicts");
  refuses("step04 --load '" + data + "' --head-dim 3", 2, "contradicts");
  refuses("step04 --load '" + data + "' --init ones", 2, "contradict");
}

TEST_CASE("--repeat and thread orders give the same bits") {
  const Outcome outcome = run("step04 --seqlen 77 --causal --repeat 50 --json -");
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
  CHECK(Json::parse(outcome.out)["time"]["runs"] == 50);
  CHECK(Json::parse(outcome.out)["executor"]["thread_orders"].size() == 3);
  CHECK(Json::parse(run("step04 --seqlen 77 --thread-order 9 --json -").out)["executor"]["thread_orders"] == Json::array({9}));
}

TEST_CASE("--trace-row ends with the kernel's own LSE") {
  const Outcome outcome = run("step04 --heads 1 --seqlen 10 --init zeros --trace-row 3 --causal");
  CHECK(outcome.code == 0);
  CHECK(outcome.out.find("replayed on the host") != std::string::npos);
  CHECK(outcome.out.find("1.38629") != std::string::npos);  // ln 4: four visible keys of equal score
}

TEST_CASE("chapter 4's four numbers: by hand, by the trace and by the kernel") {
  // Scores 1, 3 in the first key tile and 2, 5 in the second; V is one column. The recurrence of the chapter's table, in its order.
  const double alpha = std::exp(3.0 - 5), l0 = std::exp(1.0 - 3) + 1, l1 = alpha * l0 + (std::exp(2.0 - 5) + 1);
  const double a0 = std::exp(1.0 - 3) * 10 + 1 * 20, a1 = alpha * a0 + std::exp(2.0 - 5) * 30 + 1 * 40;
  const double direct = std::exp(-4.0) + std::exp(-2.0) + std::exp(-3.0) + 1;  // with the maximum known from the start
  CHECK(std::abs(l1 - direct) < 1e-15);
  const std::string chapter = slurp(ATTN_SOURCE_FOLDER "/docs/04-online-softmax.md");
  for (const double number : {alpha, l0, l1, a0, a1, a1 / l1, 5 + std::log(l1)}) {
    char text[32];
    std::snprintf(text, sizeof text, "%.6f", number);
    INFO(text);
    CHECK(chapter.find(text) != std::string::npos);
  }

  // A tile holds 32 keys here: the first one's other 30 score -150, and e^(-150 - 3) is nothing beside 1.
  const Folder folder;
  std::vector<float> keys(34, -150), values(34, 0);
  keys[0] = 1, keys[1] = 3, keys[32] = 2, keys[33] = 5;
  values[0] = 10, values[1] = 20, values[32] = 30, values[33] = 40;
  write_npy(folder.path + "/q.npy", {1, 1, 1, 1}, std::vector<float>{1});
  write_npy(folder.path + "/k.npy", {1, 1, 34, 1}, keys);
  write_npy(folder.path + "/v.npy", {1, 1, 34, 1}, values);
  const Outcome outcome = run("tiles/step04 --load " + folder.path + " --softmax-scale 1 --tile 64x32 --trace-row 0 --save " + folder.path + "/out");
  INFO(outcome.out);
  REQUIRE(outcome.code == 0);
  CHECK(outcome.out.find("0            0..31                 3        1.13533528             0") != std::string::npos);
  CHECK(outcome.out.find("1           32..33                 5        1.20343799      0.135335") != std::string::npos);
  CHECK(std::abs(read_npy(folder.path + "/out/o.npy", 4).values.at(0) - a1 / l1) < 1e-6 * a1 / l1);
  CHECK(std::abs(read_npy(folder.path + "/out/lse.npy", 3).values.at(0) - (5 + std::log(l1))) < 1e-6 * 5);

  // Chapter 9: each tile a part of its own, merged.
  const double l_of_1 = std::exp(2.0 - 5) + 1, lse0 = 3 + std::log(l0), lse1 = 5 + std::log(l_of_1), weight = std::exp(lse0 - lse1);
  const double o0 = a0 / l0, o1 = (std::exp(2.0 - 5) * 30 + 40) / l_of_1, merged = (weight * o0 + o1) / (weight + 1);
  CHECK(std::abs(merged - a1 / l1) < 1e-13);
  const std::string chapter9 = slurp(ATTN_SOURCE_FOLDER "/docs/09-split-keys.md");
  for (const double number : {lse0, o0, lse1, o1, weight, merged, lse1 + std::log(weight + 1)}) {
    char text[32];
    std::snprintf(text, sizeof text, "%.6f", number);
    INFO(text);
    CHECK(chapter9.find(text) != std::string::npos);
  }
  const Outcome split = run("step09 --load " + folder.path + " --softmax-scale 1 --splits 2 --save " + folder.path + "/split");
  INFO(split.out);
  REQUIRE(split.code == 0);
  CHECK(split.out.find("splits    2 of 32 keys: as asked") != std::string::npos);
  CHECK(std::abs(read_npy(folder.path + "/split/o.npy", 4).values.at(0) - merged) < 1e-6 * merged);
}

TEST_CASE("--splits is step09's own, and long rows without it name step09") {
  refuses("step09 --splits 0", 2, "--splits 0: must be at least 1");
  refuses("step09 --splits some", 2, "not a whole number");
  refuses("step04 --splits 2", 2, "--splits");
  const std::string long_row = " --dtype fp16 --heads 1 --seqlen-q 1 --seqlen-k 65600 --head-dim 8 --thread-order 0";
  const Outcome without = run("step04" + long_row), with = run("step09" + long_row + " --json -");
  CHECK(without.out.find("step09 sums them in pieces") != std::string::npos);
  CHECK(run("step04 --dtype fp16 --heads 1 --seqlen-q 1 --seqlen-k 600").out.find("step09 sums them in pieces") == std::string::npos);
  REQUIRE(with.code == 0);
  CHECK(with.err.find("step09 sums them in pieces") == std::string::npos);
  const Json splits = Json::parse(with.out).at("splits");
  CHECK(splits.at("parts") == 94);  // of 22 key tiles of 32, the last one shorter
  CHECK(splits.at("keys_per_part") == 704);
  CHECK(splits.at("reason").get<std::string>().find("auto") == 0);
}

TEST_CASE("a trace of a step whose library chooses the tiles takes 64 keys at a time") {
  Problem p;
  p.seqlen_q = p.seqlen_k = 100;
  p.head_dim = 1;
  const std::vector<float> ones(100, 1.0f);
  const std::string text = trace_row(p, HostInputs{ones, ones, ones, {}}, 70, 0);
  CHECK(text.find("0..63") != std::string::npos);
  CHECK(text.find("64..99") != std::string::npos);
}

TEST_CASE("a JSON file is written whole or not at all") {
  const Folder folder;
  const std::string path = folder.path + "/run.json";
  CHECK(run("step04 --seqlen 64 --json " + path).code == 0);
  CHECK(Json::parse(slurp(path))["step"] == "step04");
  CHECK(run("step04 --seqlen 0 --json " + path + "2").code == 2);
  CHECK_FALSE(std::filesystem::exists(path + "2"));
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path), {}) == 1);  // no temporary file is left
}

TEST_CASE("a run of hours says so before it begins") {
  const std::string step = "timeout 20 '" ATTN_STEP_FOLDER "'/step04 --device cpu --seqlen 200000 --heads 1 --check none";
  const Folder folder;
  std::system((step + " >" + folder.file("out") + " 2>" + folder.file("err")).c_str());
  const std::string said = slurp(folder.file("err"));
  INFO(said);
  CHECK(said.find("step04: about ") == 0);
  for (const char* part : {" hours on the CPU executor, 3 thread orders. Less: --plan", "; --seqlen ", "--thread-order 0", "thread order 1 of 3: ", " % ... 10 s"}) CHECK(said.find(part) != std::string::npos);
  CHECK(run("step04 --seqlen 64 --init zeros").out.find("  d 64  init zeros  tile") != std::string::npos);
}

TEST_CASE("output that is lost ends with exit 2, and says so") {
  const std::string step = "'" ATTN_STEP_FOLDER "'/step04 --device cpu --seqlen 64 --heads 1";
  const Folder folder;
  for (const char* lost : {">/dev/full", ">&-", "--json - >/dev/full", "--json - >&-", "--help-all >/dev/full", "--json /dev/full >/dev/null"}) {
    INFO(lost);
    const int status = std::system((step + " " + lost + " 2>" + folder.file("err")).c_str());
    CHECK(WEXITSTATUS(status) == 2);
    CHECK(slurp(folder.file("err")).find("cannot be written") != std::string::npos);
  }
  std::filesystem::create_directories(folder.file("out/lse.npy"));
  refuses("step04 --seqlen 1000000 --save " + folder.file("out"), 2, "out/lse.npy: cannot be written: it is a folder");  // found before the run
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
  for (const char* name : {"q", "k", "v"}) write_npy(folder.file(std::string(name) + ".npy"), {1, 1, 1 << 16, 64}, values);
  refuses("step04 --plan --load " + folder.path, 4, "bytes of memory", "prlimit --as=50000000");
}

TEST_CASE("every step in fp16 and bf16") {
  for (const char* step : {"step01", "step02", "step03", "step04", "step05"}) {
    for (const char* dtype : {"fp16", "bf16"}) {
      for (const char* flags : {"--seqlen 77 --causal", "--seqlen-q 70 --seqlen-k 33 --causal --head-dim 40", "--seqlen 33 --head-dim 63 --init randn:4"}) {
        const std::string command = std::string(step) + " --heads 2 --dtype " + dtype + " " + flags;
        INFO(command);
        const Outcome outcome = run(command + " --json -");
        INFO(outcome.err);
        REQUIRE(outcome.code == 0);
        const Json json = Json::parse(outcome.out);
        CHECK(json["dtype"] == dtype);
        for (const Json& check : json["exactness"]) CHECK(check["tolerance"] == (dtype == std::string("fp16") ? 0x1p-10 : 0x1p-7));
        CHECK(json["exactness"][0]["stored_pairs_allowed"] == (step == std::string("step01") || step == std::string("step02")));
      }
    }
  }
}

TEST_CASE("raw scores beyond fp16's range stay in fp32") {  // hard case A5: q = k = 32, so q k = 65536 before the scale
  const Folder folder;
  const std::vector<float> big(64 * 64, 32);
  std::vector<float> v(64 * 64), mean(64);
  for (int j = 0; j < 64; ++j)
    for (int x = 0; x < 64; ++x) mean[x] += (v[j * 64 + x] = static_cast<float>((j * 37 + x * 11) % 64 - 20) / 8) / 64;
  for (const char* name : {"q", "k"}) attention::write_npy(folder.path + "/" + name + ".npy", {1, 1, 64, 64}, big, true);
  attention::write_npy(folder.path + "/v.npy", {1, 1, 64, 64}, v, true);
  for (const char* step : {"step01", "step02", "step03", "step04"}) {
    for (const char* dtype : {"", " --dtype bf16"}) {
      const Outcome outcome = run(std::string(step) + " --load " + folder.path + dtype + " --save " + folder.path);
      INFO(step << dtype << outcome.err);
      REQUIRE(outcome.code == 0);
      const attention::NpyArray<float> o = attention::read_npy(folder.path + "/o.npy", 4);
      CHECK(o.was_half == (dtype == std::string()));
      for (size_t n = 0; n < o.values.size(); ++n) REQUIRE(o.values[n] == Approx(mean[n % 64]).margin(0.02));
    }
  }
  CHECK(run("step04 --seqlen 1 --heads 1 --init const:133120 --dtype bf16").code == 0);
  refuses("step04 --seqlen 1 --heads 1 --init const:133120 --dtype fp16", 2, "too large for fp16");
}

TEST_CASE("the article's preset is one head in fp16") {
  const Json json = Json::parse(run("step04 --preset article --plan --json -").out);
  CHECK(json["dtype"] == "fp16");
  CHECK(json["problem"]["heads"] == 1);
  CHECK(json["traffic"]["hbm_expected_bytes"] == 4 * 4096 * 64 * 2 + 4096 * 4);
}
