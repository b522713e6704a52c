// Arbitrary text as NCCL's and as hwloc's XML: the readers throw Error or return. What was read can
// be written as NCCL's XML, or is refused; what was written reads back, and writes the same again.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "core/error.h"
#include "topology/hwloc_xml.h"
#include "topology/json.h"
#include "topology/nccl_xml.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ropewalk::topology;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  for (const auto& reader : {read_nccl_xml, read_hwloc_xml}) {
    std::optional<NcclXml> written;
    try {
      const Topology topology = reader(text, "input");
      (void)write_json(topology);
      written = write_nccl_xml(topology, 0);
    } catch (const ropewalk::Error&) {
      continue;
    }
    // An Error from here on is a defect, and ends the run.
    const Topology back = read_nccl_xml(written->text, "written");
    if (write_nccl_xml(back, 0).text != written->text) std::abort();
  }
  return 0;
}
