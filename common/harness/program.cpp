#include "common/harness/program.h"

#include <new>

#include "common/harness/error.h"
#include "common/harness/exit_code.h"
#include "common/harness/json.h"
#include "common/harness/report.h"

namespace attention {

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
  if (!options)
    std::fputs(help.c_str(), stdout);
  else if (!options->json.empty() && options->json != "-")
    refuse_unwritable(options->json);
  return options;
}

std::FILE* for_a_person(const Options& options) { return options.json == "-" ? stderr : stdout; }

void finish(const RunResult& result, const std::string& more_for_a_person) {
  const std::string& json = result.options.json;
  std::fputs((report_text(result) + more_for_a_person).c_str(), for_a_person(result.options));
  if (json == "-")
    std::fputs(json_text(result).c_str(), stdout);
  else if (!json.empty())
    write_whole(json, json_text(result));
  if (std::fflush(stdout) != 0) throw BadArguments("standard output cannot be written");
  if (result.failures.empty()) return;
  const size_t more = result.failures.size() - 1;
  throw CheckFailed(result.failures.front() + (more == 0 ? "" : " (and " + std::to_string(more) + " more)"));
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
