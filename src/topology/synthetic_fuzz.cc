// Arbitrary text: synthetic() throws Error or gives a machine that survives JSON.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "core/error.h"
#include "topology/json.h"
#include "topology/synthetic.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ropewalk::topology;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  // Large machines are right but take their time; three digits at most.
  int digits = 0;
  int most = 0;
  for (const char c : text) {
    digits = c >= '0' && c <= '9' ? digits + 1 : 0;
    most = std::max(most, digits);
  }
  if (most > 2) return 0;
  try {
    const Topology topology = synthetic(text);
    if (!(read_json(write_json(topology), "written") == topology)) std::abort();
  } catch (const ropewalk::Error&) {
    return 0;
  }
  return 0;
}
