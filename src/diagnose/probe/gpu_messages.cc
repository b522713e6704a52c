#include "diagnose/probe/gpu_messages.h"

#include <fmt/format.h>

namespace ropewalk::diagnose::probe {

Check gpu_messages(const transport::messaging::GpuTrials& trials, const std::string& device,
                   const std::string& cause) {
  Check check{.what = fmt::format("GPU memory on {}", device)};
  check.found = trials.taken ? trials.words : "not taken: " + trials.words;
  if (!trials.taken) {
    check.outcome = Outcome::kSkipped;
  } else if (!trials.right) {
    check.outcome = Outcome::kFailed;
    check.cause = cause;
  }
  return check;
}

}  // namespace ropewalk::diagnose::probe
