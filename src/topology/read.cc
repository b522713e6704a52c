#include "topology/read.h"

#include <algorithm>
#include <cctype>

#include "core/error.h"
#include "topology/hwloc_xml.h"
#include "topology/json.h"
#include "topology/nccl_xml.h"

namespace ropewalk::topology {

Topology read_topology(std::string_view text, std::string_view origin) {
  const auto first = std::find_if_not(text.begin(), text.end(),
                                      [](unsigned char c) { return std::isspace(c) != 0; });
  if (first == text.end()) throw Error(Errc::kInvalidArgument, "{}: empty", origin);
  if (*first == '{') return read_json(text, origin);
  if (*first != '<') {
    throw Error(Errc::kInvalidArgument,
                "{}: line 1: neither a topology in JSON nor NCCL's or hwloc's XML", origin);
  }
  const std::size_t hwloc = text.find("<topology");
  const std::size_t nccl = text.find("<system");
  if (hwloc < nccl) return read_hwloc_xml(text, origin);
  return read_nccl_xml(text, origin);
}

}  // namespace ropewalk::topology
