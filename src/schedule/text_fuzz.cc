// Arbitrary text: parse() throws Error or returns; what it returns survives print and parse
// unchanged, and check() gives a verdict on it.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "core/error.h"
#include "schedule/check.h"
#include "schedule/text.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ropewalk::schedule;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  Schedule schedule;
  try {
    schedule = parse(text);
  } catch (const ropewalk::Error&) {
    return 0;
  }
  if (!(parse(print(schedule)) == schedule)) std::abort();
  const CheckReport report = check(schedule);
  if (report.accepted != report.defects.empty()) std::abort();
  return 0;
}
