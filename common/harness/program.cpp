#include "common/harness/program.h"

#include <cstdio>
#include <new>

#include "common/base/error.h"
#include "common/base/exit_code.h"
#include "common/harness/json.h"

namespace attention {

static void flush_output() {
  if (std::fflush(stdout) != 0) throw BadArguments("standard output cannot be written");
}

const Step& any_step(const std::string& id) {
  for (const DeviceKind device : {DeviceKind::cpu, DeviceKind::gpu})
    if (const Step* step = find_step(device, id)) return *step;
  throw Unsupported("this program has no kernels");
}

const Step& step_for(DeviceKind device, const std::string& id) {
  if (const Step* step = find_step(device, id)) return *step;
  throw Unsupported(any_step(id).id + (device == DeviceKind::gpu ? " has no GPU kernels in this build" : " runs on a GPU only: its products are a library's"));
}

std::optional<Options> read_options(int argc, char** argv, const Step& step) {
  std::string help;
  std::optional<Options> options = parse_options(argc, argv, step, help);
  if (!options) {
    std::fputs(help.c_str(), stdout);
    flush_output();
  } else {
    if (!options->json.empty() && options->json != "-") refuse_unwritable("--json", options->json);
    if (!options->film.empty()) refuse_unwritable("--film", options->film);
  }
  return options;
}

void finish(const Options& options, const std::string& report, const std::function<std::string()>& json, const std::vector<std::string>& failures) {
  const bool json_to_stdout = options.json == "-";
  std::fputs(report.c_str(), json_to_stdout ? stderr : stdout);
  if (json_to_stdout)
    std::fputs(json().c_str(), stdout);
  else if (!options.json.empty())
    write_whole(options.json, json());
  flush_output();
  if (failures.empty()) return;
  const size_t more = failures.size() - 1;
  throw CheckFailed(failures.front() + (more == 0 ? "" : " (and " + std::to_string(more) + " more)"));
}

int program(const std::string& id, const std::function<void()>& run) {
  return exit_code_of([&] {
    try {
      run();
      return 0;
    } catch (const CheckFailed& wrong) {
      const std::string& to_do = any_step(id).if_wrong;
      throw CheckFailed(wrong.what() + (to_do.empty() ? "" : "; " + to_do));
    } catch (const std::bad_alloc&) {
      throw DeviceFailure("out of host memory: choose a smaller --seqlen, --heads or --batch");
    }
  });
}

}  // namespace attention
