#include "profiler/report_file.h"

#include <array>
#include <cstring>
#include <utility>

#include "core/error.h"
#include "core/file_pattern.h"
#include "core/replace_file.h"

namespace ropewalk::profiler {
namespace {

constexpr mode_t kReportMode = 0644;

}  // namespace

void write_report(const Recorder& recorder, const std::string& pattern) {
  const std::array<std::pair<char, std::string>, 2> letters = {
      {{'r', std::to_string(recorder.rank())}, {'c', recorder.communicator()}}};
  const std::string path = expand_file_pattern("TRACE_FILE", pattern, letters);
  if (const int error = replace_file(path, recorder.report(), kReportMode); error != 0) {
    throw Error(Errc::kSystem, "ROPEWALK_TRACE_FILE, {}: {}", path, std::strerror(error));
  }
}

}  // namespace ropewalk::profiler
