#include "common/harness/program.h"

#include <cstdio>
#include <cstdlib>

#include "common/base/build_info.h"
#include "common/base/error.h"
#include "common/base/exit_code.h"
#include "common/base/files.h"
#include "common/device/device_api.h"
#include "common/harness/json.h"
#include "common/harness/timeline.h"

namespace attention {

static std::FILE* person = stdout;  // where a person's view goes: stderr where stdout is for JSON

const Step& any_step(const char* id) {
  for (const DeviceKind device : {DeviceKind::cpu, DeviceKind::gpu})
    if (const Step* step = find_step(device, id)) return *step;
  throw Unsupported("this program has no kernels");
}

const Step& step_for(DeviceKind device, const char* id) {
  if (const Step* step = find_step(device, id)) return *step;
  throw Unsupported(
      any_step(id).id + (device == DeviceKind::gpu ? " has no GPU kernels in this build"
                                                   : " runs on a GPU only: its products are a library's"));
}

std::optional<Options> read_options(int argc, char** argv, const Step& step) {
  std::string help;
  std::optional<Options> options = parse_options(argc, argv, step, help);
  if (!options) {
    std::fputs(help.c_str(), stdout);
    return options;
  }
  if (options->json == "-") person = stderr;
  else if (!options->json.empty()) refuse_unwritable(options->json, "--json");
  if (!options->film.empty()) refuse_unwritable(options->film, "--film");
  if (!options->timeline.empty()) {
    if (const std::string why = timeline_refusal(options->timeline); !why.empty()) throw BadArguments(why);
    refuse_unwritable(options->timeline, "--timeline");
  }
  return options;
}

void print_results(const std::string& report, const std::function<std::string()>& json, const std::string& json_path) {
  if (json_path == "-") person = stderr;
  std::fputs(report.c_str(), person);
  if (json_path == "-") std::fputs(json().c_str(), stdout);
  else if (!json_path.empty()) write_whole(json_path, json());
}

void refuse(const std::vector<std::string>& failures) {
  if (failures.empty()) return;
  const size_t more = failures.size() - 1;
  throw CheckFailed(failures.front() + (more == 0 ? "" : " (and " + std::to_string(more) + " more)"));
}

void finish(const RunResult& run, const std::string& report) {
  print_results(report, [&] { return json_text(run); }, run.options.json);
  for (const auto& [path, page] : {std::pair{run.options.film, run.film}, {run.options.timeline, run.timeline}})
    if (!page.empty()) write_whole(path, page);
  refuse(run.failures);
  if (!run.not_saved.empty()) throw BadArguments(run.not_saved);
}

/// What follows a CUDA error that means that the program has no code for this GPU: what was built and what was found.
/// "" for any other.
static std::string no_code_reason(const std::string& failure) {
  if (failure.find("cudaErrorNoKernelImageForDevice") == std::string::npos &&
      failure.find("Ptx") == std::string::npos && failure.find("Jit") == std::string::npos)
    return "";
  const int found = find_gpu().compute_capability;
  return std::string(": built for sm_") + build_info::kCudaArchitectures +
         ", a Hopper step for sm_90a alone; this GPU is " + (found ? "sm_" + std::to_string(found) : "not known") +
         (std::getenv("CUDA_FORCE_PTX_JIT") ? "; CUDA_FORCE_PTX_JIT forbids code that is compiled already: unset it"
                                            : "; configure again with -DCMAKE_CUDA_ARCHITECTURES=native");
}

int program(const std::string& id, const std::function<void()>& run) {
  return exit_code_of([&] {
    try {
      run();
    } catch (const CheckFailed& wrong) {
      for (const std::string& line : wrong.also) std::fprintf(person, "FAIL      %s\n", line.c_str());
      const std::string& to_do = any_step(id.c_str()).if_wrong;
      throw CheckFailed(wrong.what() + (to_do.empty() ? "" : "; " + to_do));
    } catch (const DeviceFailure& failure) {
      throw DeviceFailure(failure.what() + no_code_reason(failure.what()));
    }
  });
}

}  // namespace attention
