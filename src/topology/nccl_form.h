// What the XML readers of all NCCL releases accept, which is less than XML.
//
// Source: NCCL 2.8 to 2.30 (src/graph/xml.cc), RCCL; restated in docs/topology.md. The check is
// written from those rules alone and shares nothing with the writers that it judges.
#pragma once

#include <cstddef>
#include <string_view>

namespace ropewalk::topology {

struct NcclFormLimits {
  std::size_t elements = 255;    ///< of the whole file: topology files from 2.21
  std::size_t children = 31;     ///< of one element: releases up to 2.20
  std::size_t attributes = 16;   ///< of one element
  std::size_t text_bytes = 254;  ///< of a name or a value
};
/// Graph files may hold more.
inline constexpr NcclFormLimits kNcclGraphLimits{.elements = 1024};

/// @throws Error kInvalidArgument "ORIGIN: line 3: what is wrong"
void check_nccl_form(std::string_view text, std::string_view origin,
                     const NcclFormLimits& limits = {});

}  // namespace ropewalk::topology
