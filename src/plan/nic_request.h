// The request of a NIC report as JSON, as the C API takes it.
#pragma once

#include <string_view>

#include "plan/nic_report.h"

namespace ropewalk::plan {

/// {"host": N, "measured": {NIC: GB/s}, "channels": N, "one_rail": BOOL, "graph": TEXT}, all
/// optional. @throws Error kInvalidArgument naming what is unknown or of another type
NicReportRequest nic_report_request(std::string_view json);

}  // namespace ropewalk::plan
