// Arbitrary text, and a graph file with arbitrary edits: the reader throws Error or returns, and
// what it returns is written so that it reads the same.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "core/error.h"
#include "plan/nccl_graph.h"

namespace {

using namespace ropewalk;

std::string real_graph() {
  plan::NcclGraph ring;
  ring.nchannels = 2;
  ring.speedintra = ring.speedinter = 6.25;
  ring.latencyinter = 3;
  ring.typeintra = "SYS";
  ring.typeinter = "PIX";
  ring.channels = {{{0, 1}, {{0, {}}, {1, 7}, {2, {}}}}, {{1, 0}, {{2, {}}, {1, {}}, {0, 3}}}};
  plan::NcclGraph tree = ring;
  tree.id = 1;
  tree.pattern = 3;
  return plan::write_nccl_graph({ring, tree});
}

/// Every three bytes overwrite a byte of the file, delete one, or double one.
std::string edited(std::string text, const std::uint8_t* data, std::size_t size) {
  for (std::size_t i = 0; i + 2 < size && !text.empty(); i += 3) {
    const std::size_t at = (data[i] * 256U + data[i + 1]) % text.size();
    if (data[i + 2] == 0) {
      text.erase(at, 1);
    } else if (data[i + 2] == 1) {
      text.insert(at, 1, text[at]);
    } else {
      text[at] = static_cast<char>(data[i + 2]);
    }
  }
  return text;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::string kGraph = real_graph();
  const bool edits = size > 0 && data[0] % 2 == 1;
  const std::string text = edits ? edited(kGraph, data + 1, size - 1)
                                 : std::string(reinterpret_cast<const char*>(data), size);
  try {
    const plan::NcclGraphs graphs = plan::read_nccl_graph(text, "graph");
    std::string written;
    try {
      written = plan::write_nccl_graph(graphs);
    } catch (const Error&) {
      std::abort();  // what was read can be written
    }
    if (plan::write_nccl_graph(plan::read_nccl_graph(written, "again")) != written) std::abort();
  } catch (const Error&) {
    return 0;
  }
  return 0;
}
