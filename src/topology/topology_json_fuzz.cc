// Arbitrary text: read_json() throws Error or returns; what it returns survives write and read
// unchanged, and distances can be taken.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "core/error.h"
#include "topology/distance.h"
#include "topology/json.h"
#include "topology/nccl_xml.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ropewalk::topology;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const Topology topology = read_json(text, "input");
    if (!(read_json(write_json(topology), "written") == topology)) std::abort();
    (void)topology.without_dead_ends();
    (void)topology.unreachable_gpus();
    if (topology.nodes().size() <= 64) {
      const Distances distances(topology);
      (void)distance_matrix(topology, distances);
      // Throws Error where the form cannot hold the machine.
      const NcclXml xml = write_nccl_xml(topology, 0);
      (void)read_nccl_xml(xml.text, "written");
    }
  } catch (const ropewalk::Error&) {
    return 0;
  }
  return 0;
}
