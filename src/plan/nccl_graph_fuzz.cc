// Arbitrary text, and a graph file with arbitrary edits: the reader throws Error or returns, and
// what it returns is written so that it reads the same.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "core/error.h"
#include "core/testing/edited.h"
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

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::string kGraph = real_graph();
  const std::string text = testing::edited_or_raw(kGraph, data, size);
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
