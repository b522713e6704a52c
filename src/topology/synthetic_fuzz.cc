// Arbitrary text: synthetic() throws Error or gives a machine that survives JSON.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "core/error.h"
#include "topology/json.h"
#include "topology/synthetic.h"

namespace {

constexpr std::size_t kMostParts = 64;  // a mesh has links by the square of this

/// The product of all counts in `text`, as "2x(8gpu nvmesh)" has 16; at most kMostParts + 1. Larger
/// machines are right, but take more time than the fuzzer gives.
std::size_t most_parts(std::string_view text) {
  std::size_t product = 1;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool begins = i == 0 || text[i - 1] == ' ' || text[i - 1] == '(';
    std::size_t count = 0;
    while (begins && i < text.size() && text[i] >= '0' && text[i] <= '9') {
      count = std::min(count * 10 + static_cast<std::size_t>(text[i++] - '0'), kMostParts + 1);
    }
    product = std::min(product * std::max<std::size_t>(count, 1), kMostParts + 1);
  }
  return product;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ropewalk::topology;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (most_parts(text) > kMostParts) return 0;
  try {
    const Topology topology = synthetic(text);
    if (!(read_json(write_json(topology), "written") == topology)) std::abort();
  } catch (const ropewalk::Error&) {
    return 0;
  }
  return 0;
}
